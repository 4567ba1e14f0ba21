"""Layer states, keys and values in a device's memory: `buffers` and `layer_states` with copies there for NumPy here.

All layers of one kind lie in one piece of memory at equal distances, so that a row moves with one copy through all of
them. Views are as tight as on the CPU: kernels without flash attention pay for the whole view there too, those with it
divide their work by its length, and the pool's budget counts positions. A slot is copied as a whole, also where rows
have their first positions in common: such a part of all layers would be a copy for each layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dragoman.export.bundle import Shape
from dragoman.server.budget import view_size
from dragoman.server.device_memory import DeviceArray, Memory
from dragoman.server.row_copies import SPARE, RowCopy
from dragoman.server.slot_types import last_size

_ALIGNMENT = 256  # as cudaMalloc aligns: kernels read 16 bytes at once


class Stack:
    """Equal buffers at equal distances in one piece of memory, each a number of slots.

    Attributes:
        slot: Bytes of a slot in each buffer; may be changed.
        nbytes: Bytes allocated.
    """

    def __init__(self, memory: Memory, count: int, capacity: int, slot: int) -> None:
        """Allocate `count` buffers of `capacity` bytes, zeroed: what lies in fresh memory may be no number."""
        self._memory, self._count = memory, count
        self._pitch = -(-capacity // _ALIGNMENT) * _ALIGNMENT
        self.slot = slot
        self.nbytes = count * self._pitch
        self._start = memory.allocate(self.nbytes)
        self.clear()

    def buffer(self, index: int) -> int:
        """Return the address of a buffer."""
        return self._start + index * self._pitch

    def copy_slots(self, target: int, source: int, number: int = 1) -> None:
        """Copy slots that follow each other in all buffers; the two do not overlap."""
        start, slot = self._start, self.slot
        self._copy(start + target * slot, start + source * slot, number * slot, self._pitch, self._pitch)

    def copy_from(self, other: Stack, number: int) -> None:
        """Copy the first slots of another stack of the same kind."""
        self._copy(self._start, other.buffer(0), number * self.slot, self._pitch, self._pitch)

    def copy_rows(self, copies: Sequence[RowCopy], spare: int) -> None:
        """Copy slots, one after the other; `spare` is the address of room for one slot of all buffers."""
        start, slot, pitch = self._start, self.slot, self._pitch
        for target, source, _, _ in copies:
            if target == SPARE:
                self._copy(spare, start + source * slot, slot, slot, pitch)
            elif source == SPARE:
                self._copy(start + target * slot, spare, slot, pitch, slot)
            else:
                self.copy_slots(target, source)

    def zero_slots(self, slot: int, number: int = 1) -> None:
        """Zero slots that follow each other in all buffers."""
        self._memory.zero(self._start + slot * self.slot, number * self.slot, self._count, self._pitch)

    def clear(self) -> None:
        """Zero everything."""
        self._memory.zero(self._start, self.nbytes, 1, self.nbytes)

    def _copy(self, target: int, source: int, width: int, target_pitch: int, source_pitch: int) -> None:
        self._memory.copy(target, source, width, self._count, target_pitch, source_pitch)


class DeviceBuffers:
    """One length axis: all keys and values that share it, with a common view length.

    Attributes:
        size: Positions per row in the current view.
    """

    def __init__(
        self, memory: Memory, count: int, shape: Shape, *, positions: int, longest: int, dtype: Any = np.float32
    ) -> None:
        """Allocate `count` buffers with room for so many positions of [H, D], at most `longest` of them in a row.

        And room beside them, to lay out one buffer anew or to hold one slot of all.
        """
        self.size = view_size(1, longest)
        self._memory, self._count = memory, count
        self._longest, self._positions = longest, positions
        self._heads, self._dim, self._dtype = shape.num_heads, shape.head_dim, np.dtype(dtype)
        self._stack = Stack(memory, count, positions * self._position, self.size * self._position)
        self._spare_bytes = max(positions, count * longest) * self._position
        self._spare = memory.allocate(self._spare_bytes)

    @property
    def _position(self) -> int:
        """Bytes of a position in one buffer."""
        return int(self._heads * self._dim * self._dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self._stack.nbytes + self._spare_bytes

    def views(self) -> list[DeviceArray]:
        """Return all buffers as [rows, H, size, D], with as many rows as there is room for."""
        shape = (self._positions // self.size, self._heads, self.size, self._dim)
        return [DeviceArray(self._memory, self._stack.buffer(i), shape, self._dtype) for i in range(self._count)]

    def fit(self, needed: int, live: int) -> None:
        """Give the view the smallest size that holds `needed` positions; keeps the `live` first rows."""
        size = view_size(needed, self._longest)
        if size == self.size:
            return
        if live * size > self._positions:
            raise AssertionError(f"{live} rows of {size} positions in a buffer for {self._positions}")
        line = self._dim * self._dtype.itemsize
        old, new, kept = self.size * line, size * line, min(size, self.size) * line
        # Rows that are new and had no room in the old view have nothing in it.
        lines = min(live, self._positions // self.size) * self._heads
        for index in range(self._count if lines else 0):
            buffer = self._stack.buffer(index)
            self._memory.copy(self._spare, buffer, kept, lines, kept, old)
            self._memory.copy(buffer, self._spare, kept, lines, new, kept)
        self.size = size
        self._stack.slot = size * self._position

    def write(self, start: int, widths: Sequence[int], values: Sequence[DeviceArray]) -> None:
        """Copy [B, H, S, D] of texts to the slots from `start` on, each to as many as its width says."""
        length = values[0].shape[2]
        line = self._dim * self._dtype.itemsize
        width, pitch, text = length * line, self.size * line, length * self._position
        firsts = [start + sum(widths[:index]) for index in range(len(widths))]
        # Texts with one slot each are one copy.
        runs = [(start, 0, len(widths))] if max(widths) == 1 else [(slot, i, 1) for i, slot in enumerate(firsts)]
        for index, content in enumerate(values):
            for slot, first, number in runs:
                target = self._stack.buffer(index) + slot * self._stack.slot
                self._memory.copy(target, content.pointer + first * text, width, number * self._heads, pitch, width)
        for first, number in zip(firsts, widths, strict=True):
            for slot in range(first + 1, first + number):
                self._stack.copy_slots(slot, first)

    def copy_rows(self, copies: Sequence[RowCopy]) -> None:
        """Copy rows from slot to slot, one after the other."""
        self._stack.copy_rows(copies, self._spare)

    def erase(self, slot: int) -> None:
        """Zero a slot: what is not a number would outlive its row there."""
        self._stack.zero_slots(slot)

    def clear(self) -> None:
        """Forget all content."""
        self._stack.clear()


class DeviceSelfAttentionCache(DeviceBuffers):
    """Layer states of self-attention: a step writes one position where it belongs, in place."""

    def updated_views(self) -> list[DeviceArray]:
        """Return the same memory as `views`."""
        return self.views()

    def begin(self, slots: slice) -> None:
        """Do nothing: what lies in a slot is behind the length of a new row."""

    def commit(self, live: int) -> None:
        """Do nothing: the next step reads where the last one wrote."""


class DeviceLastPositions:
    """Keys and values of each row's last source position.

    Attributes:
        tensor: [rows, 2L, H * D] float32.
        nbytes: Bytes allocated.
    """

    def __init__(self, memory: Memory, rows: int, shape: Shape) -> None:
        """Allocate."""
        count, width = last_size(shape)
        kind = np.dtype(np.float32)
        slot = count * width * kind.itemsize
        self._stack = Stack(memory, 1, rows * slot, slot)
        self.tensor = DeviceArray(memory, self._stack.buffer(0), (rows, count, width), kind)
        self.nbytes = self._stack.nbytes

    def write(self, start: int, widths: Sequence[int], values: DeviceArray) -> None:
        """Copy [B, 2L, H * D] of texts to the slots from `start` on, each to as many as its width says."""
        memory, row = self.tensor.memory, self._stack.slot
        target = self._stack.buffer(0) + start * row
        for text, width in enumerate(widths):
            for _ in range(width):
                memory.copy(target, values.pointer + text * row, row, 1, row, row)
                target += row

    def copy_rows(self, copies: Sequence[RowCopy]) -> None:
        """Copy rows to slots that none of them comes from."""
        for target, source, _, _ in copies:
            self._stack.copy_slots(target, source)

    def erase(self, slot: int) -> None:
        """Zero a slot."""
        self._stack.zero_slots(slot)

    def clear(self) -> None:
        """Forget all content."""
        self._stack.clear()


class DeviceCells:
    """States of recurrent layers, twice, as `layer_states.Cells`.

    Attributes:
        size: Always 1, whatever a row has read.
    """

    size = 1

    def __init__(self, memory: Memory, count: int, rows: int, width: int, dtype: Any = np.float32) -> None:
        """Allocate cells of [rows, width] for `count` layers, twice, and room for one slot."""
        self._memory, self._count, self._shape, self._dtype = memory, count, (rows, width), np.dtype(dtype)
        slot = width * self._dtype.itemsize
        self._cells, self._updated = (Stack(memory, count, rows * slot, slot) for _ in range(2))
        self._spare = memory.allocate(count * slot)

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self._cells.nbytes + self._updated.nbytes + self._count * self._cells.slot

    def views(self) -> list[DeviceArray]:
        """Return the cells of each layer, [rows, E]."""
        return self._arrays(self._cells)

    def updated_views(self) -> list[DeviceArray]:
        """Return where a step writes the cells of each layer, [rows, E]."""
        return self._arrays(self._updated)

    def _arrays(self, stack: Stack) -> list[DeviceArray]:
        return [DeviceArray(self._memory, stack.buffer(i), self._shape, self._dtype) for i in range(self._count)]

    def begin(self, slots: slice) -> None:
        """Start from zeros: unlike a cache, a cell has no length that would hide what lies there."""
        self._cells.zero_slots(slots.start, slots.stop - slots.start)

    def fit(self, needed: int, live: int) -> None:
        """Do nothing: a cell holds any number of positions."""

    def commit(self, live: int) -> None:
        """Copy the written cells to where the next step reads."""
        self._cells.copy_from(self._updated, live)

    def copy_rows(self, copies: Sequence[RowCopy]) -> None:
        """Copy rows from slot to slot, one after the other."""
        self._cells.copy_rows(copies, self._spare)

    def erase(self, slot: int) -> None:
        """Zero a slot's cells."""
        self._cells.zero_slots(slot)
        self._updated.zero_slots(slot)

    def clear(self) -> None:
        """Forget all content."""
        self._cells.clear()
        self._updated.clear()
