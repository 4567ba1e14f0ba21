"""Copies of rows from slot to slot, and the order in which they can be done one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

SPARE = -1  # the place beside the slots


class RowCopy(NamedTuple):
    """A row that is copied.

    Attributes:
        target: Slot, or `SPARE`.
        source: Slot, or `SPARE`.
        first: What stands before this position is the same in both.
        length: Positions that the row has.
    """

    target: int
    source: int
    first: int
    length: int


def in_sequence(copies: Sequence[RowCopy]) -> Sequence[RowCopy]:
    """Return copies which, done one after the other, give each target what its source had before.

    A row that others still have to read is overwritten later; where rows wait for each other in a circle, one of them
    goes to `SPARE` first. `SPARE` is read before it is written again.
    """
    left = {copy.target: copy for copy in copies}
    readers = Counter(copy.source for copy in copies)
    if left.keys().isdisjoint(readers):
        return copies
    ready = [row for row in left if not readers[row]]
    ordered = []
    while left:
        if not ready:
            row, copy = next(iter(left.items()))
            ordered.append(copy._replace(target=SPARE))
            left[row] = copy._replace(source=SPARE)
            readers[copy.source] -= 1  # nobody else reads it, or it would not be in a circle
            ready.append(copy.source)
        copy = left.pop(ready.pop())
        ordered.append(copy)
        readers[copy.source] -= 1
        if copy.source in left and not readers[copy.source]:
            ready.append(copy.source)
    return ordered
