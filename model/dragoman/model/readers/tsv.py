"""Tab-separated lines: source, target and optionally origin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dragoman.model.readers.lines import read_lines
from dragoman.model.readers.record import Problem, Record, pair_or_problem


def read_tsv(path: Path) -> Iterator[Record]:
    """Yield the pair of each line."""
    for line in read_lines(path):
        if isinstance(line, Problem):
            yield line
            continue
        cells = line.text.split("\t")
        if len(cells) in (2, 3):
            yield pair_or_problem(path, f"line {line.number}", *cells)
        else:
            yield Problem(path, f"line {line.number}", f"{len(cells)} column(s)")
