"""Two plain text files: line i of one is the translation of line i of the other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from dragoman.model.readers.lines import read_lines
from dragoman.model.readers.pair import Pair
from dragoman.model.readers.record import Problem, Record, clean


def read_two_files(source: Path, target: Path) -> Iterator[Record]:
    """Yield the pair of each line; that one file has more lines than the other shows at the end only."""
    counts = [0, 0]
    for lines in zip_longest(read_lines(source), read_lines(target)):
        counts = [count + (line is not None) for count, line in zip(counts, lines, strict=True)]
        problems = [line for line in lines if isinstance(line, Problem)]
        yield from problems
        if any(problem.final for problem in problems):
            return  # the rest of that file is unknown, so its length is too
        first, second = lines
        if first is None or second is None or isinstance(first, Problem) or isinstance(second, Problem):
            continue
        texts = (clean(first.text), clean(second.text))
        if all(texts):
            yield Pair(*texts)
        for path, text in zip((source, target), texts, strict=True):
            if not text:
                yield Problem(path, f"line {first.number}", "empty line")
    if counts[0] != counts[1]:
        reason = f"has {counts[0]} line(s), but {target} has {counts[1]}; both must have as many"
        yield Problem(source, "", reason, final=True)
