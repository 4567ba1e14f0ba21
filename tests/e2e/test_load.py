"""More work than slots: cancellation, deadlines and a full queue."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from dragoman.v1 import translation_pb2 as pb
from e2e.process import WAIT_S, ServerProcess, start_server, wait_for

SLOTS = 2
MAX_QUEUED = 300
ENDLESS = "and " * 30  # not a sentence: the model repeats itself up to the limit
LONG_CALL = pb.TranslateRequest(texts=[ENDLESS] * 256, options=pb.DecodingOptions(max_new_tokens=128))
SHORT_CALL = pb.TranslateRequest(texts=["one"])
GONE = ("cancelled", "deadline")


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
    wait_for(lambda: server.metric("rows_running") + server.metric("rows_waiting") == 0, "the engine is idle")


def start_long_call(server: ServerProcess, timeout_s: float = WAIT_S) -> grpc.Future:
    """Send LONG_CALL and return when its first rows run."""
    call = server.stub.Translate.future(LONG_CALL, timeout=timeout_s)
    wait_for(lambda: server.metric("rows_running") == SLOTS or call.done(), "all slots are in use")
    return call


def rows_gone(server: ServerProcess) -> float:
    return sum(server.metric("rows_ended_total", reason=reason) for reason in GONE)


def test_a_cancelled_call_frees_its_slots_and_its_place_in_the_queue(busy: ServerProcess) -> None:
    """Its rows leave within a step; none of the waiting ones is encoded."""
    before = rows_gone(busy)
    call = start_long_call(busy)

    call.cancel()
    wait_for_idle(busy)

    assert rows_gone(busy) - before > 200
    assert busy.metric("rows_ended_total", reason="cancelled") > 200
    wait_for(lambda: busy.metric("requests_total", method="Translate", code="CANCELLED") == 1, "the call is counted")


def test_a_deadline_frees_slots_and_queue(busy: ServerProcess) -> None:
    """The caller gets DEADLINE_EXCEEDED, and the server stops working for it."""
    before = rows_gone(busy)
    call = start_long_call(busy, timeout_s=0.3)
    with pytest.raises(grpc.RpcError) as caught:
        call.result()
    wait_for_idle(busy)

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert rows_gone(busy) - before > 100
    wait_for(
        lambda: busy.metric("requests_total", method="Translate", code="DEADLINE_EXCEEDED") == 1, "the call is counted"
    )


def test_a_deadline_in_the_queue_disturbs_nobody(busy: ServerProcess) -> None:
    """A short call that cannot wait is dropped unencoded; the long one that runs has all its results."""
    before = rows_gone(busy)
    long = start_long_call(busy)
    with pytest.raises(grpc.RpcError) as caught:
        busy.stub.Translate(SHORT_CALL, timeout=0.1)

    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert len(long.result().translations) == 256
    assert rows_gone(busy) - before == 1


def test_a_cancelled_stream_frees_its_slot(busy: ServerProcess) -> None:
    """Whoever stops reading after the first piece stops the row."""
    before = rows_gone(busy)
    long = start_long_call(busy)
    stream = busy.stub.StreamTranslate(
        pb.StreamTranslateRequest(text=ENDLESS, options=pb.DecodingOptions(max_new_tokens=128)), timeout=WAIT_S
    )
    wait_for(lambda: busy.metric("rows_waiting") > 0, "the stream's row is queued")
    stream.cancel()
    wait_for(lambda: rows_gone(busy) - before == 1, "the stream's row has left")

    assert not long.done()
    long.cancel()


def test_a_full_queue_refuses_whole_calls_and_says_when_to_retry(busy: ServerProcess) -> None:
    """RESOURCE_EXHAUSTED with RetryInfo; who was accepted is answered, who was refused may come again."""
    accepted = start_long_call(busy)
    with pytest.raises(grpc.RpcError) as caught:
        busy.stub.Translate(LONG_CALL, timeout=WAIT_S)

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"the limit is {MAX_QUEUED}" in caught.value.details()
    retry = error_details_pb2.RetryInfo()
    assert rpc_status.from_call(caught.value).details[0].Unpack(retry)
    assert 0.1 <= retry.retry_delay.ToNanoseconds() / 1e9 <= 30
    accepted.cancel()
    wait_for_idle(busy)
    assert busy.stub.Translate(SHORT_CALL, timeout=WAIT_S).translations[0].text


def test_a_short_call_does_not_wait_for_a_long_one_to_end(busy: ServerProcess) -> None:
    """Streams that arrive behind each other are served in order of arrival, one slot after the other."""
    ends = []
    calls = [busy.stub.Translate.future(pb.TranslateRequest(texts=[ENDLESS] * 8), timeout=WAIT_S) for _ in range(6)]
    for number, call in enumerate(calls):
        call.add_done_callback(lambda _, number=number: ends.append(number))
    for call in calls:
        call.result()
    wait_for(lambda: len(ends) == len(calls), "all callbacks have run")

    assert all(later - earlier >= -1 for earlier, later in pairwise(ends))
