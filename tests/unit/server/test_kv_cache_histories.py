"""The slot pool under any history, on the host and in a device's memory, against rows with their own arrays."""

import itertools
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dragoman.server.budget import view_size
from dragoman.server.device_memory import Array
from tests.fakes.caches import LIMITS, ROWS, SHAPE, START, TYPES, admit_beams, buffers_of, random_caches
from tests.fakes.device import seen
from tests.fakes.memories import make_memory
from tests.fakes.pools import make_pool


@dataclass
class NaiveRow:
    """What a slot has to hold: caches cut to the row's own lengths.

    Attributes:
        cross: [H, source length, D] per buffer.
        last: [2L, H * D], if the pool has it.
        cached: [H, tokens so far, D] per buffer.
        text: Number of its text; beams of one text have the same.
        reads_next: Input of the next step.
    """

    cross: list[Array]
    last: Array | None
    cached: list[Array]
    text: int
    reads_next: int = START


class PoolHistories(RuleBasedStateMachine):
    """Any history of admissions, steps and releases leaves every row exactly as it was written."""

    where = "host"
    types = TYPES["floats"]

    def __init__(self) -> None:
        super().__init__()
        self.pool = make_pool(ROWS, SHAPE, LIMITS, types=self.types, memory=make_memory(self.where))
        self.rows: list[NaiveRow] = []
        self.seeds = itertools.count()
        self.addresses = self.find_addresses()

    def find_addresses(self) -> list[int]:
        """Return where every buffer begins."""
        return [view.ctypes.data for view in buffers_of(self.pool)]

    @precondition(lambda self: len(self.rows) < ROWS)
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        """Encode a few texts and give them slots."""
        room = ROWS - len(self.rows)
        fitting = st.lists(st.integers(1, 3), min_size=1, max_size=room).filter(lambda drawn: sum(drawn) <= room)
        widths = data.draw(fitting)
        lengths = [data.draw(st.integers(1, LIMITS.max_source_tokens)) for _ in widths]
        encoded = admit_beams(self.pool, lengths, widths, next(self.seeds))

        empty = np.zeros((SHAPE.num_heads, 0, SHAPE.head_dim), self.types.states)
        for index, (length, width) in enumerate(zip(lengths, widths, strict=True)):
            text = next(self.seeds)
            for _ in range(width):
                kept = [values[index, :, :length] for values in encoded.cross]
                last = None if encoded.last is None else encoded.last[index]
                self.rows.append(NaiveRow(kept, last, [empty] * len(kept), text))

    @precondition(lambda self: self.rows and max(row.cached[0].shape[1] for row in self.rows) < 40)
    @rule(steps=st.integers(1, 20))
    def step(self, steps: int) -> None:
        """Run decode steps: each writes one position behind what a row has cached."""
        room = LIMITS.max_target_tokens - max(row.cached[0].shape[1] for row in self.rows)
        for _ in range(min(steps, room)):
            self.pool.reserve()
            written = random_caches(next(self.seeds), len(self.rows), 1, self.types.states)
            for view, values in zip(seen(self.pool.states.views()), written, strict=True):
                for slot in range(self.pool.live):
                    view[slot, :, self.pool.cache_lengths[slot]] = values[slot, :, 0]
            tokens = np.arange(len(self.rows)) + 1000 * (1 + next(self.seeds))
            self.pool.append(tokens)
            for slot, row in enumerate(self.rows):
                row.cached = [
                    np.concatenate([old, values[slot]], axis=1) for old, values in zip(row.cached, written, strict=True)
                ]
                row.reads_next = int(tokens[slot])

    @precondition(lambda self: self.has_kin() and max(row.cached[0].shape[1] for row in self.rows) < 36)
    @rule(data=st.data(), steps=st.integers(1, 4))
    def search(self, data: st.DataObject, steps: int) -> None:
        """Run decode steps, each of which ends with a choice of hypotheses."""
        for _ in range(steps):
            self.step(1)
            self.reorder(data)

    def has_kin(self) -> bool:
        """Whether some text has several rows."""
        return len({row.text for row in self.rows}) < len(self.rows)

    @precondition(lambda self: self.has_kin())
    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        """Let hypotheses of a text go on from one another's states."""
        same = [[slot for slot, other in enumerate(self.rows) if other.text == row.text] for row in self.rows]
        parents = [data.draw(st.sampled_from(slots)) for slots in same]

        self.pool.reorder(np.array(parents, np.int64))

        caches = [row.cached for row in self.rows]
        for row, parent in zip(self.rows, parents, strict=True):
            row.cached = caches[parent]

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Let rows leave, from the back as the engine does, then tighten."""
        slots = data.draw(st.sets(st.integers(0, len(self.rows) - 1), min_size=1))
        ordered = sorted(slots, reverse=True)
        together = data.draw(st.booleans())
        lasts = self.pool.release_all(ordered) if together else [self.pool.release(slot) for slot in ordered]
        for slot, emptied in zip(ordered, lasts, strict=True):
            assert emptied == len(self.rows) - 1
            self.rows[slot] = self.rows[emptied]
            self.rows.pop()
        self.pool.tighten()
        self.pool.reserve()
        if self.rows:
            longest = max(row.cross[0].shape[1] for row in self.rows)
            assert self.pool.cross_attention.size == view_size(longest, LIMITS.max_source_tokens)
            cached = max(row.cached[0].shape[1] for row in self.rows) + 1
            assert self.pool.states.size == view_size(cached, LIMITS.max_target_tokens)

    @rule()
    def clear(self) -> None:
        """Lose everything, as after a failed step."""
        self.pool.clear()
        self.rows.clear()

    @invariant()
    def every_row_is_as_written(self) -> None:
        """Slot by slot, the pool holds what the naive rows hold."""
        assert self.pool.live == len(self.rows)
        for slot, row in enumerate(self.rows):
            assert self.pool.source_lengths[slot] == row.cross[0].shape[1]
            assert self.pool.cache_lengths[slot] == row.cached[0].shape[1]
            assert self.pool.input_ids[slot, 0] == row.reads_next
            if self.pool.cross_last is not None:
                assert row.last is not None
                assert np.array_equal(seen([self.pool.cross_last.tensor])[0][slot], row.last)
            for buffers, contents in ((self.pool.cross_attention, row.cross), (self.pool.states, row.cached)):
                for view, content in zip(seen(buffers.views()), contents, strict=True):
                    assert np.array_equal(view[slot, :, : content.shape[1]], content)

    @invariant()
    def memory_stays_where_it_is(self) -> None:
        """Addresses never change, so a binding made once stays right, and nothing grows."""
        assert self.find_addresses() == self.addresses
        for view in buffers_of(self.pool):
            assert view.flags.c_contiguous


class DevicePoolHistories(PoolHistories):
    """The same, with a pool that is reached through copies only."""

    where = "device"


class BytePoolHistories(PoolHistories):
    """The same, with keys and values of 8 bits and the last source positions."""

    types = TYPES["bytes-last"]


class MixedPoolHistories(PoolHistories):
    """The same, with a type for each kind."""

    types = TYPES["mixed"]


class DeviceBytePoolHistories(DevicePoolHistories):
    """Bytes in a device's memory."""

    types = TYPES["bytes-last"]


TestPoolHistories = PoolHistories.TestCase
TestDevicePoolHistories = DevicePoolHistories.TestCase
TestBytePoolHistories = BytePoolHistories.TestCase
TestMixedPoolHistories = MixedPoolHistories.TestCase
TestDeviceBytePoolHistories = DeviceBytePoolHistories.TestCase
