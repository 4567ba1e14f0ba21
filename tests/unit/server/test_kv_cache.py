"""The slot pool, on the host and in a device's memory: what stands in which slot, and how wide it is viewed."""

import numpy as np
import pytest

from dragoman.export.bundle import Limits
from dragoman.server.budget import plan_pool
from dragoman.server.device_memory import Array
from dragoman.server.kv_cache import CachePool
from tests.fakes.caches import LIMITS, ROWS, SHAPE, START, TYPES, admit, admit_beams, buffers_of, random_caches
from tests.fakes.device import seen
from tests.fakes.memories import PLACES, make_memory
from tests.fakes.pools import PLENTY, make_pool


@pytest.fixture(params=[(place, kind) for place in PLACES for kind in TYPES], ids="-".join)
def pool(request: pytest.FixtureRequest) -> CachePool:
    place, kind = request.param
    return make_pool(ROWS, SHAPE, LIMITS, types=TYPES[kind], memory=make_memory(place))


def test_new_rows_take_the_next_slots(pool: CachePool) -> None:
    """Admission fills counters and cross-attention of the slots behind the live ones."""
    admit(pool, 4, seed=1)
    encoded = admit(pool, 6, 3, seed=2)

    assert (pool.live, pool.free) == (3, 2)
    assert pool.source_lengths[:3].tolist() == [4, 6, 3]
    assert pool.cache_lengths[:3].tolist() == [0, 0, 0]
    assert pool.input_ids[:3, 0].tolist() == [START] * 3
    for view, values in zip(seen(pool.cross_attention.views()), encoded.cross, strict=True):
        np.testing.assert_array_equal(view[1, :, :6], values[0])
        np.testing.assert_array_equal(view[2, :, :3], values[1, :, :3])
    if pool.cross_last is not None:
        np.testing.assert_array_equal(seen([pool.cross_last.tensor])[0][1:3], encoded.last)


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
    for view in buffers_of(pool):
        view.fill(np.nan if view.dtype.kind == "f" else 127)

    pool.clear()

    assert pool.live == 0
    assert not any(view.any() for view in buffers_of(pool))


def test_an_erased_slot_is_clean_and_its_neighbour_untouched(pool: CachePool) -> None:
    """What is not a number goes, wherever it is."""
    admit(pool, 4, 40)
    for view in buffers_of(pool):
        view[:2] = np.nan if view.dtype.kind == "f" else 127

    pool.erase(0)

    assert not any(view[0].any() for view in buffers_of(pool))
    assert all(view[1].all() for view in buffers_of(pool))


def test_each_beam_of_a_text_has_the_texts_source(pool: CachePool) -> None:
    """A text takes as many slots as it has beams, and the next text those behind."""
    encoded = admit_beams(pool, [9, 5], [3, 1], seed=3)

    assert pool.live == 4
    assert pool.source_lengths[:4].tolist() == [9, 9, 9, 5]
    for view, values in zip(seen(pool.cross_attention.views()), encoded.cross, strict=True):
        for slot in range(3):
            np.testing.assert_array_equal(view[slot, :, :9], values[0])
        np.testing.assert_array_equal(view[3, :, :5], values[1, :, :5])
    if pool.cross_last is not None:
        assert encoded.last is not None
        np.testing.assert_array_equal(seen([pool.cross_last.tensor])[0][:4], encoded.last[[0, 0, 0, 1]])


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


def write_step(pool: CachePool, seed: int) -> None:
    """Do what a step does: random states behind what each row has read."""
    pool.reserve()
    views = seen(pool.states.views())
    for view, values in zip(views, random_caches(seed, pool.live, 1, views[0].dtype), strict=True):
        for slot in range(pool.live):
            view[slot, :, pool.cache_lengths[slot]] = values[slot, :, 0]
    pool.append(np.zeros(pool.live, np.int64))


def states_of(pool: CachePool, slot: int) -> list[Array]:
    return [view[slot, :, : pool.cache_lengths[slot]].copy() for view in seen(pool.states.views())]


@pytest.mark.parametrize("event", ["move", "erase"])
def test_a_row_goes_on_from_its_parent_after_other_content_came_into_its_slot(pool: CachePool, event: str) -> None:
    """What the slot's last owner had in common with the parent does not count."""
    admit_beams(pool, [4], [3], seed=1)
    write_step(pool, 2)
    pool.reorder(np.array([0, 0, 2], np.int64))
    if event == "move":
        pool.release(1)
    else:
        pool.erase(1)
    expected = states_of(pool, 0)

    pool.reorder(np.zeros(pool.live, np.int64))

    for content, values in zip(states_of(pool, 1), expected, strict=True):
        np.testing.assert_array_equal(content, values)


def test_rows_that_leave_together_leave_no_gap(pool: CachePool) -> None:
    """Also where the row that would move into a gap leaves too, or moves on."""
    admit(pool, 1, 2, 3, 4, 5)

    lasts = pool.release_all([3, 1])

    assert (lasts, pool.live) == ([4, 3], 3)
    assert pool.source_lengths[:3].tolist() == [1, 5, 3]


@pytest.mark.parametrize("where", PLACES)
def test_a_long_row_makes_room_for_new_ones(where: str) -> None:
    """They take the slots of a wide view that had fewer: what lies behind its memory is not read."""
    cache_bytes = (70 + 40) * 2 * SHAPE.num_decoder_layers * SHAPE.num_heads * SHAPE.head_dim * 4
    small = make_pool(4, SHAPE, LIMITS, cache_bytes=cache_bytes, memory=make_memory(where))
    admit(small, 70)
    for seed in range(LIMITS.max_target_tokens):
        write_step(small, seed)
    small.release(0)

    encoded = admit(small, 10, 9, seed=7)
    write_step(small, 8)

    assert (small.cross_attention.size, small.states.size) == (16, 16)
    for view, values in zip(seen(small.cross_attention.views()), encoded.cross, strict=True):
        np.testing.assert_array_equal(view[1, :, :9], values[1, :, :9])
    written = random_caches(8, 2, 1)
    for view, values in zip(seen(small.states.views()), written, strict=True):
        np.testing.assert_array_equal(view[:2, :, 0], values[:, :, 0])


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
    """Bytes are rows x H x (target + source) x D x key and value x layers x 4; all of it is in the plan."""
    assert make_pool(ROWS, SHAPE, LIMITS).nbytes == ROWS * 2 * (40 + 70) * 3 * 2 * 2 * 4


@pytest.mark.parametrize("kind", TYPES)
def test_the_plan_knows_what_a_pool_takes(kind: str) -> None:
    """Each kind of numbers in its own size, the last positions in float32."""
    types = TYPES[kind]
    pool = make_pool(ROWS, SHAPE, LIMITS, types=types)
    numbers = 2 * 3 * 2 * 2  # of a position: H x D x key and value x layers
    last = 4 * types.cross_last

    assert pool.nbytes == ROWS * numbers * (40 * types.states.itemsize + 70 * types.cross.itemsize + last)
    assert pool.nbytes == plan_pool(ROWS, SHAPE, LIMITS, types, cache_bytes=PLENTY).nbytes
