"""Read example sentences, and words and phrases, from the Ding German-English dictionary.

Two readers share one file and no pair. `read_ding` takes full sentences only:
the dictionary writes its entries in a shorthand (`sth.`, `etw.`) that is no
sentence of either language, so lines with it would measure the wrong thing in
a test set. `read_words` takes what is no sentence, with one translation of
each source: a model has no way to choose between several.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from dragoman.model.corpus.clean import count_words

MIN_WORDS = 4  # of a sentence
MAX_PHRASE_WORDS = 6
MIN_PHRASE_LETTERS = 0.85
_DOUBT = 0.5  # weight of a translation for each reason to prefer another

_NOTE = re.compile(r"\{[^}]*\}|\[[^]]*\]|\([^)]*\)|<[^>]*>")
# English `sth.`, `sb.`, German `etw.`, `jdm.` and kin; slashes and tildes mark
# alternatives and repeated words.
_SHORTHAND = re.compile(r"\b(?:sth|sb|esp|etw|jd[mns]?|jmd[mns]?|jem)\b|[/~…|]|\.\.\.|\b(?:one's|oneself)\b")
_SENTENCE_END = re.compile(r"[.!?][\"'“”]?$")

# Abbreviation of an entry: `Tunesien {n} /TN/`.
_ABBREVIATION = re.compile(r"(?<!\S)/[^\s/](?:[^/|]*[^\s/])?/(?![^\s;])")
# `Mühle(n)` and `(be)merken` mean two words each, unlike a note of its own.
_JOINED_NOTE = re.compile(r"\w[(\[]|[)\]]\w")
_UNWANTED = re.compile(
    r"\[(?:[^]]*\b)?(?:alt|obs|veraltet|veraltend|altertümlich|archaic|vulg|pej|slang|derb)\b[^]]*\]"
)
# Registers and regions: right, but not the first translation to learn.
_MARKED = re.compile(
    r"\[(?:ugs|coll|geh|formal|altmodisch|dated|becoming|poet|humor|selten|rare|übtr|fig|iron|euphem|Ös|Schw|Süddt|"
    r"Norddt|Bayr|Ostdt|Westdt|Sc|Ir|Aus|NZ|Can|hist|lit|dialect|Jugendsprache|Sprw|prov)\b"
)
_OBJECT = re.compile(r"^(?:jd[mn]\.|etw\.)(?:/(?:jd[mn]\.|etw\.))* (?=\S)")
_ENGLISH_OBJECT = re.compile(r"(?<=\w) (?:sb\.|sth\.)(?:/(?:sb\.|sth\.))*(?=\s|$)")
_WORD = re.compile(r"[^\W\d_]+")
# Letters, joined by single marks; at most one mark ends the phrase.
_PHRASE = re.compile(r"[^\W\d_](?:[^\W\d_]|(?<=\w)['’]|[-, ])*[^\W\d_]['’]?[.!?]?|[^\W\d_]")


def read_ding(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (English, German) full sentences of dictionary lines.

    A line is `German :: English`; both sides list as many ` | `-separated
    items, and an item lists alternatives after `;`, of which the first counts.
    """
    for items in _entries(lines):
        for german, english in ((_first(german), _first(english)) for german, english in items):
            if _is_sentence(german) and _is_sentence(english):
                yield english, german


def read_words(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (English, German) words and phrases, each English text once.

    The first alternatives of an item translate each other; so do later ones
    where both sides have as many. Of several translations that one stays
    which goes with the English words most often in the whole dictionary; a
    later alternative, an example below an entry and a marked register count
    less, and of equals the earliest stays.
    """
    items = [item for entry in _entries(lines) for item in enumerate(entry)]
    candidates: dict[str, dict[str, float]] = {}
    for position, (german_item, english_item) in items:
        if _is_sentence(_first(german_item)) and _is_sentence(_first(english_item)):
            continue
        for place, (raw_german, raw_english) in enumerate(_alternatives(german_item, english_item)):
            pair = _phrase_pair(raw_german, raw_english)
            if pair:
                english, german = pair
                doubts = (place > 0, position > 0, _MARKED.search(raw_german), _MARKED.search(raw_english))
                known = candidates.setdefault(english, {})
                known[german] = max(_DOUBT ** sum(map(bool, doubts)), known.get(german, 0.0))
    german_uses = _uses(german for _, (german, _) in items)
    english_uses = _uses(english for _, (_, english) in items)
    for english, known in candidates.items():
        together = _common(english_uses, english) if len(known) > 1 else set()
        scores = {german: weight * _overlap(together, _common(german_uses, german)) for german, weight in known.items()}
        yield english, max(scores, key=scores.__getitem__)  # the earliest of equals


def _uses(items: Iterable[str]) -> dict[str, set[int]]:
    """Return the numbers of the items in which each word occurs."""
    uses: dict[str, set[int]] = {}
    for number, item in enumerate(items):
        for word in _WORD.findall(_NOTE.sub(" ", item)):
            uses.setdefault(word, set()).add(number)
    return uses


def _common(uses: dict[str, set[int]], phrase: str) -> set[int]:
    """Return the numbers of the items with all words of a phrase."""
    sets = sorted((uses.get(word, set()) for word in _WORD.findall(phrase)), key=len)
    return sets[0].intersection(*sets[1:])


def _overlap(left: set[int], right: set[int]) -> float:
    """Return the Dice coefficient of two sets."""
    return 2 * len(left & right) / max(1, len(left) + len(right))


def _entries(lines: Iterable[str]) -> Iterator[list[tuple[str, str]]]:
    """Yield the (German, English) items of every line with as many on both sides."""
    for line in lines:
        if line.startswith("#") or " :: " not in line:
            continue
        german_side, english_side = line.rstrip("\n").split(" :: ", 1)
        german_items, english_items = german_side.split(" | "), english_side.split(" | ")
        if len(german_items) == len(english_items):
            yield list(zip(german_items, english_items, strict=True))


def _first(item: str) -> str:
    return " ".join(_NOTE.sub(" ", item.split(";")[0]).split())


def _is_sentence(text: str) -> bool:
    return bool(
        count_words(text) >= MIN_WORDS
        and (text[0].isupper() or text[0] in "\"'„“")
        and _SENTENCE_END.search(text)
        and not _SHORTHAND.search(text)
    )


def _alternatives(german: str, english: str) -> list[tuple[str, str]]:
    """Return the alternatives of an item that translate each other, notes kept."""
    pairs = list(zip(_split(german), _split(english), strict=False))
    return pairs if len(_split(german)) == len(_split(english)) else pairs[:1]


def _split(item: str) -> list[str]:
    """Split at `;`, but not within a note: `to eat {ate; eaten}` is one alternative."""
    return _NOTE.sub(lambda note: note[0].replace(";", ","), _ABBREVIATION.sub(" ", item)).split(";")


def _phrase_pair(raw_german: str, raw_english: str) -> tuple[str, str] | None:
    """Return the bare (English, German) phrases, or None if one of them is odd."""
    raw = f"{raw_german} {raw_english}"
    if _JOINED_NOTE.search(raw) or _UNWANTED.search(raw):
        return None
    german, english = _bare(raw_german), _bare(raw_english)
    # `etw. einsammeln` is `to collect sth.`; with more than the one plain
    # object, or a preposition before it, words would be left dangling.
    if english.startswith("to ") and _OBJECT.match(german) and len(_ENGLISH_OBJECT.findall(english)) == 1:
        german, english = _OBJECT.sub("", german), _ENGLISH_OBJECT.sub("", english)
    ends = [_SENTENCE_END.search(text) for text in (german, english)]
    is_odd = (
        not (_is_phrase(german) and _is_phrase(english))
        or german.count(",") != english.count(",")
        or (ends[0] and ends[0][0]) != (ends[1] and ends[1][0])
        or (ends[0] and max(count_words(german), count_words(english)) >= MIN_WORDS)
    )
    return None if is_odd else (english, german)


def _bare(text: str) -> str:
    return " ".join(_NOTE.sub(" ", text).split())


def _is_phrase(text: str) -> bool:
    return bool(
        _PHRASE.fullmatch(text)
        and not _SHORTHAND.search(text)
        and "one’s" not in text
        and count_words(text) <= MAX_PHRASE_WORDS
        and sum(c.isalpha() or c == " " for c in text) >= MIN_PHRASE_LETTERS * len(text)
    )
