"""The slot pool: layer states, keys and values of the source, and counters of every live row, allocated once.

Live rows are the first `live` slots, always: a new row takes the next slot, and when a row leaves,
the last one moves into its place. So a decode step binds a prefix of each buffer, without a copy.

A buffer has room for a number of positions and is *viewed* with a tight length: the rows' common number of
positions is a little more than the longest live row needs. Attention kernels on the CPU work over the
whole view, so short texts must not pay for a length that nobody in the batch has; and the shorter the rows,
the more of them there is room for. When the longest row outgrows the view or leaves, the live rows are laid out
anew inside the same memory.

With a GPU all of this lies in its memory (`device_states`), but for the counters, which lie here and are copied before
each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.export import bundle
from dragoman.export.bundle import Shape
from dragoman.server.budget import PoolSize, view_size
from dragoman.server.device_memory import Array, Memory, Mirror, Tensor
from dragoman.server.device_states import DeviceBuffers, DeviceCells, DeviceSelfAttentionCache
from dragoman.server.layer_states import Cells, KeysAndValues, LayerStates

Int64s = NDArray[np.int64]


class Buffers:
    """One length axis: all keys and values that share it, with a common view length.

    Attributes:
        size: Positions per row in the current view.
    """

    def __init__(self, count: int, shape: Shape, *, positions: int, longest: int, dtype: Any = np.float32) -> None:
        """Allocate `count` buffers with room for so many positions of [H, D], at most `longest` of them in a row."""
        self.size = view_size(1, longest)
        self._longest = longest
        self._positions = positions
        self._heads, self._dim = shape.num_heads, shape.head_dim
        self._flat = [np.empty(positions * self._heads * self._dim, dtype) for _ in range(count)]
        # Filled: np.zeros would leave it to the first long texts to commit the memory, and what lies
        # in fresh memory may be a NaN, which is NaN even times weight 0.
        self.clear()

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(flat.nbytes for flat in self._flat)

    def view(self, index: int) -> Array:
        """Return buffer `index` as [rows, H, size, D], with as many rows as there is room for."""
        rows = self._positions // self.size
        used = rows * self._heads * self.size * self._dim
        return self._flat[index][:used].reshape(rows, self._heads, self.size, self._dim)

    def views(self) -> list[Array]:
        """Return all buffers as [rows, H, size, D]."""
        return [self.view(i) for i in range(len(self._flat))]

    def fit(self, needed: int, live: int) -> None:
        """Give the view the smallest size that holds `needed` positions; keeps the `live` first rows."""
        size = view_size(needed, self._longest)
        if size == self.size:
            return
        if live * size > self._positions:
            raise AssertionError(f"{live} rows of {size} positions in a buffer for {self._positions}")
        kept = min(size, self.size)
        before = self.views()
        self.size = size
        for old, new in zip(before, self.views(), strict=True):
            new[:live, :, :kept] = old[:live, :, :kept].copy()  # the same memory: one buffer at a time

    def write(self, start: int, widths: Sequence[int], values: Sequence[Array]) -> None:
        """Copy [B, H, S, D] of texts to the slots from `start` on, each to as many as its width says."""
        owners = np.repeat(np.arange(len(widths)), widths)
        slots = slice(start, start + len(owners))
        length = values[0].shape[2]
        one_each = len(owners) == len(widths)
        for view, content in zip(self.views(), values, strict=True):
            view[slots, :, :length] = content if one_each else content[owners]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the `length` first positions of a row from one slot to another."""
        for view in self.views():
            view[target, :, :length] = view[source, :, :length]

    def reorder(self, rows: Int64s, parents: Int64s, length: int) -> None:
        """Give each of `rows` the `length` first positions that its parent has now."""
        for view in self.views():
            view[rows, :, :length] = view[parents, :, :length]

    def erase(self, slot: int) -> None:
        """Zero a slot: what is not a number would outlive its row there."""
        for view in self.views():
            view[slot] = 0

    def clear(self) -> None:
        """Forget all content."""
        for flat in self._flat:
            flat.fill(0)


class SelfAttentionCache(Buffers):
    """Layer states of self-attention: a step writes one position where it belongs, in place."""

    def updated_views(self) -> list[Array]:
        """Return the same memory as `views`."""
        return self.views()

    def begin(self, slots: slice) -> None:
        """Do nothing: what lies in a slot is behind the length of a new row."""

    def commit(self, live: int) -> None:
        """Do nothing: the next step reads where the last one wrote."""


def make_states(size: PoolSize, shape: Shape, dtype: Any, memory: Memory | None) -> LayerStates:
    """Allocate the states of a bundle's decoder layers."""
    layers = shape.num_decoder_layers
    if shape.decoder_layer == bundle.SSRU:
        if memory is not None:
            return DeviceCells(memory, layers, size.rows, shape.cell_width, dtype)
        return Cells(layers, size.rows, shape.cell_width, dtype)
    positions, longest = size.target_positions, size.longest_target
    if memory is not None:
        return DeviceSelfAttentionCache(memory, 2 * layers, shape, positions=positions, longest=longest, dtype=dtype)
    return SelfAttentionCache(2 * layers, shape, positions=positions, longest=longest, dtype=dtype)


def make_cross_attention(size: PoolSize, shape: Shape, dtype: Any, memory: Memory | None) -> KeysAndValues:
    """Allocate keys and values of the source for a bundle's decoder layers."""
    count, positions, longest = 2 * shape.num_decoder_layers, size.source_positions, size.longest_source
    if memory is not None:
        return DeviceBuffers(memory, count, shape, positions=positions, longest=longest, dtype=dtype)
    return Buffers(count, shape, positions=positions, longest=longest, dtype=dtype)


class CachePool:
    """Slots with their states, caches and counters.

    Attributes:
        memory: Where the graphs compute; None means the host's.
        rows: Number of slots.
        live: Slots in use; they are the first ones.
        states: What the decoder layers know of the generated tokens.
        cross_attention: Key, value, key, value, ... of the source.
        input_ids: [rows, 1] int64, the token each row reads next.
        cache_lengths: [rows] int64, tokens that each row has read.
        source_lengths: [rows] int64.
    """

    def __init__(self, size: PoolSize, shape: Shape, dtype: Any = np.float32, memory: Memory | None = None) -> None:
        """Allocate everything.

        Args:
            size: From the budget.
            shape: Of the bundle.
            dtype: Of keys, values and cells.
            memory: Where the graphs compute; None means the host's.

        Raises:
            MemoryError: There is not so much.
        """
        self._size = size
        self.memory = memory
        self.rows = size.rows
        self.live = 0
        self.states = make_states(size, shape, dtype, memory)
        self.cross_attention = make_cross_attention(size, shape, dtype, memory)
        self._counters = Mirror(memory, (3, size.rows), np.int64)
        ids, self.cache_lengths, self.source_lengths = self._counters.host
        self.input_ids = ids.reshape(size.rows, 1)

    @property
    def nbytes(self) -> int:
        """Bytes of layer states, keys and values."""
        return self.states.nbytes + self.cross_attention.nbytes

    @property
    def free(self) -> int:
        """Slots nobody owns."""
        return self.rows - self.live

    def fits(self, rows: int, longest_source: int, longest_target: int) -> bool:
        """Whether so many rows can be live if the longest of them needs so many positions."""
        return self._size.fits(rows, longest_source, longest_target)

    def counters(self) -> dict[str, Tensor]:
        """Return the counters as the graphs see them, each [rows, ...], by the names of the decoder's inputs."""
        ids, cache_lengths, source_lengths = (self._counters.part(row) for row in range(3))
        return {
            bundle.INPUT_IDS: ids.reshape(self.rows, 1),
            bundle.CACHE_LENGTHS: cache_lengths,
            bundle.SOURCE_LENGTHS: source_lengths,
        }

    def show_counters(self) -> None:
        """Let the graphs see the counters as they are now."""
        self._counters.push(self._counters.host.size)

    def admit(self, cross: list[Tensor], source_lengths: Sequence[int], widths: Sequence[int], start: int) -> None:
        """Give the next slots to newly encoded texts.

        Args:
            cross: Key, value, ... [B, H, S, D] in layer order, from the encoder, with S the longest source.
            source_lengths: B lengths.
            widths: B numbers of slots, each of which gets the text's keys and values.
            start: The decoder's first input.
        """
        owners = np.repeat(np.arange(len(widths)), widths)
        slots = slice(self.live, self.live + len(owners))
        if slots.stop > self.rows:
            raise AssertionError(f"{slots.stop} rows admitted to {self.rows} slots")
        self.source_lengths[slots] = np.asarray(source_lengths)[owners]
        self.cache_lengths[slots] = 0
        self.input_ids[slots] = start
        self.states.begin(slots)
        self.cross_attention.fit(int(self.source_lengths[: slots.stop].max()), self.live)
        self.cross_attention.write(slots.start, widths, cross)
        self.live = slots.stop

    def reserve(self) -> None:
        """Make room for one more token in every live row."""
        if self.live:
            self.states.fit(int(self.cache_lengths[: self.live].max()) + 1, self.live)

    def append(self, tokens: Int64s) -> None:
        """Account for a decode step: `tokens` [live] are what the live rows read next."""
        self.states.commit(self.live)
        self.cache_lengths[: self.live] += 1
        self.input_ids[: self.live, 0] = tokens

    def reorder(self, parents: Int64s) -> None:
        """Let row i go on from the states of row parents[i], for hypotheses of one text; `parents` is [live] int64.

        Only rows whose parent is another one are copied. Their sources are the same.
        """
        rows = (parents != np.arange(self.live)).nonzero()[0]
        if rows.size:
            moved = parents[rows]
            self.states.reorder(rows, moved, int(self.cache_lengths[moved].max()))
            self.cache_lengths[rows] = self.cache_lengths[moved]

    def release(self, slot: int) -> int:
        """Free a slot; returns the slot whose row moved into it (the last live one)."""
        last = self.live - 1
        if not 0 <= slot <= last:
            raise AssertionError(f"slot {slot} released, live are 0 to {last}")
        if slot != last:
            for counters in (self.input_ids, self.cache_lengths, self.source_lengths):
                counters[slot] = counters[last]
            self.states.move(last, slot, int(self.cache_lengths[slot]))
            self.cross_attention.move(last, slot, int(self.source_lengths[slot]))
        self.live = last
        return last

    def erase(self, slot: int) -> None:
        """Zero a slot's states, keys and values: what is not a number would outlive its row there."""
        self.states.erase(slot)
        self.cross_attention.erase(slot)

    def tighten(self) -> None:
        """Shrink the views to the longest live row, after rows have left."""
        if self.live:
            self.cross_attention.fit(int(self.source_lengths[: self.live].max()), self.live)

    def clear(self) -> None:
        """Free all slots and forget their content, after a failed step."""
        self.live = 0
        self.states.clear()
        self.cross_attention.clear()
