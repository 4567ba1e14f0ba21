"""What .po and .mo files share: the charset in the header, and plural forms."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dragoman.model.readers.pair import Pair
from dragoman.model.readers.record import Skip, clean

MAX_CATALOG_BYTES = 64 << 20
"""Largest catalogue; it is held in memory whole, a .po file at about twenty times its size."""

_CHARSET = re.compile(rb"Content-Type:[^\n\"]*?charset=([\w.:-]+)", re.IGNORECASE)


def charset_of(header: bytes) -> str:
    """Return the charset that a header entry declares; UTF-8 if none, or the placeholder of a template.

    Raises:
        LookupError: It is no charset that a catalogue can be in; the argument is its name.
    """
    match = _CHARSET.search(header)
    name = match[1].decode("ascii", "replace") if match else "utf-8"
    if name in ("CHARSET", "utf-8"):
        return "utf-8"
    try:
        keeps_line_ends = "\n".encode(name) == b"\n"
    except LookupError:  # an unknown name, or a codec that is no charset
        keeps_line_ends = False
    if not keeps_line_ends:
        raise LookupError(name[:40])
    return name


def entry_pairs(msgid: str, plural: str, translations: Sequence[str]) -> Iterator[Pair | Skip]:
    """Yield the pairs of one entry: singular and first form, plural and last form.

    Args:
        msgid: The text.
        plural: Its plural; empty if it has none.
        translations: All plural forms, or the only translation.
    """
    texts = [(msgid, translations[0])] if translations else []
    if plural and translations:
        texts.append((plural, translations[-1]))
    pairs = dict.fromkeys(Pair(clean(source), clean(target)) for source, target in texts)
    complete = [pair for pair in pairs if pair.source and pair.target]
    if complete:
        yield from complete
    else:
        yield Skip("untranslated")
