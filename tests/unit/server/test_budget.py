"""A budget in bytes becomes slots and positions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.export.bundle import SSRU, Limits, Shape
from dragoman.server.budget import plan_pool, view_size
from dragoman.server.errors import StartupError
from dragoman.server.slot_types import SlotTypes

CACHE = Shape(vocab_size=100, num_heads=2, head_dim=4, num_decoder_layers=3)
CELLS = Shape(vocab_size=100, num_heads=2, head_dim=4, num_decoder_layers=3, decoder_layer=SSRU, cell_width=8)
HALF = SlotTypes(np.dtype(np.float16), np.dtype(np.float16))
LIMITS = Limits(max_source_tokens=100, max_target_tokens=60)
POSITION = 2 * 3 * 2 * 4 * 4  # key and value of every layer, float32
CELL = 2 * 3 * 8 * 4
BYTES = SlotTypes(np.dtype(np.int8), np.dtype(np.int8), cross_last=True)
TYPES = (SlotTypes(), HALF, BYTES, SlotTypes(cross_last=True), SlotTypes(np.dtype(np.int8), cross_last=True))


def test_enough_memory_gives_every_row_its_longest_text() -> None:
    """More memory than that is not taken."""
    size = plan_pool(7, CACHE, LIMITS, cache_bytes=1 << 40)

    assert size.rows == 7
    assert size.nbytes == 7 * (100 + 60) * POSITION
    assert size.fits(7, 100, 60)
    assert not size.fits(8, 1, 1)


def test_half_precision_takes_half_the_memory() -> None:
    """Bytes of a number are the graphs' business."""
    assert plan_pool(7, CACHE, LIMITS, HALF, cache_bytes=1 << 40).nbytes == 7 * (100 + 60) * POSITION // 2


def test_bytes_take_a_quarter_and_last_positions_as_much_as_one_of_floats() -> None:
    """Every row has its last source position as float32."""
    assert plan_pool(7, CACHE, LIMITS, BYTES, cache_bytes=1 << 40).nbytes == 7 * ((100 + 60) // 4 + 1) * POSITION


def test_last_positions_leave_fewer_rows_in_a_small_budget() -> None:
    """Slots that no text would find room in are not made."""
    budget = 160 * POSITION // 4 + 3 * POSITION
    size = plan_pool(1000, CACHE, LIMITS, BYTES, cache_bytes=budget)

    assert size.rows == 1
    assert size.fits(1, 100, 60)


@pytest.mark.parametrize("shape", [CACHE, CELLS])
def test_a_budget_that_holds_no_text_is_refused(shape: Shape) -> None:
    """The message says how much is needed; that much is enough."""
    with pytest.raises(StartupError, match="cache_bytes is 1000; give it") as caught:
        plan_pool(4, shape, LIMITS, cache_bytes=1000)
    least = int(str(caught.value).split("needs ")[1].split()[0])

    assert least == (160 * POSITION if shape is CACHE else 100 * POSITION + CELL)
    assert plan_pool(4, shape, LIMITS, cache_bytes=least).fits(1, 100, 60)
    with pytest.raises(StartupError):
        plan_pool(4, shape, LIMITS, cache_bytes=least - 1)


def needs(shape: Shape, types: SlotTypes) -> tuple[int, int, int]:
    """Return the bytes of a source position, of a target position, and of a row besides."""
    in_source, in_target = (POSITION // 4 * kind.itemsize for kind in (types.cross, types.states))
    last = POSITION if types.cross_last else 0
    return (in_source, in_target, last) if shape is CACHE else (in_source, 0, last + CELL // 4 * types.states.itemsize)


@given(
    rows=st.integers(1, 300),
    shape=st.sampled_from([CACHE, CELLS]),
    types=st.sampled_from(TYPES),
    source=st.integers(1, 600),
    target=st.integers(1, 600),
    spare=st.integers(0, 1 << 22),
)
def test_a_pool_stays_within_its_budget_and_holds_the_longest_text(
    rows: int, shape: Shape, types: SlotTypes, source: int, target: int, spare: int
) -> None:
    """For any sizes."""
    limits = Limits(max_source_tokens=source, max_target_tokens=target)
    in_source, in_target, row = needs(shape, types)
    budget = source * in_source + target * in_target + row + spare

    size = plan_pool(rows, shape, limits, types, cache_bytes=budget)

    assert size.nbytes <= budget
    assert 1 <= size.rows <= rows
    assert size.fits(1, source, target)
    assert not size.fits(1, source + 1, target)
    assert size.nbytes == size.source_positions * in_source + size.target_positions * in_target + size.rows * row
    if budget >= rows * (source * in_source + target * in_target + row):
        assert size.fits(rows, source, target)


@given(needed=st.integers(1, 2000), longest=st.integers(1, 2000))
def test_a_view_holds_what_is_needed_and_little_more(needed: int, longest: int) -> None:
    """At most 16 positions or a quarter too many, and never more than the longest row."""
    size = view_size(min(needed, longest), longest)

    assert min(needed, longest) <= size <= longest
    assert size < needed + max(16, needed / 4) or size == 16


def test_there_are_few_sizes_of_views() -> None:
    """Each size has bindings of its own."""
    assert len({view_size(needed, 2048) for needed in range(1, 2049)}) <= 32
    assert [view_size(n, 1000) for n in (1, 16, 17, 65, 128, 129, 999)] == [16, 16, 32, 80, 128, 160, 1000]
