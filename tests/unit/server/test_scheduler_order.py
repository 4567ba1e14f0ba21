"""Priority classes, ageing, and fairness between callers."""

from collections.abc import Sequence

import pytest

from dragoman.server.request import Priority, Request
from dragoman.server.scheduler import Scheduler
from tests.fakes.requests import FakeRoom, make_request, make_running

NOW = 100.0
INTERACTIVE, NORMAL, BULK = Priority


def make_scheduler(waiting: Sequence[Request], *, ageing_s: float = 1e9) -> Scheduler:
    scheduler = Scheduler(encode_tokens=1000, ageing_s=ageing_s)
    scheduler.add(waiting)
    return scheduler


def test_higher_classes_are_encoded_first() -> None:
    """The order of arrival counts within a class."""
    waiting = [make_request(priority=priority) for priority in (BULK, NORMAL, INTERACTIVE, BULK, NORMAL, INTERACTIVE)]
    scheduler = make_scheduler(waiting)

    order = [scheduler.plan([], FakeRoom(1), NOW).encode[0] for _ in waiting]

    assert order == [waiting[i] for i in (2, 5, 1, 4, 0, 3)]


def test_a_lower_class_joins_a_batch_that_leaves_nobody_of_a_higher_class_behind() -> None:
    """Room that nobody else can use is not left empty."""
    interactive, bulk = make_request(priority=INTERACTIVE), make_request(priority=BULK)

    assert make_scheduler([bulk, interactive]).plan([], FakeRoom(8), NOW).encode == [interactive, bulk]


def test_a_lower_class_does_not_join_while_a_higher_one_waits() -> None:
    """A text of another length waits for the next batch; nothing of a lower class makes it longer."""
    short, long = make_request(8, priority=INTERACTIVE), make_request(40, priority=INTERACTIVE)
    scheduler = make_scheduler([make_request(8, priority=BULK), short, long])

    batches = [scheduler.plan([], FakeRoom(8), NOW).encode for _ in range(3)]

    assert batches[:2] == [[short], [long]]
    assert len(batches[2]) == 1


@pytest.mark.parametrize(
    ("age", "expected"),
    [(0, [INTERACTIVE, NORMAL, BULK]), (9.9, [INTERACTIVE, NORMAL, BULK]), (10, [NORMAL, INTERACTIVE, BULK])],
)
def test_a_request_that_waited_long_counts_as_one_class_higher(age: float, expected: list[Priority]) -> None:
    """A new interactive text comes behind a normal one that has waited its ten seconds."""
    old = [make_request(priority=priority, submitted=NOW - age) for priority in (NORMAL, BULK)]
    scheduler = make_scheduler(old, ageing_s=10)
    scheduler.plan([make_running()], FakeRoom(1), NOW)
    scheduler.add([make_request(priority=INTERACTIVE, submitted=NOW)])

    order = [scheduler.plan([], FakeRoom(1), NOW).encode[0].priority for _ in range(3)]

    assert order == expected


def test_ageing_goes_on_to_the_highest_class() -> None:
    """Twice the time is two classes."""
    bulk = make_request(priority=BULK, submitted=NOW - 20)
    scheduler = make_scheduler([bulk], ageing_s=10)
    scheduler.plan([make_running()], FakeRoom(1), NOW)
    scheduler.add([make_request(priority=INTERACTIVE, submitted=NOW)])

    assert scheduler.plan([], FakeRoom(1), NOW).encode == [bulk]


def interactive(length: int = 8, *, caller: str, age: float = 0, beams: int = 1) -> Request:
    return make_request(length, caller=caller, beams=beams, priority=INTERACTIVE, submitted=NOW - age)


def test_every_fourth_batch_begins_with_what_is_overdue() -> None:
    """A caller who was served a lot gets its turn even if ever new ones keep coming; they keep three of four."""
    scheduler = make_scheduler([interactive(400, caller="old", age=10) for _ in range(4)], ageing_s=10)
    order = [scheduler.plan([], FakeRoom(1), NOW - 1).encode[0].caller]

    for turn in range(8):
        scheduler.add([interactive(1, caller=f"new {turn} {i}") for i in range(3)])
        order.append(scheduler.plan([], FakeRoom(1), NOW).encode[0].caller)

    assert [caller.split()[0] for caller in order] == ["old", "new", "new", "old", "new", "new", "new", "old", "new"]


def test_an_overdue_request_that_does_not_fit_stays_first_until_it_does() -> None:
    """Its turn is not over because others pass it, overdue ones included."""
    old = [interactive(400, caller="old", age=10), interactive(caller="old", age=10, beams=2)]
    scheduler = make_scheduler([*old, *(interactive(caller=f"new {i}", age=10) for i in range(8))], ageing_s=10)
    before = [scheduler.plan([], FakeRoom(1), NOW - 1).encode for _ in range(3)]
    running = [make_running()]

    passed = [scheduler.plan(running, FakeRoom(2), NOW).encode for _ in range(3)]

    assert before[0] == old[:1]
    assert [len(batch) for batch in passed] == [1, 1, 0]
    assert scheduler.plan([], FakeRoom(2), NOW).encode[0] is old[1]


def test_a_single_text_does_not_wait_for_another_callers_thousand() -> None:
    """With a full pool and a long queue of one caller, the first slot that comes free is another's."""
    scheduler = make_scheduler([make_request(caller="many") for _ in range(1000)])
    running = scheduler.plan([], FakeRoom(16), NOW).encode
    single = make_request(60, caller="single")
    scheduler.add([single])

    assert scheduler.plan(running, FakeRoom(16), NOW).encode == []
    assert scheduler.plan(running[1:], FakeRoom(16), NOW).encode == [single]
