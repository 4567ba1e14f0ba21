"""More work than slots: cancellation, deadlines and a full queue."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from dragoman.v1 import translation_pb2 as pb
from tests.e2e.process import WAIT_S, ServerProcess, start_server, wait_for

SLOTS = 2
MAX_QUEUED = 300
ENDLESS = "and " * 30  # not a sentence: the model repeats itself up to the limit
OPTIONS = pb.DecodingOptions(max_new_tokens=128)
LONG_CALL = pb.TranslateRequest(texts=[ENDLESS] * 256, options=OPTIONS)  # seconds
MEDIUM_CALL = pb.TranslateRequest(texts=[ENDLESS] * 32, options=OPTIONS)  # most of a second
SHORT_CALL = pb.TranslateRequest(texts=["one"])


@pytest.fixture(scope="module")
def busy() -> Iterator[ServerProcess]:
    """A server with few slots, so that LONG_CALL keeps it busy for seconds."""
    with start_server("--max-rows", str(SLOTS), "--max-queued-texts", str(MAX_QUEUED)) as server:
        yield server


@pytest.fixture(autouse=True)
def the_server_is_idle_again(busy: ServerProcess) -> Iterator[None]:
    """Each test starts and ends without a row in the engine."""
    yield
    wait_for_idle(busy)


def wait_for_idle(server: ServerProcess) -> None:
    wait_for(lambda: server.rows_in_engine() == 0, "the engine is idle")


def start(
    server: ServerProcess, request: pb.TranslateRequest, timeout_s: float = WAIT_S
) -> grpc.Future[pb.TranslateResponse]:
    """Send a call and return when its first rows run."""
    call = server.stub.Translate.future(request, timeout=timeout_s)
    wait_for(lambda: server.metric("texts_running") == SLOTS or call.done(), "all slots are in use")
    return call


def rows_gone(server: ServerProcess) -> float:
    """Return how many rows left without a result: at a deadline the caller's cancellation may come first."""
    return sum(server.metric("texts_ended_total", reason=reason) for reason in ("cancelled", "deadline"))


def calls_gone(server: ServerProcess) -> float:
    """Return how many calls ended without an answer that anybody read."""
    codes = ("CANCELLED", "DEADLINE_EXCEEDED")
    return sum(server.metric("requests_total", method="Translate", code=code) for code in codes)


def test_a_cancelled_call_frees_its_slots_and_its_place_in_the_queue(busy: ServerProcess) -> None:
    """Its rows leave within a step; none of the waiting ones is encoded."""
    before, counted = rows_gone(busy), calls_gone(busy)
    call = start(busy, LONG_CALL)

    call.cancel()
    wait_for_idle(busy)

    assert rows_gone(busy) - before > 200
    assert busy.metric("texts_ended_total", reason="cancelled") > 200
    wait_for(lambda: calls_gone(busy) == counted + 1, "the call is counted")


def test_a_deadline_frees_slots_and_queue(busy: ServerProcess) -> None:
    """The caller gets DEADLINE_EXCEEDED, and the server stops working for it."""
    before, counted = rows_gone(busy), calls_gone(busy)
    call = start(busy, LONG_CALL, timeout_s=0.3)
    with pytest.raises(grpc.RpcError) as caught:
        call.result()
    wait_for_idle(busy)

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert rows_gone(busy) - before > 100
    wait_for(lambda: calls_gone(busy) == counted + 1, "the call is counted")


def test_a_deadline_in_the_queue_disturbs_nobody(busy: ServerProcess) -> None:
    """A short call that cannot wait is dropped unencoded; the one that runs has all its results."""
    before = rows_gone(busy)
    running = start(busy, MEDIUM_CALL)
    with pytest.raises(grpc.RpcError) as caught:
        busy.stub.Translate(SHORT_CALL, timeout=0.05)

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert [t.finish_reason for t in running.result().translations] == [pb.FINISH_REASON_LENGTH] * 32
    assert rows_gone(busy) - before == 1


def test_a_stream_cancelled_in_the_queue_leaves_it(busy: ServerProcess) -> None:
    """Whoever goes away before the first piece is not translated at all."""
    before = rows_gone(busy)
    running = start(busy, LONG_CALL)
    tokenized = busy.metric("tokenize_duration_seconds_count")
    # Another caller, for whom there is a place in the queue, and of a class that waits for all the others.
    request = pb.StreamTranslateRequest(text="one", options=pb.DecodingOptions(priority=pb.PRIORITY_BULK))
    stream = busy.stub.StreamTranslate(request, timeout=WAIT_S, metadata=(("dragoman-caller", "other"),))
    wait_for(lambda: busy.metric("tokenize_duration_seconds_count") > tokenized, "the stream's row is queued")
    stream.cancel()
    wait_for(lambda: rows_gone(busy) - before == 1, "the stream's row has left")

    assert not running.done()
    running.cancel()


def test_a_full_queue_refuses_whole_calls_and_says_when_to_retry(busy: ServerProcess) -> None:
    """RESOURCE_EXHAUSTED with RetryInfo; who was accepted is answered, who was refused may come again."""
    accepted = start(busy, LONG_CALL)
    with pytest.raises(grpc.RpcError) as caught:
        busy.stub.Translate(LONG_CALL, timeout=WAIT_S)

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"the limit is {MAX_QUEUED}" in str(caught.value.details())
    retry = error_details_pb2.RetryInfo()
    assert rpc_status.from_call(caught.value).details[0].Unpack(retry)
    assert 0.1 <= retry.retry_delay.ToNanoseconds() / 1e9 <= 30
    accepted.cancel()
    wait_for_idle(busy)
    assert busy.stub.Translate(SHORT_CALL, timeout=WAIT_S).translations[0].text
