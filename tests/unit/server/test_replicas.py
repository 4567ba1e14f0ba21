"""Several engines behind one door."""

from __future__ import annotations

import pytest

from dragoman.server.errors import NotServing, QueueFull
from dragoman.server.replicas import Replicas
from dragoman.server.request import Request, RequestStatus
from tests.fakes.engine import EngineBench, new_request, recorder, words
from tests.fakes.runtime import echo


def make(count: int = 2, *, rows: int = 4, max_queued: int = 10) -> tuple[Replicas, list[EngineBench]]:
    """Return engines that tests drive, and the door to them."""
    benches = [EngineBench(rows=rows) for _ in range(count)]
    return Replicas([bench.engine for bench in benches], max_queued=max_queued), benches


def finish(benches: list[EngineBench]) -> None:
    """Run every engine until it has nothing to do."""
    for bench in benches:
        bench.finish()


def some(count: int, **options: object) -> list[Request]:
    """Return requests of different texts."""
    return [new_request(words(3, first=20 + 5 * i), **options) for i in range(count)]  # type: ignore[arg-type]


def test_a_calls_texts_are_shared_out() -> None:
    """Each runs once, in one engine, and all engines have about as much to do."""
    replicas, benches = make()
    requests = some(7)
    replicas.submit(requests)

    assert sorted(bench.engine.load.waiting for bench in benches) == [3, 4]
    assert replicas.load.waiting == 7
    finish(benches)
    assert [request.output for request in requests] == [echo(tuple(request.source)) for request in requests]
    assert [recorder(request).ends for request in requests] == [1] * 7


def test_a_text_goes_where_least_is_to_do() -> None:
    """Beams count as many rows as they take."""
    replicas, benches = make()
    replicas.submit(some(1, beams=3))
    replicas.submit(some(3))

    assert [bench.engine.load.waiting for bench in benches] == [1, 3]


def test_the_queues_limit_is_one_for_all() -> None:
    """A call that does not fit queues nothing anywhere."""
    replicas, benches = make(max_queued=5)
    replicas.submit(some(3))

    with pytest.raises(QueueFull, match="3 texts are waiting and the limit is 5, so 3 more do not fit"):
        replicas.submit(some(3))

    assert replicas.load.waiting == 3
    replicas.submit(some(2, caller="other"))
    finish(benches)
    assert sum(bench.ended(RequestStatus.EOS) for bench in benches) == 5


def test_one_caller_does_not_fill_the_queue() -> None:
    """It gets half of the places; each of the others then half of what is left, whatever it sends first."""
    replicas, benches = make(max_queued=16)
    for caller, share in (("greedy", 8), ("second", 4), ("third", 2)):
        for _ in range(share):
            replicas.submit(some(1, caller=caller))
        with pytest.raises(
            QueueFull, match=f"^{share} texts of this caller are waiting, and 1 more would be more than"
        ):
            replicas.submit(some(1, caller=caller))
    replicas.submit(some(2, caller="large call"))
    finish(benches)
    replicas.submit(some(16, caller="greedy"))
    finish(benches)
    assert sum(bench.ended(RequestStatus.EOS) for bench in benches) == 8 + 4 + 2 + 2 + 16


def test_cancel_and_stop_reach_whoever_runs_the_text() -> None:
    """The caller does not know which engine that is."""
    replicas, benches = make()
    requests = some(4)
    replicas.submit(requests)
    for bench in benches:
        bench.iterate(2)
    replicas.cancel(requests[:2])
    replicas.stop(requests[2:])
    finish(benches)

    assert [request.status for request in requests] == [RequestStatus.CANCELLED] * 2 + [RequestStatus.STOPPED] * 2
    assert [len(request.output) for request in requests[2:]] == [2, 2]


def test_load_and_limits_are_those_of_all() -> None:
    """Slots add up; what one text may take does not."""
    replicas, benches = make(3)
    replicas.submit(some(3))
    for bench in benches:
        bench.iterate()

    load = replicas.load
    assert (load.running, load.slots, load.slots_used) == (3, 12, 3)
    assert load.cache_bytes == 3 * benches[0].pool.nbytes
    assert replicas.most_rows == 4
    assert replicas.fits(4, 48, 40)
    assert not replicas.fits(5, 1, 1)
    finish(benches)


def test_threads_start_finish_and_stop_together() -> None:
    """Closing finishes what was accepted everywhere and refuses the rest; one dead thread is not alive."""
    replicas, _ = make()
    requests = some(8)
    replicas.submit(requests)
    replicas.start()
    assert replicas.alive

    replicas.close()

    assert not replicas.alive
    assert {request.status for request in requests} == {RequestStatus.EOS}
    with pytest.raises(NotServing):
        replicas.submit(some(1))
