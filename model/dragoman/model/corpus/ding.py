"""Read example sentences from the Ding German-English dictionary.

Only full sentences are taken. The dictionary writes its entries in a
shorthand (`sth.`, `etw.`) that is no sentence of either language, so lines
with it would measure the wrong thing in a test set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from dragoman.model.corpus.clean import count_words

MIN_WORDS = 4

_NOTE = re.compile(r"\{[^}]*\}|\[[^]]*\]|\([^)]*\)|<[^>]*>")
# English `sth.`, `sb.`, German `etw.`, `jdm.` and kin; slashes and tildes mark
# alternatives and repeated words.
_SHORTHAND = re.compile(r"\b(?:sth|sb|esp|etw|jd[mns]?|jmd[mns]?|jem)\b|[/~…|]|\.\.\.|\b(?:one's|oneself)\b")
_SENTENCE_END = re.compile(r"[.!?][\"'“”]?$")


def read_ding(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (English, German) full sentences of dictionary lines.

    A line is `German :: English`; both sides list as many ` | `-separated
    items, and an item lists alternatives after `;`, of which the first counts.
    """
    for line in lines:
        if line.startswith("#") or " :: " not in line:
            continue
        german_side, english_side = line.rstrip("\n").split(" :: ", 1)
        german_items, english_items = german_side.split(" | "), english_side.split(" | ")
        if len(german_items) != len(english_items):
            continue
        for german, english in zip(map(_first, german_items), map(_first, english_items), strict=True):
            if _is_sentence(german) and _is_sentence(english):
                yield english, german


def _first(item: str) -> str:
    return " ".join(_NOTE.sub(" ", item.split(";")[0]).split())


def _is_sentence(text: str) -> bool:
    return bool(
        count_words(text) >= MIN_WORDS
        and (text[0].isupper() or text[0] in "\"'„“")
        and _SENTENCE_END.search(text)
        and not _SHORTHAND.search(text)
    )
