"""The slot pool, on the host and in a device's memory, against a naive one: rows, each with its own arrays."""

import itertools
import resource
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dragoman.export.bundle import Limits, Shape
from dragoman.server.budget import view_size
from dragoman.server.device_memory import Array
from dragoman.server.kv_cache import Buffers, CachePool
from tests.fakes.device import placed, seen
from tests.fakes.memories import PLACES, make_memory
from tests.fakes.pools import make_pool

SHAPE = Shape(vocab_size=100, num_heads=2, head_dim=3, num_decoder_layers=2)
LIMITS = Limits(max_source_tokens=70, max_target_tokens=40)
ROWS = 5
START = 2


def random_caches(seed: int, rows: int, length: int) -> list[Array]:
    shape = (rows, SHAPE.num_heads, length, SHAPE.head_dim)
    generator = np.random.default_rng(seed)
    return [generator.random(shape, np.float32) for _ in range(2 * SHAPE.num_decoder_layers)]


def admit(pool: CachePool, *source_lengths: int, seed: int = 0) -> list[Array]:
    """Admit rows with random caches; returns these."""
    return admit_beams(pool, source_lengths, [1] * len(source_lengths), seed)


def admit_beams(pool: CachePool, source_lengths: Sequence[int], widths: Sequence[int], seed: int) -> list[Array]:
    """Admit rows with as many slots as their widths say."""
    cross = random_caches(seed, len(source_lengths), max(source_lengths))
    pool.admit(placed(cross, pool.memory), source_lengths, widths, START)
    return cross


@pytest.fixture(params=PLACES)
def pool(request: pytest.FixtureRequest) -> CachePool:
    return make_pool(ROWS, SHAPE, LIMITS, memory=make_memory(request.param))


def test_new_rows_take_the_next_slots(pool: CachePool) -> None:
    """Admission fills counters and cross-attention of the slots behind the live ones."""
    admit(pool, 4, seed=1)
    cross = admit(pool, 6, 3, seed=2)

    assert (pool.live, pool.free) == (3, 2)
    assert pool.source_lengths[:3].tolist() == [4, 6, 3]
    assert pool.cache_lengths[:3].tolist() == [0, 0, 0]
    assert pool.input_ids[:3, 0].tolist() == [START] * 3
    for view, values in zip(seen(pool.cross_attention.views()), cross, strict=True):
        np.testing.assert_array_equal(view[1, :, :6], values[0])
        np.testing.assert_array_equal(view[2, :, :3], values[1, :, :3])


def test_a_step_moves_every_live_row_on(pool: CachePool) -> None:
    """Each live row has one more token in its cache and reads its new token next."""
    admit(pool, 4, 4)

    pool.append(np.array([11, 12], np.int64))

    assert pool.cache_lengths.tolist() == [1, 1, 0, 0, 0]
    assert pool.input_ids[:, 0].tolist() == [11, 12, 0, 0, 0]


@pytest.mark.parametrize("slot", [0, 1])
def test_the_last_row_moves_into_a_freed_slot(pool: CachePool, slot: int) -> None:
    """Live rows stay compact, and the answer says which slot is now empty."""
    admit(pool, 4, 5, 6)
    pool.append(np.array([10, 11, 12], np.int64))
    last = [view[2].copy() for view in seen(pool.cross_attention.views())]

    emptied = pool.release(slot)

    assert emptied == 2
    assert pool.live == 2
    assert pool.source_lengths[slot] == 6
    assert pool.input_ids[slot, 0] == 12
    for view, values in zip(seen(pool.cross_attention.views()), last, strict=True):
        np.testing.assert_array_equal(view[slot, :, :6], values[:, :6])


def test_the_last_row_leaves_without_moving(pool: CachePool) -> None:
    """Nothing is copied when the freed slot is the last live one."""
    admit(pool, 4, 5)

    emptied = pool.release(1)

    assert emptied == 1
    assert pool.source_lengths[: pool.live].tolist() == [4]


def test_views_are_as_short_as_the_longest_live_row_allows(pool: CachePool) -> None:
    """Cross-attention grows for a long source and shrinks when that row has left."""
    admit(pool, 10)
    admit(pool, 60)
    grown = pool.cross_attention.size
    pool.release(1)
    pool.tighten()

    assert grown == 64
    assert pool.cross_attention.size == 16


def test_views_never_exceed_the_limit(pool: CachePool) -> None:
    """The largest view is the bundle's limit, not the next power of two."""
    admit(pool, LIMITS.max_source_tokens)
    for _ in range(LIMITS.max_target_tokens):
        pool.reserve()
        pool.append(np.array([9], np.int64))

    assert pool.cross_attention.size == LIMITS.max_source_tokens
    assert pool.states.size == LIMITS.max_target_tokens


def test_a_limit_below_the_smallest_bucket_is_kept() -> None:
    """A bundle for very short texts gets a view of just that length."""
    small = make_pool(2, SHAPE, Limits(max_source_tokens=5, max_target_tokens=7))

    assert (small.cross_attention.size, small.states.size) == (5, 7)


def test_clearing_frees_all_slots_and_forgets_what_a_failed_step_wrote(pool: CachePool) -> None:
    """No NaN of a failed step survives: times weight 0 it would still be NaN in another row."""
    admit(pool, 4, 40)
    for view in seen([*pool.states.views(), *pool.cross_attention.views()]):
        view.fill(np.nan)

    pool.clear()

    assert pool.live == 0
    assert not any(view.any() for view in seen([*pool.states.views(), *pool.cross_attention.views()]))


def test_each_beam_of_a_text_has_the_texts_source(pool: CachePool) -> None:
    """A text takes as many slots as it has beams, and the next text those behind."""
    cross = admit_beams(pool, [9, 5], [3, 1], seed=3)

    assert pool.live == 4
    assert pool.source_lengths[:4].tolist() == [9, 9, 9, 5]
    for view, values in zip(seen(pool.cross_attention.views()), cross, strict=True):
        for slot in range(3):
            np.testing.assert_array_equal(view[slot, :, :9], values[0])
        np.testing.assert_array_equal(view[3, :, :5], values[1, :, :5])


def test_rows_go_on_from_their_parents(pool: CachePool) -> None:
    """Also when two rows swap, and when one is the parent of several."""
    admit_beams(pool, [4], [4], seed=1)
    pool.reserve()
    written = random_caches(2, 4, 1)
    for view, values in zip(seen(pool.states.views()), written, strict=True):
        view[:4, :, :1] = values
    pool.append(np.array([5, 6, 7, 8], np.int64))

    pool.reorder(np.array([1, 0, 2, 2], np.int64))

    for view, values in zip(seen(pool.states.views()), written, strict=True):
        np.testing.assert_array_equal(view[:4, :, :1], values[[1, 0, 2, 2]])
    assert pool.input_ids[:4, 0].tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize("where", PLACES)
def test_few_bytes_hold_many_short_rows_or_few_long_ones(where: str) -> None:
    """The pool is a number of positions; how many rows share them depends on the longest."""
    bytes_per_position = 2 * SHAPE.num_decoder_layers * SHAPE.num_heads * SHAPE.head_dim * 4
    cache_bytes = 2 * (70 + 40) * bytes_per_position
    small = make_pool(8, SHAPE, LIMITS, cache_bytes=cache_bytes, memory=make_memory(where))

    assert where != "host" or small.nbytes <= cache_bytes
    assert small.fits(5, 16, 16)
    assert small.fits(2, 70, 40)
    assert not small.fits(3, 70, 40)
    assert not small.fits(6, 16, 16)
    admit(small, *[10] * 5)
    small.reserve()
    with pytest.raises(AssertionError, match="in a buffer for"):
        small.cross_attention.fit(70, small.live)


def test_misuse_is_an_error_of_ours(pool: CachePool) -> None:
    """More rows than slots, or a slot nobody owns, mean a bug in the engine."""
    admit(pool, 1, 1, 1, 1)

    with pytest.raises(AssertionError, match="6 rows admitted to 5 slots"):
        admit(pool, 1, 1)
    with pytest.raises(AssertionError, match="slot 4 released, live are 0 to 3"):
        pool.release(4)


def test_memory_is_what_slots_lengths_and_layers_need() -> None:
    """Bytes are rows x H x (target + source) x D x key and value x layers x 4."""
    assert make_pool(ROWS, SHAPE, LIMITS).nbytes == ROWS * 2 * (40 + 70) * 3 * 2 * 2 * 4


def test_memory_is_committed_at_the_start() -> None:
    """Buffers are resident when they have been made, not when the first long texts arrive."""
    shape = Shape(vocab_size=100, num_heads=8, head_dim=64, num_decoder_layers=1)
    before = resident_bytes()

    # 40 MiB: too large for malloc to take from memory freed before.
    buffers = Buffers(1, shape, positions=32 * 640, longest=640)

    assert resident_bytes() - before > 0.9 * buffers.nbytes


def test_laying_out_anew_takes_no_second_pool() -> None:
    """A view grows and shrinks within its memory; the copy in between is of one buffer at most."""
    buffers = Buffers(
        8,
        Shape(vocab_size=100, num_heads=4, head_dim=16, num_decoder_layers=4),
        positions=16 * 128,
        longest=128,
    )
    buffers.fit(64, live=16)
    tracemalloc.start()
    try:
        buffers.fit(128, live=16)
        buffers.fit(64, live=16)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1.5 * buffers.nbytes / 8


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@dataclass
class NaiveRow:
    """What a slot has to hold: caches cut to the row's own lengths.

    Attributes:
        cross: [H, source length, D] per buffer.
        cached: [H, tokens so far, D] per buffer.
        text: Number of its text; beams of one text have the same.
        reads_next: Input of the next step.
    """

    cross: list[Array]
    cached: list[Array]
    text: int
    reads_next: int = START


class PoolHistories(RuleBasedStateMachine):
    """Any history of admissions, steps and releases leaves every row exactly as it was written."""

    where = "host"

    def __init__(self) -> None:
        super().__init__()
        self.pool = make_pool(ROWS, SHAPE, LIMITS, memory=make_memory(self.where))
        self.rows: list[NaiveRow] = []
        self.seeds = itertools.count()
        self.addresses = self.find_addresses()

    def find_addresses(self) -> list[int]:
        """Return where every buffer begins."""
        return [view.ctypes.data for view in seen([*self.pool.states.views(), *self.pool.cross_attention.views()])]

    @precondition(lambda self: len(self.rows) < ROWS)
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        """Encode a few texts and give them slots."""
        room = ROWS - len(self.rows)
        fitting = st.lists(st.integers(1, 3), min_size=1, max_size=room).filter(lambda drawn: sum(drawn) <= room)
        widths = data.draw(fitting)
        lengths = [data.draw(st.integers(1, LIMITS.max_source_tokens)) for _ in widths]
        cross = random_caches(next(self.seeds), len(lengths), max(lengths))

        self.pool.admit(placed(cross, self.pool.memory), lengths, widths, START)

        empty = np.zeros((SHAPE.num_heads, 0, SHAPE.head_dim), np.float32)
        for index, (length, width) in enumerate(zip(lengths, widths, strict=True)):
            text = next(self.seeds)
            for _ in range(width):
                kept = [values[index, :, :length] for values in cross]
                self.rows.append(NaiveRow(kept, [empty] * len(cross), text))

    @precondition(lambda self: self.rows and max(row.cached[0].shape[1] for row in self.rows) < 40)
    @rule(steps=st.integers(1, 20))
    def step(self, steps: int) -> None:
        """Run decode steps: each writes one position behind what a row has cached."""
        room = LIMITS.max_target_tokens - max(row.cached[0].shape[1] for row in self.rows)
        for _ in range(min(steps, room)):
            self.pool.reserve()
            written = random_caches(next(self.seeds), len(self.rows), 1)
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

    @precondition(lambda self: self.rows)
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
        for slot in sorted(slots, reverse=True):
            emptied = self.pool.release(slot)
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
            for buffers, contents in ((self.pool.cross_attention, row.cross), (self.pool.states, row.cached)):
                for view, content in zip(seen(buffers.views()), contents, strict=True):
                    assert np.array_equal(view[slot, :, : content.shape[1]], content)

    @invariant()
    def memory_stays_where_it_is(self) -> None:
        """Addresses never change, so a binding made once stays right, and nothing grows."""
        assert self.find_addresses() == self.addresses
        for view in seen([*self.pool.states.views(), *self.pool.cross_attention.views()]):
            assert view.flags.c_contiguous


class DevicePoolHistories(PoolHistories):
    """The same, with a pool that is reached through copies only."""

    where = "device"


TestPoolHistories = PoolHistories.TestCase
TestDevicePoolHistories = DevicePoolHistories.TestCase
