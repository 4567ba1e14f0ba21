from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.server.request import Priority, Request, RequestStatus
from dragoman.server.scheduler import Scheduler, StepPlan, bucket
from tests.fakes.requests import FakeRoom, make_request, make_running

NOW = 100.0
INTERACTIVE, NORMAL, BULK = Priority


def make_scheduler(
    waiting: Sequence[Request] = (), *, encode_tokens: int = 1000, ageing_s: float = 1e9, running_share: float = 1.0
) -> Scheduler:
    scheduler = Scheduler(encode_tokens=encode_tokens, ageing_s=ageing_s, running_share=running_share)
    scheduler.add(waiting)
    return scheduler


def plan_once(
    waiting: Sequence[Request], running: Sequence[Request] = (), *, rows: int = 8, encode_tokens: int = 1000
) -> StepPlan:
    return make_scheduler(waiting, encode_tokens=encode_tokens).plan(running, FakeRoom(rows), NOW)


def requests_of(*lengths: int) -> list[Request]:
    return [make_request(length) for length in lengths]


# What shares an encode batch.


def test_requests_of_one_bucket_are_encoded_together_in_order_of_arrival() -> None:
    """A batch holds all of the first's bucket, oldest first."""
    waiting = requests_of(3, 9, 16, 1)

    step = plan_once(waiting)

    assert step.encode == waiting
    assert step.drop == []


def test_requests_of_another_bucket_wait_their_turn() -> None:
    """One that is much longer or shorter than the first would mean padding; it is encoded next."""
    waiting = short, long, other_short, other_long = requests_of(5, 40, 6, 33)
    scheduler = make_scheduler(waiting)

    first, second = (scheduler.plan([], FakeRoom(8), NOW) for _ in range(2))

    assert first.encode == [short, other_short]
    assert second.encode == [long, other_long]
    assert len(scheduler) == 0


def test_a_batch_stays_within_the_token_budget() -> None:
    """Requests x longest source never exceeds the budget; shorter ones may still fill the gap."""
    waiting = requests_of(20, 30, 32, 24)

    assert plan_once(waiting, encode_tokens=90).encode == [waiting[0], waiting[1], waiting[3]]


def test_a_request_longer_than_the_budget_is_encoded_alone() -> None:
    """The budget delays nobody forever: one long request gets a batch of its own."""
    waiting = requests_of(40, 40)

    assert plan_once(waiting, encode_tokens=10).encode == waiting[:1]


def test_a_burst_is_encoded_in_parts_while_rows_are_running() -> None:
    """Running rows wait for a share of the budget between two steps; nobody waits for the whole of it."""
    waiting = requests_of(*[10] * 12)
    scheduler = make_scheduler(waiting, encode_tokens=80, running_share=0.5)

    idle = scheduler.plan([], FakeRoom(32), NOW)
    busy = scheduler.plan(idle.encode, FakeRoom(32), NOW)

    assert idle.encode == waiting[:8]
    assert busy.encode == waiting[8:]
    assert len(busy.encode) * 10 == 40


def test_rows_that_are_dropped_do_not_make_the_batch_small() -> None:
    """Who is dropped waits for no step."""
    scheduler = make_scheduler(requests_of(10, 10), encode_tokens=20, running_share=0.5)

    assert len(scheduler.plan([make_running(cancelled=True)], FakeRoom(8), NOW).encode) == 2


@pytest.mark.parametrize(
    ("length", "size"), [(1, 16), (15, 16), (16, 16), (17, 32), (32, 32), (33, 64), (64, 64), (65, 128)]
)
def test_a_bucket_is_the_next_power_of_two(length: int, size: int) -> None:
    """Sizes double, from 16 on."""
    assert bucket(length) == size


# Slots.


def test_no_more_rows_are_encoded_than_slots_are_free() -> None:
    """Every encoded request finds its slot."""
    waiting = requests_of(4, 4, 4)

    assert plan_once(waiting, rows=2).encode == waiting[:2]
    assert plan_once(waiting, [make_running()], rows=1).encode == []


def test_slots_of_dropped_requests_are_used_in_the_same_plan() -> None:
    """A cancelled, a late and a stopped running request make room at once."""
    waiting = requests_of(4, 4, 4, 4)
    running = [make_running(cancelled=True), make_running(), make_running(deadline=NOW), make_running(stopped=True)]

    step = plan_once(waiting, running, rows=4)

    assert step.drop == [
        (running[0], RequestStatus.CANCELLED),
        (running[2], RequestStatus.DEADLINE),
        (running[3], RequestStatus.STOPPED),
    ]
    assert step.encode == waiting[:3]


def test_beams_of_a_request_are_placed_together() -> None:
    """A request gets all of its slots or none."""
    wide = make_request(beams=4)

    assert plan_once([wide], [make_running()], rows=5).encode == [wide]
    assert plan_once([wide], [make_running()], rows=4).encode == []


def test_lengths_count_where_memory_is_short() -> None:
    """The longest source and the longest possible target, running ones included, decide how many rows fit."""
    waiting = requests_of(8, 8)
    room = FakeRoom(8, positions=3 * (8 + 16))

    assert make_scheduler(waiting).plan([make_running(8)], room, NOW).encode == waiting
    assert make_scheduler(waiting).plan([make_running(20)], room, NOW).encode == waiting[:1]
    assert make_scheduler(waiting).plan([make_running(8, max_new_tokens=28)], room, NOW).encode == waiting[:1]


def test_companions_take_no_slot_of_one_that_is_before_them() -> None:
    """A text that is passed over for its length joins in the next plan, however many short ones wait behind it."""
    short, long, *rest = waiting = requests_of(8, 40, 8, 8, 8, 8)
    scheduler = make_scheduler(waiting)

    first = scheduler.plan([], FakeRoom(3), NOW)
    second = scheduler.plan(first.encode, FakeRoom(3), NOW)

    assert first.encode == [short, rest[0]]
    assert second.encode == [long]


def test_a_first_that_does_not_fit_lets_as_many_rows_pass_as_it_needs_itself() -> None:
    """Three slots for others, then nobody until the three slots are free."""
    wide, *small = waiting = [make_request(beams=3), *requests_of(*[8] * 9)]
    running = [make_running(), make_running()]
    scheduler, room = make_scheduler(waiting), FakeRoom(4)

    first = scheduler.plan(running, room, NOW).encode  # two slots are free
    second = scheduler.plan(running, room, NOW).encode  # again, as if those two were very short
    third = scheduler.plan(running, room, NOW).encode
    fourth = scheduler.plan(running[:1], room, NOW).encode

    assert first == small[:2]
    assert second == small[2:3]
    assert third == []
    assert fourth == [wide]


def test_each_request_that_is_blocked_counts_for_itself() -> None:
    """What passed one is not held against those that pass the next."""
    wide, *small = waiting = [make_request(beams=2), *requests_of(8, 8), make_request(beams=2), *requests_of(8)]
    running = [make_running(), make_running()]
    scheduler, room = make_scheduler(waiting), FakeRoom(3)

    batches = [scheduler.plan(rows, room, NOW).encode for rows in (running, running, running[:1], running)]

    assert batches == [small[:1], small[1:2], [wide], small[3:]]


def test_a_higher_class_may_always_pass_but_brings_nobody_along() -> None:
    """What was counted past a blocked request stays counted while another is first."""
    wide, *small = waiting = [make_request(beams=3), *requests_of(*[8] * 9)]
    running = [make_running(), make_running()]
    scheduler, room = make_scheduler(waiting), FakeRoom(4)
    passed = [request for _ in range(2) for request in scheduler.plan(running, room, NOW).encode]
    urgent = make_request(priority=INTERACTIVE)
    scheduler.add([urgent])

    step = scheduler.plan(running, room, NOW)

    assert passed == small[:3]
    assert step.encode == [urgent]
    assert scheduler.plan(running, room, NOW).encode == []
    assert scheduler.plan(running[:1], room, NOW).encode == [wide]


def test_only_what_fits_passes_one_that_is_blocked() -> None:
    """The next one that fits is encoded, however many before it do not."""
    waiting = [make_request(beams=2), make_request(beams=3), make_request(beams=1), make_request(beams=1)]

    assert plan_once(waiting, [make_running(beams=3)], rows=4).encode == [waiting[2]]


def test_a_request_that_fits_no_empty_pool_is_our_own_mistake() -> None:
    """It must be refused at the door; here everybody would wait behind it for ever."""
    with pytest.raises(AssertionError, match=r"9 slots, 8 source and 16 target tokens .* empty pool of 8 slots"):
        plan_once([make_request(beams=9)])


# Whom to drop.


@pytest.mark.parametrize(("deadline", "dropped"), [(NOW - 1, True), (NOW, True), (NOW + 0.001, False), (None, False)])
def test_a_request_is_dropped_from_its_deadline_on(deadline: float | None, dropped: bool) -> None:
    """The deadline itself is already too late."""
    request = make_request(deadline=deadline)

    step = plan_once([request])

    assert step.drop == ([(request, RequestStatus.DEADLINE)] if dropped else [])
    assert step.encode == ([] if dropped else [request])


def test_a_deadline_far_back_in_the_queue_is_noticed() -> None:
    """Nothing of a queue of thousands outlives its deadline."""
    waiting = [make_request(deadline=NOW + 2000 - i) for i in range(2000)]
    scheduler = make_scheduler(waiting)

    assert scheduler.plan([make_running()], FakeRoom(1), NOW).drop == []
    late = scheduler.plan([make_running()], FakeRoom(1), NOW + 2).drop

    assert late == [(waiting[1999], RequestStatus.DEADLINE), (waiting[1998], RequestStatus.DEADLINE)]


@pytest.mark.parametrize(
    ("changes", "status"),
    [({"cancelled": True}, RequestStatus.CANCELLED), ({"stopped": True}, RequestStatus.STOPPED)],
)
def test_after_a_touch_every_waiting_request_is_looked_at(changes: dict[str, bool], status: RequestStatus) -> None:
    """A cancelled or stopped request leaves the queue in the next plan, wherever it stands."""
    waiting = requests_of(*[8] * 1000)
    scheduler = make_scheduler(waiting)
    for name, value in changes.items():
        setattr(waiting[700], name, value)
    running = [make_running()]
    assert scheduler.plan(running, FakeRoom(1), NOW).drop == []

    scheduler.touch()

    assert scheduler.plan(running, FakeRoom(1), NOW).drop == [(waiting[700], status)]
    assert len(scheduler) == 999


def test_a_request_that_is_next_is_looked_at_without_a_touch() -> None:
    """Nobody is encoded for a caller who has gone."""
    gone, kept = requests_of(4, 4)
    gone.cancelled = True

    step = plan_once([gone, kept], rows=1)

    assert step.drop == [(gone, RequestStatus.CANCELLED)]
    assert step.encode == [kept]


def test_dropped_waiting_requests_make_no_room() -> None:
    """Only what owns a slot can free one."""
    gone, kept = make_request(deadline=NOW), make_request()

    step = plan_once([gone, kept], [make_running()], rows=1)

    assert step.drop == [(gone, RequestStatus.DEADLINE)]
    assert step.encode == []


def test_the_deadline_wins_over_cancelled_and_cancelled_over_stopped() -> None:
    """When a deadline passes, gRPC also cancels the call; the reason stays the deadline."""
    running = [make_running(cancelled=True, deadline=NOW), make_running(cancelled=True, stopped=True)]

    statuses = [status for _, status in plan_once([], running).drop]

    assert statuses == [RequestStatus.DEADLINE, RequestStatus.CANCELLED]


# The queue itself.


def test_the_queue_counts_requests_and_the_slots_they_need() -> None:
    """Both fall when requests leave, however they do."""
    waiting = [make_request(beams=4), make_request(beams=2), make_request(), make_request(deadline=NOW)]
    scheduler = make_scheduler(waiting)
    assert (len(scheduler), scheduler.waiting_rows) == (4, 8)

    scheduler.plan([], FakeRoom(6), NOW)

    assert (len(scheduler), scheduler.waiting_rows) == (1, 1)
    assert scheduler.drain() == [waiting[2]]
    assert (len(scheduler), scheduler.waiting_rows) == (0, 0)


def test_drain_returns_everything_in_order_of_arrival_and_leaves_a_working_queue() -> None:
    """Whatever the class, caller or deadline."""
    waiting = [
        make_request(priority=BULK, caller="a"),
        make_request(priority=INTERACTIVE, deadline=NOW + 1),
        make_request(caller="b"),
    ]
    scheduler = make_scheduler(waiting)

    assert scheduler.drain() == waiting
    assert scheduler.plan([], FakeRoom(8), NOW + 1) == StepPlan([], [])
    scheduler.add(waiting[::2])
    assert scheduler.plan([], FakeRoom(8), NOW + 1).encode == waiting[2::-2]


def test_a_request_is_queued_once() -> None:
    """A second time would give it slots twice."""
    scheduler = make_scheduler(waiting := requests_of(4))

    with pytest.raises(AssertionError, match="added again"):
        scheduler.add(waiting)


@pytest.mark.parametrize(
    "settings", [{"encode_tokens": 0}, {"ageing_s": 0.0}, {"running_share": 0.0}, {"running_share": 1.5}]
)
def test_settings_that_would_encode_nothing_are_refused(settings: dict[str, float]) -> None:
    """A scheduler always makes progress."""
    with pytest.raises(AssertionError, match=f"{next(iter(settings))} {next(iter(settings.values()))}"):
        Scheduler(**{"encode_tokens": 10, **settings})  # type: ignore[arg-type]  # values of every kind on purpose


@pytest.mark.parametrize("waiting", [2_000, 20_000])
def test_a_plan_looks_at_a_bounded_part_of_the_queue(waiting: int) -> None:
    """What a plan asks of the pool does not grow with the queue, even when nothing fits."""
    scheduler = make_scheduler([make_request(8, beams=4), *(make_request(500) for _ in range(waiting))])
    room = FakeRoom(64, positions=64 * (8 + 16))

    step = scheduler.plan([make_running(8) for _ in range(62)], room, NOW)

    assert step.encode == []
    assert 100 < room.asked < 150


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
    """The first is in, order is kept, and budget, slots and bucket hold, whatever is waiting."""
    waiting = requests_of(*case.lengths)

    batch = plan_once(waiting, rows=case.free_slots, encode_tokens=case.encode_tokens).encode

    positions = [waiting.index(request) for request in batch]
    lengths = [len(request.source) for request in batch]
    assert batch[0] is waiting[0]
    assert positions == sorted(set(positions))
    assert len(batch) <= case.free_slots
    assert len(batch) == 1 or len(batch) * max(lengths) <= case.encode_tokens
    assert {bucket(length) for length in lengths} == {bucket(lengths[0])}


@given(arrivals, st.integers(1, 130))
def test_the_first_is_never_starved(case: Arrivals, other: int) -> None:
    """N requests are all encoded within n plans, even when some of another length keep coming."""
    oldest = requests_of(*case.lengths)
    scheduler = make_scheduler(oldest, encode_tokens=case.encode_tokens)

    encoded: list[Request] = []
    for _ in oldest:
        encoded += scheduler.plan([], FakeRoom(case.free_slots), NOW).encode
        scheduler.add(requests_of(other))

    assert set(oldest) <= set(encoded)
