"""Keys and values in the host's memory, a slot for each row, with copies that touch only what a row has.

All layers of a kind lie in one array, so that a row's few latest positions are copied by one NumPy operation through
all of them. Rows are copied one by one: an operation on all of them would gather them into memory of its own first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dragoman.export.bundle import Shape
from dragoman.server.budget import view_size
from dragoman.server.device_memory import Array
from dragoman.server.row_copies import SPARE, RowCopy
from dragoman.server.slot_types import last_size

_ALIGNMENT = 64  # a line of the CPU's cache, and its widest vector
# NumPy cannot tell that rows of all layers do not overlap, so it copies twice, which costs less than a call for each
# layer until it is more than a core's own cache holds.
_AT_ONCE = 1 << 18


def aligned(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an array of any content that begins at a cache line."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory: Array = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return np.ndarray(shape, dtype, memory.data, start)


class Buffers:
    """One length axis: all keys and values that share it, with a common view length.

    Attributes:
        size: Positions per row in the current view.
        nbytes: Bytes allocated.
    """

    def __init__(self, count: int, shape: Shape, *, positions: int, longest: int, dtype: Any = np.float32) -> None:
        """Allocate `count` buffers with room for so many positions of [H, D], at most `longest` of them in a row."""
        self._longest = longest
        self._positions = positions
        self._heads, self._dim = shape.num_heads, shape.head_dim
        self._flat = aligned((count, positions * self._heads * self._dim), dtype)
        self.nbytes = self._flat.nbytes
        self.size = view_size(1, longest)
        self._view = self._arrange()
        # Filled: np.zeros would leave it to the first long texts to commit the memory, and what lies
        # in fresh memory may be a NaN, which is NaN even times weight 0.
        self.clear()

    def _arrange(self) -> Array:
        """Return all buffers as [count, rows, H, size, D], with as many rows as there is room for."""
        rows = self._positions // self.size
        used = rows * self._heads * self.size * self._dim
        return self._flat[:, :used].reshape(len(self._flat), rows, self._heads, self.size, self._dim)

    def views(self) -> list[Array]:
        """Return all buffers as [rows, H, size, D]; each is contiguous."""
        return list(self._view)

    def fit(self, needed: int, live: int) -> None:
        """Give the view the smallest size that holds `needed` positions; keeps the `live` first rows."""
        size = view_size(needed, self._longest)
        if size == self.size:
            return
        if live * size > self._positions:
            raise AssertionError(f"{live} rows of {size} positions in a buffer for {self._positions}")
        before, kept = self._view, min(size, self.size)
        # Rows that are new and had no room in the old view have nothing in it.
        blocks = list(_blocks(min(live, before.shape[1]), self.size, size))
        self.size = size
        self._view = self._arrange()
        for old, new in zip(before, self._view, strict=True):
            for block in blocks:
                new[block, :, :kept] = old[block, :, :kept]

    def write(self, start: int, widths: Sequence[int], values: Sequence[Array]) -> None:
        """Copy [B, H, S, D] of texts to the slots from `start` on, each to as many as its width says."""
        length = values[0].shape[2]
        for view, content in zip(self._view, values, strict=True):
            for first, texts, width in _runs(widths):
                slot = start + sum(widths[:first])
                slots = view[slot : slot + texts * width].reshape(texts, width, *view.shape[1:])
                slots[:, :, :, :length] = content[first : first + texts, None]

    def copy_rows(self, copies: Sequence[RowCopy]) -> None:
        """Copy rows from slot to slot, one after the other."""
        if not copies:
            return
        longest = max(copy.length - copy.first for copy in copies)
        at_once = longest * self.nbytes // self._positions <= _AT_ONCE
        for layers in [self._view] if at_once else self._view[:, None]:
            spare = layers[:, 0]
            for target, source, first, length in copies:
                content = spare if source == SPARE else layers[:, source, :, first:length]
                if target == SPARE:
                    spare = content.copy()
                else:
                    layers[:, target, :, first:length] = content

    def erase(self, slot: int) -> None:
        """Zero a slot: what is not a number would outlive its row there."""
        self._view[:, slot] = 0

    def clear(self) -> None:
        """Forget all content."""
        self._flat.fill(0)


class SelfAttentionCache(Buffers):
    """Layer states of self-attention: a step writes one position where it belongs, in place."""

    def updated_views(self) -> list[Array]:
        """Return the same memory as `views`."""
        return self.views()

    def begin(self, slots: slice) -> None:
        """Do nothing: what lies in a slot is behind the length of a new row."""

    def commit(self, live: int) -> None:
        """Do nothing: the next step reads where the last one wrote."""


class LastPositions:
    """Keys and values of each row's last source position.

    Attributes:
        tensor: [rows, 2L, H * D] float32.
    """

    def __init__(self, rows: int, shape: Shape) -> None:
        """Allocate."""
        self.tensor = aligned((rows, *last_size(shape)), np.float32)
        self.clear()

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self.tensor.nbytes

    def write(self, start: int, widths: Sequence[int], values: Array) -> None:
        """Copy [B, 2L, H * D] of texts to the slots from `start` on, each to as many as its width says."""
        self.tensor[start : start + sum(widths)] = np.repeat(values, widths, axis=0)

    def copy_rows(self, copies: Sequence[RowCopy]) -> None:
        """Copy rows to slots that none of them comes from."""
        for target, source, _, _ in copies:
            self.tensor[target] = self.tensor[source]

    def erase(self, slot: int) -> None:
        """Zero a slot."""
        self.tensor[slot] = 0

    def clear(self) -> None:
        """Forget all content."""
        self.tensor.fill(0)


def _runs(widths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield texts of the same width that follow each other: the first one, how many, their width."""
    first = 0
    for index in range(1, len(widths) + 1):
        if index == len(widths) or widths[index] != widths[first]:
            yield first, index - first, widths[first]
            first = index


def _blocks(live: int, old: int, new: int) -> Iterator[slice]:
    """Yield rows whose size changes from `old` to `new` in the same memory, in an order that overwrites none too soon.

    Rows of a block can be copied together without a copy in between, but for blocks of one row.
    """
    if new > old:  # the last rows first, and in a block only those that end up behind where all of it has been
        end = live
        while end:
            start = min(end - 1, -(-end * old // new))
            yield slice(start, end)
            end = start
    else:
        start = 0
        while start < live:
            end = min(live, max(start + 1, start * old // new))
            yield slice(start, end)
            start = end
