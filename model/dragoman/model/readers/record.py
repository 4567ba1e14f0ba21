"""What a reader makes of one line, entry or unit: a pair, nothing (`Skip`) or a `Problem`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from dragoman.model.readers.pair import Pair

MAX_RECORD_BYTES = 1 << 20
"""Longest line or XML unit; a longer one is a damaged file or no text, and is never held in memory."""

LANGUAGES_NEEDED = (
    "holds texts by language; say which are source and target: --source-language en --target-language de, for example"
)
"""What a file is that cannot be read without `Languages`; in words for who types commands."""

Languages: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Skip:
    """An entry that is right but has no translation to learn from.

    Attributes:
        reason: Completes "3 entries: ..."; few different ones per format.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps the file from being used.

    Attributes:
        path: The file.
        where: "line 3", "entry 3" or "unit 3 (line 9)"; empty if the whole file is meant.
        reason: What is wrong. Never quotes a text of the corpus.
        final: Nothing after it can be read.
    """

    path: Path
    where: str
    reason: str
    final: bool = False


Record: TypeAlias = Pair | Skip | Problem


def clean(text: str) -> str:
    """Return `text` with each run of white space as one space, and none around it."""
    return " ".join(text.split())


def pair_or_problem(path: Path, where: str, source: str, target: str, origin: str = "") -> Pair | Problem:
    """Clean both sides; an empty one is a problem."""
    source, target = clean(source), clean(target)
    if not source or not target:
        return Problem(path, where, "empty side (source)" if not source else "empty side (target)")
    return Pair(source, target, clean(origin))
