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

import numpy as np
from numpy.typing import NDArray

from dragoman.export import bundle
from dragoman.export.bundle import Shape
from dragoman.server.budget import PoolSize
from dragoman.server.buffers import Buffers, LastPositions, SelfAttentionCache
from dragoman.server.device_memory import Memory, Mirror, Tensor
from dragoman.server.device_states import DeviceBuffers, DeviceCells, DeviceLastPositions, DeviceSelfAttentionCache
from dragoman.server.encoded import Encoded
from dragoman.server.layer_states import Cells, KeysAndValues, LastKeysAndValues, LayerStates
from dragoman.server.lineages import Lineages
from dragoman.server.row_copies import RowCopy, in_sequence
from dragoman.server.slot_types import SlotTypes

Int64s = NDArray[np.int64]
_FLOATS = SlotTypes()


def make_states(size: PoolSize, shape: Shape, types: SlotTypes, memory: Memory | None) -> LayerStates:
    """Allocate the states of a bundle's decoder layers."""
    layers, dtype = shape.num_decoder_layers, types.states
    if shape.decoder_layer == bundle.SSRU:
        if memory is not None:
            return DeviceCells(memory, layers, size.rows, shape.cell_width, dtype)
        return Cells(layers, size.rows, shape.cell_width, dtype)
    positions, longest = size.target_positions, size.longest_target
    if memory is not None:
        return DeviceSelfAttentionCache(memory, 2 * layers, shape, positions=positions, longest=longest, dtype=dtype)
    return SelfAttentionCache(2 * layers, shape, positions=positions, longest=longest, dtype=dtype)


def make_cross_attention(size: PoolSize, shape: Shape, types: SlotTypes, memory: Memory | None) -> KeysAndValues:
    """Allocate keys and values of the source for a bundle's decoder layers."""
    count, positions, longest = 2 * shape.num_decoder_layers, size.source_positions, size.longest_source
    if memory is not None:
        return DeviceBuffers(memory, count, shape, positions=positions, longest=longest, dtype=types.cross)
    return Buffers(count, shape, positions=positions, longest=longest, dtype=types.cross)


def make_cross_last(size: PoolSize, shape: Shape, types: SlotTypes, memory: Memory | None) -> LastKeysAndValues | None:
    """Allocate keys and values of the last source position, if the decoder reads them."""
    if not types.cross_last:
        return None
    return LastPositions(size.rows, shape) if memory is None else DeviceLastPositions(memory, size.rows, shape)


class CachePool:
    """Slots with their states, caches and counters.

    Attributes:
        memory: Where the graphs compute; None means the host's.
        rows: Number of slots.
        live: Slots in use; they are the first ones.
        states: What the decoder layers know of the generated tokens.
        cross_attention: Key, value, key, value, ... of the source.
        cross_last: The same of the last source position alone; None if the decoder does not read it.
        input_ids: [rows, 1] int64, the token each row reads next.
        cache_lengths: [rows] int64, tokens that each row has read.
        source_lengths: [rows] int64.
    """

    def __init__(self, size: PoolSize, shape: Shape, types: SlotTypes = _FLOATS, memory: Memory | None = None) -> None:
        """Allocate everything.

        Args:
            size: From the budget.
            shape: Of the bundle.
            types: Of the numbers in keys, values and cells.
            memory: Where the graphs compute; None means the host's.

        Raises:
            MemoryError: There is not so much.
        """
        self._size = size
        self.memory = memory
        self.rows = size.rows
        self.live = 0
        self.states = make_states(size, shape, types, memory)
        self.cross_attention = make_cross_attention(size, shape, types, memory)
        self.cross_last = make_cross_last(size, shape, types, memory)
        self._lineages = Lineages(size.rows, size.longest_target if size.target_positions else 0)
        self._counters = Mirror(memory, (3, size.rows), np.int64)
        ids, self.cache_lengths, self.source_lengths = self._counters.host
        self.input_ids = ids.reshape(size.rows, 1)

    @property
    def nbytes(self) -> int:
        """Bytes of layer states, keys and values."""
        last = self.cross_last.nbytes if self.cross_last is not None else 0
        return self.states.nbytes + self.cross_attention.nbytes + last

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

    def admit(self, encoded: Encoded, source_lengths: Sequence[int], widths: Sequence[int], start: int) -> None:
        """Give the next slots to newly encoded texts.

        Args:
            encoded: B sources, from the encoder.
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
        self.cross_attention.write(slots.start, widths, encoded.cross)
        if self.cross_last is not None:
            self.cross_last.write(slots.start, widths, encoded.last)
        self.live = slots.stop

    def reserve(self) -> None:
        """Make room for one more token in every live row."""
        if self.live:
            self.states.fit(int(self.cache_lengths[: self.live].max()) + 1, self.live)

    def append(self, tokens: Int64s) -> None:
        """Account for a decode step: `tokens` [live] are what the live rows read next."""
        self.states.commit(self.live)
        self._lineages.append(self.cache_lengths[: self.live])
        self.cache_lengths[: self.live] += 1
        self.input_ids[: self.live, 0] = tokens

    def reorder(self, parents: Int64s) -> None:
        """Let row i go on from the states of row parents[i], for hypotheses of one text; `parents` is [live] int64.

        Only rows whose parent is another one are copied, from where the two differ. Their sources are the same.
        """
        rows = (parents != np.arange(self.live)).nonzero()[0]
        if rows.size:
            lengths = self.cache_lengths[parents[rows]]
            self.states.copy_rows(in_sequence(self._lineages.follow(rows, parents[rows], lengths)))
            self.cache_lengths[rows] = lengths

    def release(self, slot: int) -> int:
        """Free a slot; returns the slot whose row moved into it (the last live one)."""
        return self.release_all([slot])[0]

    def release_all(self, slots: Sequence[int]) -> list[int]:
        """Free slots one after the other; returns for each the slot whose row, then the last live one, moved into it.

        Nothing is copied before it is known where each row ends up.
        """
        lasts: list[int] = []
        moved: dict[int, int] = {}  # by target
        for slot in slots:
            last = self.live - 1
            if not 0 <= slot <= last:
                raise AssertionError(f"slot {slot} released, live are 0 to {last}")
            row = moved.pop(last, last)
            if slot != last:
                moved[slot] = row
            self.live = last
            lasts.append(last)
        if moved:
            self._move(np.array(list(moved.values())), np.array(list(moved)))
        return lasts

    def _move(self, sources: Int64s, targets: Int64s) -> None:
        """Move rows from slots that are not live any more to slots that are."""
        counters = self._counters.host
        counters[:, targets] = counters[:, sources]
        self._lineages.move(sources, targets)
        pairs = list(zip(targets.tolist(), sources.tolist(), strict=True))
        lengths, source_lengths = self.cache_lengths[targets].tolist(), self.source_lengths[targets].tolist()
        self.states.copy_rows([RowCopy(*pair, 0, length) for pair, length in zip(pairs, lengths, strict=True)])
        copies = [RowCopy(*pair, 0, length) for pair, length in zip(pairs, source_lengths, strict=True)]
        self.cross_attention.copy_rows(copies)
        if self.cross_last is not None:
            self.cross_last.copy_rows(copies)

    def erase(self, slot: int) -> None:
        """Zero a slot's states, keys and values: what is not a number would outlive its row there."""
        self.states.erase(slot)
        self._lineages.erase(slot)
        self.cross_attention.erase(slot)
        if self.cross_last is not None:
            self.cross_last.erase(slot)

    def tighten(self) -> None:
        """Shrink the views to the longest live row, after rows have left."""
        if self.live:
            self.cross_attention.fit(int(self.source_lengths[: self.live].max()), self.live)

    def clear(self) -> None:
        """Free all slots and forget their content, after a failed step."""
        self.live = 0
        self.states.clear()
        self.cross_attention.clear()
        if self.cross_last is not None:
            self.cross_last.clear()
