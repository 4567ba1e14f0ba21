"""Slots with cells: what a recurrent layer knows of a row starts at zero, follows the row and ends with it.

On the host and in a device's memory.
"""

import itertools

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dragoman.export.bundle import SSRU, Limits, Shape
from dragoman.server.device_memory import Array
from dragoman.server.encoded import Encoded
from dragoman.server.kv_cache import CachePool
from tests.fakes.device import placed, seen
from tests.fakes.memories import PLACES, make_memory
from tests.fakes.pools import make_pool

SHAPE = Shape(vocab_size=100, num_heads=2, head_dim=3, num_decoder_layers=2, decoder_layer=SSRU, cell_width=5)
LIMITS = Limits(max_source_tokens=20, max_target_tokens=40)
ROWS = 4
START = 2


def admit(pool: CachePool, count: int) -> None:
    """Admit rows with one source token each."""
    cross = [np.ones((count, 2, 1, 3), np.float32)] * 4
    pool.admit(Encoded(placed(cross, pool.memory)), [1] * count, [1] * count, START)


def step(pool: CachePool, seed: int) -> Array:
    """Do what a graph does, half of the old cell plus something new; returns the something [layers, live, E]."""
    pool.reserve()
    new = np.random.default_rng(seed).random((2, pool.live, 5), np.float32)
    views, updated_views = seen(pool.states.views()), seen(pool.states.updated_views())
    for old, updated, values in zip(views, updated_views, new, strict=True):
        updated[: pool.live] = old[: pool.live] / 2 + values
    pool.append(np.full(pool.live, seed, np.int64))
    return new


@pytest.fixture(params=PLACES)
def pool(request: pytest.FixtureRequest) -> CachePool:
    return make_pool(ROWS, SHAPE, LIMITS, memory=make_memory(request.param))


def test_a_new_row_starts_from_zeros(pool: CachePool) -> None:
    """A cell has no length behind which the last owner's content could hide."""
    admit(pool, 2)
    step(pool, 1)
    for view in seen([*pool.states.views(), *pool.states.updated_views()]):
        view.fill(7)
    pool.release(1)
    admit(pool, 2)

    assert all((view[0] == 7).all() and not view[1:3].any() for view in seen(pool.states.views()))


def test_a_step_reads_what_the_last_one_wrote(pool: CachePool) -> None:
    """Inputs and outputs are two memories, and `append` carries the content over."""
    admit(pool, 2)
    first, second = step(pool, 1), step(pool, 2)

    for layer, view in enumerate(seen(pool.states.views())):
        np.testing.assert_array_equal(view[:2], first[layer] / 2 + second[layer])


def test_no_output_shares_memory_with_an_input(pool: CachePool) -> None:
    """The graph may read any input after it has written any output."""
    for view, updated in itertools.product(seen(pool.states.views()), seen(pool.states.updated_views())):
        assert not np.shares_memory(view, updated)


@pytest.mark.parametrize("slot", [0, 1])
def test_the_last_rows_cells_move_into_a_freed_slot(pool: CachePool, slot: int) -> None:
    """The row goes on from where it was."""
    admit(pool, 3)
    written = step(pool, 1)
    pool.release(slot)

    for layer, view in enumerate(seen(pool.states.views())):
        np.testing.assert_array_equal(view[slot], written[layer, 2])


def test_an_erased_slot_is_clean_and_its_neighbour_untouched(pool: CachePool) -> None:
    """What is not a number goes, in both memories."""
    admit(pool, 2)
    written = step(pool, 1)
    for view in seen([*pool.states.views(), *pool.states.updated_views()]):
        view[0] = np.nan
    pool.erase(0)

    for layer, view in enumerate(seen(pool.states.views())):
        assert not view[0].any()
        np.testing.assert_array_equal(view[1], written[layer, 1])
    assert not any(np.isnan(view).any() for view in seen(pool.states.updated_views()))


def test_clearing_forgets_what_a_failed_step_wrote(pool: CachePool) -> None:
    """Nothing of it is left in either memory."""
    admit(pool, 2)
    for view in seen([*pool.states.views(), *pool.states.updated_views()]):
        view.fill(np.nan)
    pool.clear()

    assert pool.live == 0
    assert not any(view.any() for view in seen([*pool.states.views(), *pool.states.updated_views()]))


def test_a_long_text_needs_no_more_memory_than_a_short_one(pool: CachePool) -> None:
    """The view stays what it is up to the limit on tokens, so one binding serves every length."""
    admit(pool, 1)
    for seed in range(LIMITS.max_target_tokens):
        step(pool, seed)

    assert pool.states.size == 1
    assert pool.cache_lengths[0] == LIMITS.max_target_tokens


def test_memory_counts_cells_twice_and_the_source_once() -> None:
    """Bytes are rows x (E x layers x 2 + H x source x D x key and value x layers) x 4."""
    pool = make_pool(ROWS, SHAPE, LIMITS)

    assert pool.states.nbytes == ROWS * 5 * 2 * 2 * 4
    assert pool.nbytes == pool.states.nbytes + ROWS * 2 * 20 * 3 * 2 * 2 * 4


class CellHistories(RuleBasedStateMachine):
    """Any history of admissions, steps and releases leaves every row's cells as if it had run alone."""

    where = "host"

    def __init__(self) -> None:
        super().__init__()
        self.pool = make_pool(ROWS, SHAPE, LIMITS, memory=make_memory(self.where))
        self.rows: list[Array] = []  # by slot, [layers, E]
        self.seeds = itertools.count(1)

    @precondition(lambda self: len(self.rows) < ROWS)
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        """Admit rows."""
        count = data.draw(st.integers(1, ROWS - len(self.rows)))
        admit(self.pool, count)
        self.rows += [np.zeros((2, 5), np.float32) for _ in range(count)]

    @precondition(lambda self: self.rows)
    @rule(times=st.integers(1, 3))
    def step(self, times: int) -> None:
        """Run decode steps."""
        for _ in range(times):
            new = step(self.pool, next(self.seeds))
            self.rows = [row / 2 + new[:, slot] for slot, row in enumerate(self.rows)]

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        """Let rows go on from one another's cells."""
        slots = st.integers(0, len(self.rows) - 1)
        parents = data.draw(st.lists(slots, min_size=len(self.rows), max_size=len(self.rows)))
        self.pool.reorder(np.array(parents, np.int64))
        self.rows = [self.rows[parent] for parent in parents]

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Let a row leave, perhaps because its numbers were none."""
        slot = data.draw(st.integers(0, len(self.rows) - 1))
        if data.draw(st.booleans()):
            self.pool.erase(slot)
        emptied = self.pool.release(slot)
        self.rows[slot] = self.rows[emptied]
        self.rows.pop()
        self.pool.tighten()

    @rule()
    def clear(self) -> None:
        """Lose everything, as after a failed step."""
        self.pool.clear()
        self.rows.clear()

    @invariant()
    def every_row_is_as_alone(self) -> None:
        """Slot by slot, the pool holds what the rows hold."""
        assert self.pool.live == len(self.rows)
        for layer, view in enumerate(seen(self.pool.states.views())):
            for slot, row in enumerate(self.rows):
                assert np.array_equal(view[slot], row[layer])


class DeviceCellHistories(CellHistories):
    """The same, with cells that are reached through copies only."""

    where = "device"


TestCellHistories = CellHistories.TestCase
TestDeviceCellHistories = DeviceCellHistories.TestCase
