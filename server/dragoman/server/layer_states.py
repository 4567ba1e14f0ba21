"""What the decoder layers know of the tokens that each row has read: one interface, two kinds.

`CachePool` and the runtime work on any `LayerStates`. Self-attention has caches, which grow with the
text and are written in place (`buffers.SelfAttentionCache`); a recurrent layer has `Cells` of
constant size. On a GPU, `device_states` has both. Which tensors these are, and in which order, is the contract of
`export.bundle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from dragoman.server.device_memory import Array, Tensor
from dragoman.server.row_copies import SPARE, RowCopy


class LayerStates(Protocol):
    """State tensors of all slots, in the order of the bundle's names."""

    @property
    def size(self) -> int:
        """Positions per row in the current views: as long as it stays, a binding stays right."""

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""

    def views(self) -> list[Tensor]:
        """Return what a step reads, each [rows, ...]."""

    def updated_views(self) -> list[Tensor]:
        """Return where a step writes, each as large as its view; perhaps the same memory."""

    def begin(self, slots: slice) -> None:
        """Let rows that have read nothing begin in `slots`."""

    def fit(self, needed: int, live: int) -> None:
        """Make the views hold `needed` positions; keeps the `live` first rows."""

    def commit(self, live: int) -> None:
        """Let what a step wrote for the `live` first rows be what the next one reads."""

    def copy_rows(self, copies: Sequence[RowCopy]) -> None:
        """Copy rows from slot to slot, one after the other, as `row_copies.in_sequence` orders them."""

    def erase(self, slot: int) -> None:
        """Zero a slot: what is not a number would outlive its row there."""

    def clear(self) -> None:
        """Forget all content."""


class KeysAndValues(Protocol):
    """Keys and values of the source of all slots, in the order of the bundle's names."""

    @property
    def size(self) -> int:
        """Positions per row in the current views: as long as it stays, a binding stays right."""

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""

    def views(self) -> list[Tensor]:
        """Return all buffers as [rows, H, size, D]."""

    def fit(self, needed: int, live: int) -> None:
        """Make the views hold `needed` positions; keeps the `live` first rows."""

    def write(self, start: int, widths: Sequence[int], values: Sequence[Tensor]) -> None:
        """Copy keys and values of texts to the slots from `start` on, each to as many as its width says.

        Args:
            start: First slot.
            widths: B numbers of slots.
            values: One for each buffer, [B, H, S, D] with S positions that the views have room for.
        """

    def copy_rows(self, copies: Sequence[RowCopy]) -> None:
        """Copy rows from slot to slot, one after the other."""

    def erase(self, slot: int) -> None:
        """Zero a slot: what is not a number would outlive its row there."""

    def clear(self) -> None:
        """Forget all content."""


class LastKeysAndValues(Protocol):
    """Keys and values of the last source position of all slots.

    Attributes:
        tensor: [rows, 2L, H * D] float32.
    """

    tensor: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""

    def write(self, start: int, widths: Sequence[int], values: Tensor) -> None:
        """Copy [B, 2L, H * D] of texts to the slots from `start` on, each to as many as its width says."""

    def copy_rows(self, copies: Sequence[RowCopy]) -> None:
        """Copy rows to slots that none of them comes from."""

    def erase(self, slot: int) -> None:
        """Zero a slot: what is not a number would outlive its row there."""

    def clear(self) -> None:
        """Forget all content."""


class Cells:
    """States of recurrent layers: one vector per row and layer.

    A step writes to a second set, and `commit` copies it back. The graph may still read an input when
    it writes an output, so they cannot be one memory; and swapping two sets would save the copy, of a few
    kilobytes, for bindings that must know whose turn it is.

    Attributes:
        size: Always 1, whatever a row has read.
    """

    size = 1

    def __init__(self, count: int, rows: int, width: int, dtype: Any = np.float32) -> None:
        """Allocate cells of [rows, width] for `count` layers, twice."""
        self._cells = np.empty((count, rows, width), dtype)
        self._updated = np.empty_like(self._cells)
        self.clear()  # and thereby commit the memory now

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self._cells.nbytes + self._updated.nbytes

    def views(self) -> list[Array]:
        """Return the cells of each layer, [rows, E]."""
        return list(self._cells)

    def updated_views(self) -> list[Array]:
        """Return where a step writes the cells of each layer, [rows, E]."""
        return list(self._updated)

    def begin(self, slots: slice) -> None:
        """Start from zeros: unlike a cache, a cell has no length that would hide what lies there."""
        self._cells[:, slots] = 0

    def fit(self, needed: int, live: int) -> None:
        """Do nothing: a cell holds any number of positions."""

    def commit(self, live: int) -> None:
        """Copy the written cells to where the next step reads."""
        self._cells[:, :live] = self._updated[:, :live]

    def copy_rows(self, copies: Sequence[RowCopy]) -> None:
        """Copy rows from slot to slot, one after the other; a cell has no positions, so it is copied as a whole."""
        cells, spare = self._cells, self._cells[:, 0]
        for target, source, _, _ in copies:
            content = spare if source == SPARE else cells[:, source]
            if target == SPARE:
                spare = content.copy()
            else:
                cells[:, target] = content

    def erase(self, slot: int) -> None:
        """Zero a slot's cells."""
        self._cells[:, slot] = 0
        self._updated[:, slot] = 0

    def clear(self) -> None:
        """Forget all content."""
        self._cells.fill(0)
        self._updated.fill(0)
