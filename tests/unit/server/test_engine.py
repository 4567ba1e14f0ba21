import logging
import threading
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.export.bundle import Shape
from dragoman.model.vocab import SPECIAL_IDS
from dragoman.server import engine
from dragoman.server.errors import NotServing, QueueFull
from dragoman.server.kv_cache import CachePool
from dragoman.server.request import RequestStatus
from dragoman.server.step import StepOutputs, Wanted
from tests.fakes.engine import EngineBench, new_request, recorder, words
from tests.fakes.pools import CELLS, LIMITS, SHAPE
from tests.fakes.runtime import Source, certain, echo

WAIT_S = 10  # a test that needs this long has failed


def fail(sources: Sequence[Source]) -> None:
    raise RuntimeError(f"a scripted failure of {len(sources)} rows")


def nothing(sources: Sequence[Source]) -> None:
    del sources


# Continuous batching


def test_a_row_ends_at_eos_with_its_whole_text() -> None:
    """N words take n + 1 steps; EOS is not part of the text."""
    bench = EngineBench()
    [row] = bench.submit(words(3))

    bench.iterate(4)

    assert row.status is RequestStatus.EOS
    assert row.output == echo(words(3))
    assert recorder(row).tokens == row.output
    assert recorder(row).ends == 1


def test_encoding_and_the_first_step_share_an_iteration() -> None:
    """A row that finds a slot has its first token at the end of the same iteration."""
    bench = EngineBench()
    [row] = bench.submit(words(3))

    bench.iterate()

    assert row.status is RequestStatus.RUNNING
    assert recorder(row).tokens == [110]


def test_rows_of_different_age_share_a_step() -> None:
    """A row that arrives later joins the next step of the one that runs."""
    bench = EngineBench()
    old, new = words(6), words(3, first=50)
    bench.submit(old)
    bench.iterate(2)
    bench.submit(new)
    bench.iterate()

    assert bench.runtime.stepped == [[old], [old], [old, new]]


def test_a_waiting_row_takes_the_slot_of_one_that_ended() -> None:
    """A row leaves at its EOS and the next one joins at the next step; nobody waits for the batch."""
    bench = EngineBench(rows=2)
    long, short, waiting = words(9), words(1, first=50), words(4, first=70)
    bench.submit(long, short, waiting)

    bench.iterate(3)

    assert bench.runtime.stepped == [[long, short], [long, short], [long, waiting]]


def test_several_rows_may_end_in_one_step() -> None:
    """Slots are compacted right when first, middle and last row leave together."""
    bench = EngineBench(rows=6)
    sources = [words(1), words(5, 20), words(1, 30), words(1, 40), words(4, 50), words(1, 60)]
    rows = bench.submit(*sources)

    bench.iterate(2)
    ended, running = RequestStatus.EOS, RequestStatus.RUNNING
    assert [row.status for row in rows] == [ended, running, ended, ended, running, ended]
    bench.finish()

    assert [row.output for row in rows] == [echo(source) for source in sources]


def test_an_encode_batch_runs_between_steps_and_not_instead() -> None:
    """While new rows are encoded batch by batch, the running ones get a step each time."""
    bench = EngineBench(rows=8, encode_tokens=32)  # a quarter of it while rows are running
    [first] = bench.submit(words(20))
    bench.iterate()
    bench.submit(*[words(3, first=30 + i) for i in range(6)])

    bench.iterate(3)

    assert [len(batch) for batch in bench.runtime.encoded] == [1, 2, 2, 2]
    assert len(recorder(first).tokens) == 4


def test_views_shrink_when_the_longest_row_has_left() -> None:
    """Short rows do not pay for a long one that is gone."""
    bench = EngineBench()
    long, short = words(30), words(20, first=50)
    bench.submit(long)
    bench.iterate(20)
    bench.submit(short)
    bench.iterate(15)

    assert bench.runtime.state_sizes[19] == 32
    assert bench.runtime.state_sizes[-1] == 16
    assert bench.pool.cross_attention.size == 32


# Limits


def test_the_limit_on_new_tokens_ends_a_row() -> None:
    """At most so many tokens come, and the reason says that the text was cut."""
    bench = EngineBench()
    [row] = bench.submit(words(9), max_new_tokens=4)

    bench.finish()

    assert row.status is RequestStatus.LENGTH
    assert row.output == echo(words(9))[:4]
    assert len(bench.runtime.stepped) == 4


def test_eos_at_the_limit_is_a_complete_text() -> None:
    """The limit counts EOS; a text that just fits was not cut."""
    bench = EngineBench()
    [row] = bench.submit(words(3), max_new_tokens=4)

    bench.finish()

    assert row.status is RequestStatus.EOS
    assert row.output == echo(words(3))


def test_limits_are_per_row() -> None:
    """Rows with different limits share their steps."""
    bench = EngineBench()
    [short] = bench.submit(words(9), max_new_tokens=2)
    [long] = bench.submit(words(9), max_new_tokens=5)

    bench.finish()

    assert (len(short.output), len(long.output)) == (2, 5)
    assert bench.runtime.stepped[0] == [words(9), words(9)]


def test_the_longest_text_the_bundle_allows_fits() -> None:
    """The cache holds max_target_tokens positions, and a row may use them all."""
    bench = EngineBench(translate=lambda _: [7] * 1000)
    [row] = bench.submit(words(40))

    bench.finish()

    assert row.status is RequestStatus.LENGTH
    assert len(row.output) == LIMITS.max_target_tokens


# Cancellation and deadlines


def test_a_row_cancelled_in_the_queue_is_never_encoded() -> None:
    """Nobody waits for it, so no work is done for it."""
    bench = EngineBench()
    [row] = bench.submit(words(3))
    bench.engine.cancel([row])

    bench.iterate()

    assert row.status is RequestStatus.CANCELLED
    assert recorder(row).ends == 1
    assert bench.runtime.encoded == []
    assert bench.value("texts_waiting") == 0


def test_a_running_row_that_is_cancelled_leaves_before_the_next_step() -> None:
    """Its slot is free for a waiting row in the same iteration, and no token follows."""
    bench = EngineBench(rows=1)
    row, waiting = bench.submit(words(9), words(2, first=50))
    bench.iterate(3)
    bench.engine.cancel([row])
    bench.iterate()

    assert row.status is RequestStatus.CANCELLED
    assert recorder(row).tokens == echo(words(9))[:3]
    assert bench.runtime.stepped[-1] == [words(2, first=50)]
    bench.finish()
    assert waiting.status is RequestStatus.EOS


@pytest.mark.parametrize("shape", [SHAPE, CELLS])
def test_cancelling_one_row_leaves_the_others_texts_alone(shape: Shape) -> None:
    """Compaction moves rows, not their contents."""
    bench = EngineBench(shape=shape)
    sources = [words(8, 20), words(9, 30), words(10, 40), words(11, 50)]
    rows = bench.submit(*sources)
    bench.iterate(3)
    bench.engine.cancel([rows[0], rows[2]])

    bench.finish()

    assert rows[1].output == echo(sources[1])
    assert rows[3].output == echo(sources[3])


def test_cancelling_a_finished_row_changes_nothing() -> None:
    """A caller may leave at the very moment its answer is ready."""
    bench = EngineBench()
    [row] = bench.submit(words(1))
    bench.finish()
    bench.engine.cancel([row])

    bench.iterate()

    assert row.status is RequestStatus.EOS
    assert recorder(row).ends == 1


def test_a_row_whose_deadline_passes_in_the_queue_is_dropped() -> None:
    """Late work is not started."""
    bench = EngineBench(rows=1)
    bench.submit(words(20))
    [late] = bench.submit(words(2), timeout_s=5)
    bench.iterate(2)
    bench.clock.advance(5)
    bench.iterate()

    assert late.status is RequestStatus.DEADLINE
    assert len(bench.runtime.encoded) == 1


def test_a_row_whose_deadline_passes_while_it_runs_is_dropped() -> None:
    """Its slot is free within a step; the one that shares the step goes on."""
    bench = EngineBench()
    [late] = bench.submit(words(9), timeout_s=5)
    [other] = bench.submit(words(9, first=50))
    bench.iterate(2)
    bench.clock.advance(6)
    bench.iterate()

    assert late.status is RequestStatus.DEADLINE
    assert len(recorder(late).tokens) == 2
    assert bench.pool.live == 1
    bench.finish()
    assert other.output == echo(words(9, first=50))


def test_a_deadline_in_time_does_nothing() -> None:
    """A row that ends before its deadline has its result."""
    bench = EngineBench()
    [row] = bench.submit(words(2), timeout_s=5)

    bench.finish()

    assert row.status is RequestStatus.EOS


# A full queue


def test_a_call_that_does_not_fit_queues_nothing_at_all() -> None:
    """All rows of a call are accepted or none is; the caller is told when to come back."""
    bench = EngineBench(rows=1, max_queued=3)
    bench.submit(words(3), words(3))
    refused = [new_request(words(2)), new_request(words(2))]

    with pytest.raises(QueueFull, match="2 texts are waiting and the limit is 3, so 2 more do not fit") as caught:
        bench.engine.submit(refused)
    bench.finish()

    assert 0.1 <= caught.value.retry_after_s <= 30
    assert all(row.status is RequestStatus.WAITING for row in refused)
    assert not any(recorder(row).ends for row in refused)
    assert bench.ended(RequestStatus.EOS) == 2


def test_a_queue_may_be_filled_to_its_limit() -> None:
    """The limit itself is allowed, and running rows do not count."""
    bench = EngineBench(rows=2, max_queued=2)
    bench.submit(words(5), words(5))
    bench.iterate()

    bench.submit(words(5), words(5))

    assert bench.value("texts_waiting") == 2


def test_the_retry_delay_grows_with_what_rows_take() -> None:
    """It estimates when the present queue is gone, within bounds."""
    bench = EngineBench(rows=1, max_queued=4)
    delays = []
    for seconds in (0.0, 10.0, 1000.0):
        bench.submit(words(2))
        bench.iterate()
        bench.clock.advance(seconds)
        bench.finish()
        bench.submit(*[words(2)] * 4)
        with pytest.raises(QueueFull) as caught:
            bench.engine.submit([new_request()])
        delays.append(caught.value.retry_after_s)
        bench.finish()

    assert delays == sorted(delays)
    assert delays[0] < delays[1]
    assert delays[2] == 30


# Failures


def test_a_failing_encode_fails_only_its_rows(caplog: pytest.LogCaptureFixture) -> None:
    """Rows that run and rows that wait for the next batch have their texts; the failed ones name the log entry."""
    bench = EngineBench()
    [running] = bench.submit(words(9))
    bench.iterate()
    failing = bench.submit(words(2, first=50), words(2, first=60))
    [later] = bench.submit(words(30, first=50))
    bench.runtime.before_encode = fail
    with caplog.at_level(logging.ERROR):
        bench.iterate()
    bench.runtime.before_encode = nothing
    bench.finish()

    assert [row.status for row in failing] == [RequestStatus.FAILED] * 2
    assert len({row.correlation_id for row in failing}) == 1
    assert failing[0].correlation_id in caplog.text
    assert (running.output, later.output) == (echo(words(9)), echo(words(30, first=50)))
    assert bench.value("engine_failures_total") == 1


def test_a_failing_step_fails_the_live_rows_and_the_engine_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever has a slot fails, once; whoever waits gets a clean slot and a right text."""
    bench = EngineBench(rows=2)
    live = bench.submit(words(9), words(9, first=50))
    [waiting] = bench.submit(words(5, first=70))
    bench.iterate(3)
    bench.runtime.before_step = fail
    with caplog.at_level(logging.ERROR):
        bench.iterate()
    bench.runtime.before_step = nothing
    bench.finish()

    assert [row.status for row in live] == [RequestStatus.FAILED] * 2
    assert [recorder(row).ends for row in live] == [1, 1]
    assert {row.correlation_id for row in live} == {live[0].correlation_id}
    assert live[0].correlation_id in caplog.text
    assert waiting.output == echo(words(5, first=70))
    assert bench.pool.free == 2


def test_rows_encoded_in_the_iteration_of_a_failing_step_fail_too() -> None:
    """They have slots already, so the pool they are in cannot be trusted."""
    bench = EngineBench()
    [old] = bench.submit(words(9))
    bench.iterate()
    [new] = bench.submit(words(9, first=50))
    bench.runtime.before_step = fail
    bench.iterate()

    assert (old.status, new.status) == (RequestStatus.FAILED, RequestStatus.FAILED)
    assert bench.pool.live == 0


@pytest.mark.parametrize("shape", [SHAPE, CELLS])
def test_what_a_failed_step_wrote_is_forgotten(shape: Shape) -> None:
    """A NaN that it left in the cache reaches nobody: in attention it would be NaN even times weight 0."""
    bench = EngineBench(shape=shape)
    bench.submit(words(9))

    def fail_half_way(sources: Sequence[Source]) -> None:
        for view in (*bench.pool.states.views(), *bench.pool.states.updated_views()):
            view.fill(np.nan)
        fail(sources)

    bench.runtime.before_step = fail_half_way
    bench.iterate()

    states = bench.pool.states
    assert not any(view.any() for view in (*states.views(), *states.updated_views()))


def test_a_failure_after_new_requests_got_their_slots_fails_whoever_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows then which slots are right, so none is used on."""
    bench = EngineBench()
    [old] = bench.submit(words(9))
    bench.iterate()
    [new] = bench.submit(words(9))
    with monkeypatch.context() as patch:
        patch.setattr(bench.metrics, "encode_rows", SimpleNamespace(observe=lambda rows: fail([()] * rows)))
        bench.iterate()
    [later] = bench.submit(words(3))
    bench.finish()

    assert (old.status, new.status, later.status) == (RequestStatus.FAILED, RequestStatus.FAILED, RequestStatus.EOS)
    assert (recorder(old).ends, recorder(new).ends) == (1, 1)


# The thread


def test_closing_finishes_what_was_accepted_and_refuses_the_rest() -> None:
    """After close() every accepted row has its end, and a new one is refused as during a drain."""
    bench = EngineBench(rows=2)
    rows = bench.submit(*[words(7, first=10 + i) for i in range(9)])
    bench.engine.start()
    assert bench.engine.alive
    bench.engine.close()

    assert not bench.engine.alive
    assert [row.status for row in rows] == [RequestStatus.EOS] * 9
    with pytest.raises(NotServing, match="shutting down"):
        bench.engine.submit([new_request()])


def test_an_idle_engine_wakes_up_for_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread sleeps without work and starts at once when a row comes."""
    monkeypatch.setattr(engine, "_IDLE_WAIT_S", 10 * WAIT_S)
    bench = EngineBench()
    ended = [threading.Event(), threading.Event()]

    def tell() -> None:
        for event in ended[: int(bench.ended(RequestStatus.EOS))]:
            event.set()

    bench.after_deliver = tell
    bench.engine.start()
    for event in ended:
        bench.submit(words(3))
        assert event.wait(WAIT_S)
    bench.engine.close()


# Metrics and times


def test_times_are_taken_in_order() -> None:
    """A row knows when it was queued, encoded, first answered and ended."""
    bench = EngineBench()
    bench.runtime.before_encode = lambda _: bench.clock.advance(2)
    bench.runtime.before_step = lambda _: bench.clock.advance(0.5)
    [row] = bench.submit(words(2))
    bench.clock.advance(1)

    bench.finish()

    times = row.times
    assert (times.submitted, times.encode_start, times.encode_end) == (1000.0, 1001.0, 1003.0)
    assert (times.first_token, times.ended) == (1003.5, 1004.5)


@pytest.mark.parametrize("shape", [SHAPE, CELLS])
def test_metrics_count_what_the_engine_did(shape: Shape) -> None:
    """Rows, tokens, batch sizes and durations agree with what was computed."""
    bench = EngineBench(rows=2, shape=shape)
    bench.runtime.before_encode = lambda _: bench.clock.advance(2)
    bench.runtime.before_step = lambda _: bench.clock.advance(0.5)
    bench.submit(words(2), words(4, first=50))
    bench.clock.advance(1)
    bench.finish()

    assert bench.value("slots") == 2
    assert bench.value("cache_bytes") == bench.pool.nbytes
    assert bench.value("encode_rows_count") == 1
    assert bench.value("encode_rows_sum") == 2
    assert bench.value("encode_duration_seconds_sum") == 2
    assert bench.value("queue_duration_seconds_sum") == 2 * 1
    assert bench.value("decode_step_rows_count") == 5
    assert bench.value("decode_step_rows_sum") == 3 * 2 + 2 * 1
    assert bench.value("decode_step_duration_seconds_sum") == 5 * 0.5
    assert bench.value("time_to_first_token_seconds_count") == 2
    assert bench.value("time_to_first_token_seconds_sum") == 2 * 3.5
    assert bench.value("source_tokens_total") == 3 + 5
    assert bench.value("target_tokens_total") == 2 + 4
    assert bench.value("text_source_tokens_sum") == 3 + 5
    assert bench.value("text_target_tokens_sum") == 2 + 4
    assert bench.value("texts_running") == 0
    assert bench.ended(RequestStatus.EOS) == 2


def test_running_and_waiting_are_shown_while_there_is_work() -> None:
    """Gauges follow the queue and the slots."""
    bench = EngineBench(rows=2)
    bench.submit(*[words(5, first=10 + i) for i in range(5)])
    assert bench.value("texts_waiting") == 5
    bench.iterate()

    assert (bench.value("texts_running"), bench.value("texts_waiting")) == (2, 3)


def test_each_way_to_end_is_counted_under_its_reason() -> None:
    """texts_ended has one count per row, with the status as reason."""
    bench = EngineBench(rows=8)
    bench.submit(words(1))
    bench.submit(words(9), max_new_tokens=2)
    bench.submit(words(9), timeout_s=1)
    [cancelled] = bench.submit(words(9))
    bench.iterate(2)
    bench.clock.advance(1)
    bench.engine.cancel([cancelled])
    bench.iterate()
    bench.submit(words(9))
    bench.runtime.before_encode = fail
    bench.finish()

    for status in RequestStatus:
        expected = status.final and status is not RequestStatus.STOPPED
        assert bench.ended(status) == expected, status


def test_a_listener_that_wants_no_tokens_gets_the_end_only() -> None:
    """A unary call does not pay for an event per token; its row's output is complete all the same."""
    bench = EngineBench()
    [row] = bench.submit(words(3))
    recorder(row).wants_tokens = False
    told: list[int] = []
    recorder(row).token = told.append  # type: ignore[method-assign,assignment]
    recorder(row).ended = lambda request: told.append(-len(request.output))  # type: ignore[method-assign]

    bench.finish()

    assert told == [-3]
    assert row.output == echo(words(3))


@pytest.mark.parametrize("shape", [SHAPE, CELLS])
def test_logits_that_are_not_numbers_fail_their_row_alone(shape: Shape) -> None:
    """The argmax of NaN is an id that the graph masks; the neighbour goes on and the slot is clean."""
    bench = EngineBench(shape=shape)
    bad, good = bench.submit(words(3, first=50), words(3))
    bench.iterate()
    step = bench.runtime.step

    def pad_for_the_first_row(pool: CachePool, wanted: Wanted = Wanted.NOTHING) -> StepOutputs:
        outputs = step(pool, wanted)
        [slot] = bench.search.slots_of(bad)
        outputs.next_ids[slot] = SPECIAL_IDS.pad
        for view in pool.states.updated_views():
            view[slot] = np.nan
        return outputs

    bench.runtime.step = pad_for_the_first_row  # type: ignore[method-assign]
    bench.iterate()
    bench.runtime.step = step  # type: ignore[method-assign]
    bench.finish()

    assert bad.status is RequestStatus.FAILED
    assert bad.correlation_id
    assert recorder(bad).ends == 1
    assert (good.status, good.output) == (RequestStatus.EOS, echo(words(3)))
    states = bench.pool.states
    assert not any(np.isnan(view).any() for view in (*states.views(), *states.updated_views()))


def test_a_failed_admission_fails_whoever_has_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caches may be half laid out; nobody decodes from them and later rows are fine."""
    bench = EngineBench()
    [running] = bench.submit(words(6))
    bench.iterate()
    monkeypatch.setattr(bench.pool, "admit", lambda *_: fail([]))
    [new] = bench.submit(words(3, first=50))
    bench.iterate()
    monkeypatch.undo()
    [later] = bench.submit(words(4, first=70))
    bench.finish()

    assert (running.status, new.status) == (RequestStatus.FAILED, RequestStatus.FAILED)
    assert later.output == echo(words(4, first=70))


def test_an_engine_that_dies_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running and waiting rows fail, new ones are refused, and liveness sees it."""
    bench = EngineBench(rows=1)
    rows = bench.submit(words(6), words(3))
    monkeypatch.setattr(bench.engine, "_drop", lambda _: fail([]))
    bench.engine.start()
    bench.engine._thread.join(WAIT_S)

    assert not bench.engine.alive
    assert [row.status for row in rows] == [RequestStatus.FAILED] * 2
    assert [recorder(row).ends for row in rows] == [1, 1]
    with pytest.raises(NotServing):
        bench.submit(words(3))


def test_a_cancelled_row_far_down_the_queue_leaves_at_once() -> None:
    """Only the head of a long queue is looked at every time, the rest when somebody in it may have to go."""
    bench = EngineBench(rows=1, max_queued=1000)
    rows = bench.submit(*[words(2)] * 600)
    late = bench.submit(words(2), timeout_s=5.0)
    bench.iterate()
    bench.engine.cancel([rows[590]])
    bench.iterate()
    assert rows[590].status is RequestStatus.CANCELLED
    bench.clock.advance(6.0)
    bench.iterate()

    assert late[0].status is RequestStatus.DEADLINE
    assert bench.value("texts_waiting") == sum(row.status is RequestStatus.WAITING for row in rows)


def test_a_target_begins_with_the_tokens_it_was_given() -> None:
    """Whatever the graph says; they reach no listener and do not count towards the limit."""
    given = (50, 51)
    sure = certain(echo, SHAPE.vocab_size)

    def score(source: Source, prefix: Source) -> NDArray[np.float32]:
        if len(source) != 5:
            return sure(source, prefix)
        assert prefix[:2] == given[: len(prefix)]
        return sure(source, prefix[2:])

    bench = EngineBench(score=score)
    row, plain = new_request(words(4), max_new_tokens=2, first_target=given), new_request(words(2))
    bench.engine.submit([row, plain])
    bench.iterate(6)

    assert row.output == recorder(row).tokens == echo(words(4))[:2]
    assert row.status is RequestStatus.LENGTH
    assert plain.output == echo(words(2))
