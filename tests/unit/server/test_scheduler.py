from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.model.vocab import SPECIAL_IDS
from dragoman.server.request import Row, RowStatus
from dragoman.server.scheduler import bucket, plan
from tests.fakes.engine import new_row

NOW = 100.0


def rows_of(*lengths: int) -> list[Row]:
    return [new_row([SPECIAL_IDS.eos] * length) for length in lengths]


def running_row(*, cancelled: bool = False, deadline: float | None = None) -> Row:
    row = new_row(deadline=deadline)
    row.status = RowStatus.RUNNING
    row.cancelled = cancelled
    return row


def test_rows_of_one_bucket_are_encoded_together_in_order_of_arrival() -> None:
    """A batch holds all rows of the head's bucket, oldest first."""
    waiting = rows_of(3, 9, 16, 1)

    step = plan(waiting, [], free_slots=8, encode_tokens=1000, now=NOW)

    assert step.encode == waiting
    assert step.drop == []


def test_rows_of_another_bucket_wait_their_turn() -> None:
    """A row much longer or shorter than the head would mean padding; it stays in the queue."""
    short, long, other_short, other_long = rows_of(5, 40, 6, 33)

    first = plan([short, long, other_short, other_long], [], free_slots=8, encode_tokens=1000, now=NOW)
    second = plan([long, other_long], [], free_slots=8, encode_tokens=1000, now=NOW)

    assert first.encode == [short, other_short]
    assert second.encode == [long, other_long]


def test_a_batch_stays_within_the_token_budget() -> None:
    """Rows x longest source never exceeds the budget; shorter ones may still fill the gap."""
    waiting = rows_of(20, 30, 32, 24)

    step = plan(waiting, [], free_slots=8, encode_tokens=90, now=NOW)

    assert step.encode == [waiting[0], waiting[1], waiting[3]]


def test_a_row_longer_than_the_budget_is_encoded_alone() -> None:
    """The budget delays nobody forever: one long row gets a batch of its own."""
    waiting = rows_of(40, 40)

    step = plan(waiting, [], free_slots=8, encode_tokens=10, now=NOW)

    assert step.encode == waiting[:1]


def test_no_more_rows_are_encoded_than_slots_are_free() -> None:
    """Every encoded row finds a slot."""
    waiting = rows_of(4, 4, 4)

    assert plan(waiting, [], free_slots=2, encode_tokens=1000, now=NOW).encode == waiting[:2]
    assert plan(waiting, [], free_slots=0, encode_tokens=1000, now=NOW).encode == []


def test_slots_of_dropped_rows_are_used_in_the_same_plan() -> None:
    """A cancelled and a late running row make room at once."""
    waiting = rows_of(4, 4, 4)
    running = [running_row(cancelled=True), running_row(), running_row(deadline=NOW)]

    step = plan(waiting, running, free_slots=0, encode_tokens=1000, now=NOW)

    assert step.drop == [(running[0], RowStatus.CANCELLED), (running[2], RowStatus.DEADLINE)]
    assert step.encode == waiting[:2]


def test_dropped_waiting_rows_make_no_room_and_are_not_encoded() -> None:
    """Only rows that own a slot can free one."""
    gone, kept = rows_of(4, 4)
    gone.cancelled = True

    step = plan([gone, kept], [], free_slots=0, encode_tokens=1000, now=NOW)

    assert step.drop == [(gone, RowStatus.CANCELLED)]
    assert step.encode == []


@pytest.mark.parametrize(("deadline", "dropped"), [(NOW - 1, True), (NOW, True), (NOW + 0.001, False), (None, False)])
def test_a_row_is_dropped_from_its_deadline_on(deadline: float | None, dropped: bool) -> None:
    """The deadline itself is already too late."""
    row = new_row(deadline=deadline)

    step = plan([row], [], free_slots=1, encode_tokens=1000, now=NOW)

    assert step.drop == ([(row, RowStatus.DEADLINE)] if dropped else [])
    assert step.encode == ([] if dropped else [row])


def test_deadline_wins_over_cancelled() -> None:
    """When a deadline passes, gRPC also cancels the call; the reason stays the deadline."""
    row = running_row(cancelled=True, deadline=NOW)

    assert plan([], [row], free_slots=0, encode_tokens=1000, now=NOW).drop == [(row, RowStatus.DEADLINE)]


@pytest.mark.parametrize(
    ("length", "size"), [(1, 16), (15, 16), (16, 16), (17, 32), (32, 32), (33, 64), (64, 64), (65, 128)]
)
def test_a_bucket_is_the_next_power_of_two(length: int, size: int) -> None:
    """Sizes double, from 16 on."""
    assert bucket(length) == size


@dataclass(frozen=True)
class Arrivals:
    """Source lengths of a queue, and what a plan may use."""

    lengths: list[int]
    free_slots: int
    encode_tokens: int


arrivals = st.builds(
    Arrivals,
    lengths=st.lists(st.integers(1, 130), min_size=1, max_size=30),
    free_slots=st.integers(1, 12),
    encode_tokens=st.integers(1, 600),
)


@given(arrivals)
def test_every_plan_keeps_the_rules(case: Arrivals) -> None:
    """The head is in, order is kept, and budget, slots and bucket hold, whatever is waiting."""
    waiting = rows_of(*case.lengths)

    batch = plan(waiting, [], free_slots=case.free_slots, encode_tokens=case.encode_tokens, now=NOW).encode

    positions = [waiting.index(row) for row in batch]
    lengths = [len(row.source) for row in batch]
    assert batch[0] is waiting[0]
    assert positions == sorted(set(positions))
    assert len(batch) <= case.free_slots
    assert len(batch) == 1 or len(batch) * max(lengths) <= case.encode_tokens
    assert {bucket(length) for length in lengths} == {bucket(lengths[0])}


@given(arrivals, st.integers(1, 130))
def test_the_head_is_never_starved(case: Arrivals, other: int) -> None:
    """N rows are all encoded within n plans, even when rows of another length keep coming."""
    oldest = rows_of(*case.lengths)
    waiting = list(oldest)

    for _ in oldest:
        step = plan(waiting, [], free_slots=case.free_slots, encode_tokens=case.encode_tokens, now=NOW)
        waiting = [row for row in waiting if row not in step.encode] + rows_of(other)

    assert not any(row in waiting for row in oldest)
