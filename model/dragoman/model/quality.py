"""Faults of translations that a score hides: none, a copy of the source, endless repetition."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dragoman.model.samples import Ending, Sample

MIN_COPIED_WORDS = 3
MAX_LOOP_TOKENS = 4
MAX_LOOP_CHARACTERS = 20
MIN_LOOP_TURNS = 4

# The shortest run of characters that comes again at once, inside a word.
_INSIDE_WORD = re.compile(rf"(.{{1,{MAX_LOOP_CHARACTERS}}}?)\1{{{MIN_LOOP_TURNS - 1},}}")

# A word, one character of a script written without spaces, or a mark.
_TOKEN = re.compile("[\u3040-\u30ff\u3400-\u9fff]|[^\\W\u3040-\u30ff\u3400-\u9fff]+|[^\\w\\s]")


@dataclass(frozen=True, slots=True)
class Faults:
    """The samples with a fault; each list has the worst first. One sample may be in several.

    Attributes:
        empty: Nothing but white space came out, although the source was accepted.
        untranslated: See `is_untranslated`; the longest source first.
        looping: See `is_looping`; the longest output relative to its reference first.
        cut: The limit on new tokens ended the output; None if the system does not say.
        refused: The system did not take the source; scored as an empty translation.
    """

    empty: tuple[Sample, ...]
    untranslated: tuple[Sample, ...]
    looping: tuple[Sample, ...]
    cut: tuple[Sample, ...] | None
    refused: tuple[Sample, ...]


def find_faults(samples: Sequence[Sample]) -> Faults:
    """Look for all faults."""
    refused = [s for s in samples if s.output.ending is Ending.REFUSED]
    accepted = [s for s in samples if s.output.ending is not Ending.REFUSED]
    untranslated = [s for s in accepted if is_untranslated(s)]
    looping = [s for s in accepted if is_looping(s)]
    says_ending = all(s.output.ending is not Ending.UNKNOWN for s in samples)
    return Faults(
        empty=tuple(s for s in accepted if not s.output.text.strip()),
        untranslated=tuple(sorted(untranslated, key=lambda s: -len(s.source))),
        looping=tuple(sorted(looping, key=lambda s: -len(s.output.text) / max(1, len(s.reference)))),
        cut=tuple(s for s in accepted if s.output.ending is Ending.LIMIT) if says_ending else None,
        refused=tuple(refused),
    )


def is_untranslated(sample: Sample) -> bool:
    """Whether the output is the source, although the reference is not.

    Compared without regard to case, white space and Unicode's compatible forms. Sources of fewer than
    `MIN_COPIED_WORDS` words do not count: names and commands rightly stay as they are, and a
    reference that translates them is a matter of taste.
    """
    source = _plain(sample.source)
    if len(source.split()) < MIN_COPIED_WORDS:
        return False
    return _plain(sample.output.text) == source != _plain(sample.reference)


def is_looping(sample: Sample) -> bool:
    """Whether the output repeats itself, or goes on until the limit on new tokens cuts it.

    Repeats itself: 1 to `MAX_LOOP_TOKENS` words or marks, or 1 to `MAX_LOOP_CHARACTERS` characters inside a
    word, occur `MIN_LOOP_TURNS` times in a row, and do not in the reference.
    """
    return sample.output.ending is Ending.LIMIT or not loops(sample.output.text) <= loops(sample.reference)


def loops(text: str) -> frozenset[tuple[str, ...]]:
    """Return what `text` repeats at least `MIN_LOOP_TURNS` times in a row.

    Each loop is named by its alphabetically first rotation, so that "a b a b" and "b a b a" are one,
    and has no shorter loop inside: "a a a a a a a a" is a loop of "a", not of "a a". One inside a word is
    named as one text, with a hyphen at each end: "-und-".
    """
    tokens = _TOKEN.findall(text.casefold())
    found = {loop for token in set(tokens) for loop in _loops_inside(token)}
    for size in range(1, MAX_LOOP_TOKENS + 1):
        matching = 0  # tokens in a row that equal the one `size` before
        for end in range(size, len(tokens)):
            matching = matching + 1 if tokens[end] == tokens[end - size] else 0
            if matching >= size * (MIN_LOOP_TURNS - 1):
                last = tuple(tokens[end - size + 1 : end + 1])
                rotations = [last[i:] + last[:i] for i in range(size)]
                if len(set(rotations)) == size:
                    found.add(min(rotations))
    return frozenset(found)


def _loops_inside(word: str) -> Iterator[tuple[str, ...]]:
    for match in _INSIDE_WORD.finditer(word):
        unit: str = match[1]
        if any(character.isalpha() for character in unit):  # 10000 and ____ are no loops
            yield (f"-{min(unit[i:] + unit[:i] for i in range(len(unit)))}-",)


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
