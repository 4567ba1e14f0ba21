"""What holds for the scheduler whatever arrives, leaves or fails, with a pool that computes nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dragoman.server.fair_queue import tokens_of
from dragoman.server.request import Priority, Request, RequestStatus
from dragoman.server.scheduler import Scheduler, StepPlan, bucket
from tests.fakes.requests import FakeRoom, make_request

AGEING_S = 4.0  # times are multiples of 0.5: sums are exact
MOST_ROWS = 8
FEW_ROWS, MOST_QUEUED = 4, 60  # arrivals are soon too many for them
LONGEST = 70
MOST_STEPS = 6
RISING_PER_PLAN = 16  # what a plan moves to a higher class; with more at a time the others follow in the next ones


@dataclass
class World:
    """The engine's part: carries out plans and decodes. Checks what every plan must keep.

    Attributes:
        scheduler: Under test.
        room: The pool.
        encode_tokens: The scheduler's.
        running_tokens: Budget while rows are running.
        now: Seconds.
        waiting: Accepted, in order of arrival.
        running: Requests that own slots, with the steps that they still need.
        statuses: How requests have ended.
        touched: A waiting request may have to go.
    """

    scheduler: Scheduler
    room: FakeRoom
    encode_tokens: int
    running_tokens: int
    now: float = 0.0
    waiting: dict[Request, None] = field(default_factory=dict)
    running: dict[Request, int] = field(default_factory=dict)
    statuses: dict[Request, RequestStatus] = field(default_factory=dict)
    touched: bool = False

    def touch(self) -> None:
        """Say that some request was cancelled or stopped."""
        self.scheduler.touch()
        self.touched = True

    def submit(self, *requests: Request) -> None:
        """Queue requests."""
        self.scheduler.add(requests)
        self.waiting.update(dict.fromkeys(requests))

    def iterate(self) -> StepPlan:
        """Plan, carry out, make one step."""
        plan = self.scheduler.plan(list(self.running), self.room, self.now)
        self._drop(plan)
        if plan.encode:
            self._check_batch(plan.encode)
        else:
            self._check_that_nothing_could_be_encoded()
        for request in plan.encode:
            del self.waiting[request]  # fails for one that was planned twice
            self.running[request] = request.options.max_new_tokens
            request.status = RequestStatus.RUNNING
        assert self.room.holds(*self.running), "more rows than the pool can hold"
        self._step()
        return plan

    def end(self, request: Request, status: RequestStatus) -> None:
        """Give a request its only final status."""
        assert request not in self.statuses, "a second end"
        self.statuses[request] = request.status = status

    def _drop(self, plan: StepPlan) -> None:
        for request, status in plan.drop:
            assert status is self._reason(request)
            if request in self.running:
                del self.running[request]
            else:
                del self.waiting[request]
            self.end(request, status)
        left = [request for request in (*self.running, *plan.encode) if self._reason(request) is not None]
        assert not left, "a step would compute for somebody who has gone"
        assert all(r.deadline is None or self.now < r.deadline for r in self.waiting), "a deadline was overlooked"
        if self.touched:
            assert all(self._reason(request) is None for request in self.waiting), "somebody who has gone still waits"
        self.touched = False

    def _reason(self, request: Request) -> RequestStatus | None:
        if request.deadline is not None and request.deadline <= self.now:
            return RequestStatus.DEADLINE
        if request.cancelled:
            return RequestStatus.CANCELLED
        return RequestStatus.STOPPED if request.stopped else None

    def _check_batch(self, batch: list[Request]) -> None:
        budget = self.running_tokens if self.running else self.encode_tokens
        longest = max(len(request.source) for request in batch)
        assert len(batch) == 1 or len(batch) * longest <= budget
        assert len({bucket(len(request.source)) for request in batch}) == 1

    def _check_that_nothing_could_be_encoded(self) -> None:
        if self.waiting:
            assert self.running, "everybody waits and nobody runs"
            assert not all(self.room.holds(*self.running, request) for request in self.waiting)

    def _step(self) -> None:
        for request in list(self.running):
            self.running[request] -= 1
            if not self.running[request]:
                del self.running[request]
                self.end(request, RequestStatus.EOS)


def make_world(rows: int, *, memory: float = 1.0, encode_tokens: int = 100, share: float = 0.5) -> World:
    """Return a world where nobody waits; with `memory` below 1 long texts cannot use every slot."""
    most = LONGEST + MOST_STEPS
    room = FakeRoom(rows, max(most, int(rows * most * memory)))
    scheduler = Scheduler(encode_tokens=encode_tokens, ageing_s=AGEING_S, running_share=share)
    return World(scheduler, room, encode_tokens, max(1, int(encode_tokens * share)))


sizes = st.fixed_dictionaries(
    {
        "source_len": st.one_of(st.integers(1, 16), st.integers(1, LONGEST)),
        "beams": st.sampled_from([1, 1, 1, 2, 4, 8]),
        "max_new_tokens": st.integers(1, MOST_STEPS),
    }
)
origins = st.fixed_dictionaries({"caller": st.sampled_from("abc"), "priority": st.sampled_from(Priority)})


@settings(max_examples=200, stateful_step_count=40)
class SchedulerHistories(RuleBasedStateMachine):
    """Arrivals, cancels, stops, deadlines, failures and steps in any order."""

    @initialize(
        rows=st.integers(1, MOST_ROWS),
        memory=st.sampled_from([0.3, 0.6, 1.0]),
        encode_tokens=st.sampled_from([1, 40, 200, 1000]),
        share=st.sampled_from([0.01, 0.25, 1.0]),
    )
    def start(self, rows: int, memory: float, encode_tokens: int, share: float) -> None:
        """Make a pool and a scheduler."""
        self.world = make_world(rows, memory=memory, encode_tokens=encode_tokens, share=share)
        self.levels: dict[Request, int] = {}
        self.risen: dict[Request, int] = {}
        self.rising = 0  # steps up, the last of which is to be overdue, that may not have been made yet

    @rule(
        sizes=st.lists(sizes, min_size=1, max_size=6), origin=origins, timeout_s=st.one_of(st.none(), st.integers(0, 6))
    )
    def submit(self, sizes: list[dict[str, int]], origin: dict[str, object], timeout_s: int | None) -> None:
        """A call with some texts; what could not run alone is refused at the door."""
        now = self.world.now
        deadline = None if timeout_s is None else now + timeout_s
        requests = [make_request(**size, **origin, deadline=deadline, submitted=now) for size in sizes]  # type: ignore[arg-type]  # one dict for all kinds of values
        accepted = [request for request in requests if self.world.room.holds(request)]
        self.world.submit(*accepted)
        self.levels.update({request: int(request.priority) for request in accepted})

    @precondition(lambda self: self.world.waiting or self.world.running)
    @rule(data=st.data(), attribute=st.sampled_from(["cancelled", "stopped"]), touch=st.booleans())
    def leave(self, data: st.DataObject, attribute: str, touch: bool) -> None:
        """A caller goes, or a listener has seen enough."""
        for request in data.draw(st.sets(st.sampled_from([*self.world.waiting, *self.world.running]), min_size=1)):
            setattr(request, attribute, True)
        if touch:
            self.world.touch()

    @rule(halves=st.integers(1, 16))
    def pass_time(self, halves: int) -> None:
        """Half seconds pass."""
        self.world.now += halves / 2

    @precondition(lambda self: self.world.running)
    @rule()
    def fail_a_step(self) -> None:
        """Everybody who runs fails."""
        for request in self.world.running:
            self.world.end(request, RequestStatus.FAILED)
        self.world.running.clear()

    @rule(fail=st.booleans())
    def iterate(self, fail: bool) -> None:
        """One round of the loop; now and then the encoder fails."""
        before, waiting = dict(self.world.running), dict(self.world.waiting)
        exact = self._count_classes()
        plan = self.world.iterate()
        dropped = {request for request, _ in plan.drop}
        kept = [request for request in before if request not in dropped]
        if exact:
            self._check_classes(plan.encode, kept, [request for request in waiting if request not in dropped])
        if fail:
            for request in plan.encode:
                if self.world.running.pop(request, None) is not None:
                    self.world.end(request, RequestStatus.FAILED)

    def _count_classes(self) -> bool:
        """Let what waits rise; returns whether the scheduler, which does some at a time, has done all by now."""
        for request in self.world.waiting:
            risen = min(request.priority + 1, math.floor((self.world.now - request.times.submitted) / AGEING_S))
            self.rising += risen - self.risen.get(request, 0)
            self.risen[request] = risen
            self.levels[request] = max(0, request.priority - risen)
        self.rising = max(0, self.rising - RISING_PER_PLAN)
        return not self.rising

    def _check_classes(self, batch: list[Request], running: list[Request], waiting: list[Request]) -> None:
        """Nobody joins who is of a lower class than one who stays behind, but for one that is blocked."""
        behind = [request for request in waiting if request not in batch]
        levels = [self.levels[request] for request in batch]
        higher = [request for request in behind if levels and self.levels[request] < max(levels)]
        assert len(higher) <= 1
        if higher and self.levels[higher[0]] < min(levels):
            assert not self.world.room.holds(*running, *higher)
            assert sum(request.width for request in batch) <= higher[0].width

    @invariant()
    def the_queue_is_what_waits(self) -> None:
        """Nothing is lost, and nothing stays."""
        if hasattr(self, "world"):
            assert len(self.world.scheduler) == len(self.world.waiting)
            assert self.world.scheduler.waiting_rows == sum(request.width for request in self.world.waiting)
            waiting = Counter(request.caller for request in self.world.waiting)
            assert all(self.world.scheduler.waiting_of(caller) == waiting[caller] for caller in "abc")
            assert not set(self.world.waiting) & set(self.world.statuses)

    def teardown(self) -> None:
        """Everything drains: each round encodes somebody or brings a running row nearer to its end."""
        if not hasattr(self, "world"):
            return
        self.world.touch()
        for _ in range(len(self.world.waiting) * (MOST_STEPS + 1) + MOST_STEPS):
            if not self.world.waiting and not self.world.running:
                break
            self.world.iterate()
        assert set(self.world.statuses) == set(self.levels)
        assert all(request.status.final for request in self.levels)
        assert self.world.scheduler.drain() == []


TestSchedulerHistories = SchedulerHistories.TestCase


@st.composite
def streams(draw: st.DrawFn) -> Iterator[list[Request]]:
    """Endless arrivals: each round some texts, of one caller or of new ones, of any class or all of the highest."""
    classes = draw(st.sampled_from([[Priority.INTERACTIVE], list(Priority)]))
    kinds = draw(st.lists(st.tuples(sizes, st.sampled_from(classes), st.sampled_from(["x", "y", "new"])), min_size=1))
    per_round = draw(st.integers(1, 4))

    def arrive() -> Iterator[list[Request]]:
        number = 0
        while True:
            batch = []
            for _ in range(per_round):
                size, priority, caller = kinds[number % len(kinds)]
                number += 1
                name = f"new {number}" if caller == "new" else caller
                batch.append(make_request(**narrow(size), priority=priority, caller=name))
            yield batch

    return arrive()


def narrow(size: dict[str, int]) -> dict[str, int]:
    return size | {"beams": min(size["beams"], FEW_ROWS)}


@settings(max_examples=150)
@given(streams(), sizes, st.sampled_from(Priority), st.sampled_from(["x", "victim"]))
def test_nobody_starves(stream: Iterator[list[Request]], size: dict[str, int], priority: Priority, caller: str) -> None:
    """Whatever keeps arriving, a text is encoded: it becomes overdue, and nobody is overdue before it who comes later.

    Each of those who were overdue before begins one of four batches, and waits for the pool at most as long as
    those take that may pass it, one after the other, and one that was running before.
    """
    world = make_world(FEW_ROWS)
    for _ in range(5):
        iterate_with(world, stream)
    victim = make_request(**narrow(size), priority=priority, caller=caller, submitted=world.now)
    world.submit(victim)

    while victim in world.waiting and world.now < victim.times.submitted + (priority + 1) * AGEING_S:
        iterate_with(world, stream)
    ahead = len(world.waiting)
    rounds = 0
    while victim in world.waiting:
        iterate_with(world, stream)
        rounds += 1
        assert rounds <= ahead / RISING_PER_PLAN + ahead * (4 + FEW_ROWS + 1) * MOST_STEPS


def iterate_with(world: World, stream: Iterator[list[Request]]) -> None:
    """One round of the engine; arrivals go on for as long as the queue takes any."""
    if len(world.waiting) < MOST_QUEUED:
        arrivals = next(stream)
        for request in arrivals:
            request.times.submitted = world.now
        world.submit(*arrivals)
    world.iterate()
    world.now += 0.5


@given(st.lists(st.lists(sizes, max_size=3), min_size=1, max_size=40), st.integers(1, MOST_ROWS), st.floats(0.2, 1))
def test_what_passes_a_blocked_request_is_no_more_than_it_needs(
    rounds: list[list[dict[str, int]]], rows: int, memory: float
) -> None:
    """While the first in line does not fit, at most as many slots as its own are given to those behind it.

    With one caller and one class, the first in line is the oldest. So it waits for at most as many texts as it has
    beams, one after the other, and the longest that was running before.
    """
    world = make_world(rows, memory=memory)
    first: Request | None = None
    passed = waited = 0

    while rounds or world.waiting:
        new = [make_request(**size, submitted=world.now) for size in (rounds.pop() if rounds else [])]  # type: ignore[arg-type]  # one dict for all kinds of values
        world.submit(*(request for request in new if world.room.holds(request)))
        oldest = next(iter(world.waiting), None)
        if oldest is not first:
            first, passed, waited = oldest, 0, 0
        encoded = world.iterate().encode
        if first in world.waiting:
            assert first is not None
            passed += sum(request.width for request in encoded)
            waited += 1
            assert passed <= first.width
            assert waited <= (first.width + 1) * MOST_STEPS


lengths = st.lists(st.integers(1, LONGEST), min_size=1, max_size=5)


@given(a=lengths, b=lengths, rows=st.integers(1, MOST_ROWS), encode_tokens=st.integers(1, 300), share=st.floats(0.1, 1))
def test_two_callers_get_equal_shares(a: list[int], b: list[int], rows: int, encode_tokens: int, share: float) -> None:
    """While both have texts waiting, neither is further ahead than one filling of the pool and one encode batch."""
    world = make_world(rows, encode_tokens=encode_tokens, share=share)
    served = {"a": 0, "b": 0}
    for caller, cycle in (("a", a), ("b", b)):
        world.submit(*(make_request(cycle[i % len(cycle)], caller=caller, max_new_tokens=3) for i in range(150)))

    while len({request.caller for request in world.waiting}) == 2:
        for request in world.iterate().encode:
            served[request.caller] += tokens_of(request)
        assert abs(served["a"] - served["b"]) <= rows * LONGEST + max(encode_tokens, LONGEST)


@given(st.lists(sizes, min_size=1, max_size=12), st.integers(1, 300), st.integers(1, MOST_ROWS))
def test_an_idle_engine_encodes_at_once_as_much_as_fits(
    arrivals: list[dict[str, int]], encode_tokens: int, rows: int
) -> None:
    """With nobody running, what stays behind is of another bucket, over the budget, or has no slot."""
    world = make_world(rows, encode_tokens=encode_tokens, share=0.01)
    requests = [make_request(**size) for size in arrivals]  # type: ignore[arg-type]  # one dict for all kinds of values
    world.submit(*(request for request in requests if world.room.holds(request)))
    waiting = list(world.waiting)
    if not waiting:
        return

    batch = world.iterate().encode

    assert batch[0] is waiting[0]
    longest = max(len(request.source) for request in batch)
    in_line: list[Request] = []
    for request in waiting:
        if not world.room.holds(*in_line, request):
            continue
        in_line.append(request)
        grown = max(longest, len(request.source))
        if request not in batch and bucket(len(request.source)) == bucket(longest):
            assert (len(batch) + 1) * grown > encode_tokens
    assert [request for request in in_line if request in batch] == batch
