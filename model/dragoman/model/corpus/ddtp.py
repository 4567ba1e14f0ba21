"""Read Debian's translated package descriptions.

Both languages come as stanzas of the package index. A stanza names the
checksum of the English description it belongs to, so alignment is a join on
that checksum followed by the paragraph number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_CHECKSUM = re.compile(r"^Description-md5: (\w+)", re.MULTILINE)
_ITEM = re.compile(r"\s+[-*+•o]\s+|\s*[-*+•]\s+|\s*\d+[.)]\s+")


class Description(NamedTuple):
    """Hold the one-line title and the paragraphs of a package description."""

    title: str
    paragraphs: list[str]


def read_ddtp(english: Iterable[str], translated: Iterable[str], locale: str) -> Iterator[tuple[str, str]]:
    """Yield aligned titles and paragraphs.

    Args:
        english: Contents of the English index files.
        translated: Contents of the index files of the other language.
        locale: Suffix of the description field of the other language.
    """
    originals = parse_descriptions(english, "en")
    for checksum, translation in parse_descriptions(translated, locale).items():
        original = originals.get(checksum)
        if original is None:
            continue
        yield original.title, translation.title
        if len(original.paragraphs) == len(translation.paragraphs):
            yield from zip(original.paragraphs, translation.paragraphs, strict=True)


def parse_descriptions(files: Iterable[str], locale: str) -> dict[str, Description]:
    """Return the descriptions of index files by checksum."""
    field = re.compile(rf"^Description-{re.escape(locale)}: (.*)((?:\n .*)*)", re.MULTILINE)
    found: dict[str, Description] = {}
    for content in files:
        for stanza in content.split("\n\n"):
            checksum, body = _CHECKSUM.search(stanza), field.search(stanza)
            if checksum and body:
                found[checksum[1]] = Description(body[1], _paragraphs(body[2].split("\n")[1:]))
    return found


def _paragraphs(lines: list[str]) -> list[str]:
    """Join lines into paragraphs; a lone full stop or a list mark starts one."""
    paragraphs: list[str] = []
    is_new = True
    for line in lines:
        text = line[1:]  # every continuation line is indented by one space
        if text.strip() == ".":
            is_new = True
            continue
        item = _ITEM.match(text)
        if is_new or item:
            paragraphs.append(text[item.end() :] if item else text)
        else:
            paragraphs[-1] += " " + text.strip()
        is_new = False
    return paragraphs
