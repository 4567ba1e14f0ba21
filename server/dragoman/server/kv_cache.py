"""The slot pool: layer states, keys and values of the source, and counters of every live row, allocated once.

Live rows are the first `live` slots, always: a new row takes the next slot, and when a row leaves,
the last one moves into its place. So a decode step binds a prefix of each buffer, without a copy.

A buffer is as large as its longest possible row, but is *viewed* with a tight length: positions per
row are a power of two that just holds the longest live row. Attention kernels on the CPU work over
the whole view, so short texts must not pay for a length that nobody in the batch has. When the
longest row outgrows the view or leaves, the live rows are laid out anew inside the same memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dragoman.export import bundle
from dragoman.export.bundle import Limits, Shape
from dragoman.server.layer_states import Array, Cells, LayerStates
from dragoman.server.scheduler import bucket


class Buffers:
    """One length axis: all keys and values that share it, with a common view length.

    Attributes:
        size: Positions per row in the current view.
    """

    def __init__(self, count: int, rows: int, shape: Shape, longest: int) -> None:
        """Allocate `count` buffers of [rows, H, longest, D] float32."""
        self.size = min(bucket(1), longest)
        self._longest = longest
        self._rows = rows
        self._heads, self._dim = shape.num_heads, shape.head_dim
        self._flat = [np.empty(rows * self._heads * longest * self._dim, np.float32) for _ in range(count)]
        # Filled: np.zeros would leave it to the first long texts to commit the memory, and what lies
        # in fresh memory may be a NaN, which is NaN even times weight 0.
        self.clear()

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(flat.nbytes for flat in self._flat)

    def view(self, index: int) -> Array:
        """Return buffer `index` as [rows, H, size, D]."""
        used = self._rows * self._heads * self.size * self._dim
        return self._flat[index][:used].reshape(self._rows, self._heads, self.size, self._dim)

    def views(self) -> list[Array]:
        """Return all buffers as [rows, H, size, D]."""
        return [self.view(i) for i in range(len(self._flat))]

    def fit(self, needed: int, live: int) -> None:
        """Give the view the smallest size that holds `needed` positions; keeps the `live` first rows."""
        size = min(bucket(needed), self._longest)
        if size == self.size:
            return
        kept = min(size, self.size)
        before = self.views()
        self.size = size
        for old, new in zip(before, self.views(), strict=True):
            new[:live, :, :kept] = old[:live, :, :kept].copy()  # the same memory: one buffer at a time

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the `length` first positions of a row from one slot to another."""
        for view in self.views():
            view[target, :, :length] = view[source, :, :length]

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


def make_states(rows: int, shape: Shape, limits: Limits) -> LayerStates:
    """Allocate the states of a bundle's decoder layers."""
    if shape.decoder_layer == bundle.SSRU:
        return Cells(shape.num_decoder_layers, rows, shape.cell_width)
    return SelfAttentionCache(2 * shape.num_decoder_layers, rows, shape, limits.max_target_tokens)


class CachePool:
    """Slots with their states, caches and counters.

    Attributes:
        rows: Number of slots.
        live: Slots in use; they are the first ones.
        states: What the decoder layers know of the generated tokens.
        cross_attention: Key, value, key, value, ... of the source.
        input_ids: [rows, 1] int64, the token each row reads next.
        cache_lengths: [rows] int64, tokens that each row has read.
        source_lengths: [rows] int64.
        max_new_tokens: [rows] int64.
    """

    def __init__(self, rows: int, shape: Shape, limits: Limits) -> None:
        """Allocate everything."""
        self.rows = rows
        self.live = 0
        self.states = make_states(rows, shape, limits)
        self.cross_attention = Buffers(2 * shape.num_decoder_layers, rows, shape, limits.max_source_tokens)
        self.input_ids = np.zeros((rows, 1), np.int64)
        self.cache_lengths = np.zeros(rows, np.int64)
        self.source_lengths = np.zeros(rows, np.int64)
        self.max_new_tokens = np.zeros(rows, np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of layer states, keys and values."""
        return self.states.nbytes + self.cross_attention.nbytes

    @property
    def free(self) -> int:
        """Slots nobody owns."""
        return self.rows - self.live

    def admit(self, cross: list[Array], source_lengths: list[int], max_new_tokens: list[int], start: int) -> None:
        """Give the next slots to newly encoded rows.

        Args:
            cross: Key, value, ... [B, H, S, D] in layer order, from the encoder.
            source_lengths: B lengths.
            max_new_tokens: B limits.
            start: The decoder's first input.
        """
        slots = slice(self.live, self.live + len(source_lengths))
        if slots.stop > self.rows:
            raise AssertionError(f"{slots.stop} rows admitted to {self.rows} slots")
        self.source_lengths[slots] = source_lengths
        self.max_new_tokens[slots] = max_new_tokens
        self.cache_lengths[slots] = 0
        self.input_ids[slots] = start
        self.states.begin(slots)
        self.cross_attention.fit(int(self.source_lengths[: slots.stop].max()), self.live)
        length = max(source_lengths)
        for view, values in zip(self.cross_attention.views(), cross, strict=True):
            view[slots, :, :length] = values[:, :, :length]
        self.live = slots.stop

    def reserve(self) -> None:
        """Make room for one more token in every live row."""
        if self.live:
            self.states.fit(int(self.cache_lengths[: self.live].max()) + 1, self.live)

    def append(self, tokens: NDArray[np.int64]) -> None:
        """Account for a decode step: `tokens` [live] are what the live rows read next."""
        self.states.commit(self.live)
        self.cache_lengths[: self.live] += 1
        self.input_ids[: self.live, 0] = tokens

    def release(self, slot: int) -> int:
        """Free a slot; returns the slot whose row moved into it (the last live one)."""
        last = self.live - 1
        if not 0 <= slot <= last:
            raise AssertionError(f"slot {slot} released, live are 0 to {last}")
        if slot != last:
            for counters in (self.input_ids, self.cache_lengths, self.source_lengths, self.max_new_tokens):
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
