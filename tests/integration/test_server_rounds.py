"""Calls that are more than one request: samples and alternatives on the real engine, with a runtime that can fail."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import grpc
import pytest

from dragoman.server.request import Priority, Request
from dragoman.v1 import translation_pb2 as pb
from tests.fakes.runtime import Source
from tests.integration.test_server_service import OTHER, TEXT, Service, error_of, fail, read_all, run

SAMPLES = pb.DecodingOptions(sampling=pb.Sampling(seed=1, top_k=1), num_hypotheses=3)
ALTERNATIVES = pb.DecodingOptions(return_alternatives=2)


def submitted(service: Service, monkeypatch: pytest.MonkeyPatch) -> list[list[Request]]:
    """Return what is submitted to the engine from now on, call by call."""
    rounds: list[list[Request]] = []
    submit = service.bench.engine.submit

    def record(requests: Sequence[Request]) -> None:
        rounds.append(list(requests))
        submit(requests)

    monkeypatch.setattr(service.bench.engine, "submit", record)
    return rounds


def test_caller_class_and_deadline_are_on_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each round and sample; without a name the caller is an address without its port."""
    options = pb.DecodingOptions(return_alternatives=2, priority=pb.PRIORITY_INTERACTIVE)

    async def test(service: Service) -> None:
        rounds = submitted(service, monkeypatch)
        metadata = (("dragoman-caller", "team-a"),)
        await service.stub.Translate(pb.TranslateRequest(texts=[TEXT], options=options), timeout=9, metadata=metadata)
        await service.stub.Translate(pb.TranslateRequest(texts=[TEXT], options=SAMPLES))

        first, second, samples = rounds
        assert {len(first), len(samples)} == {1, 3}
        for request in (*first, *second):
            assert (request.caller, request.priority) == ("team-a", Priority.INTERACTIVE)
            assert request.deadline is not None
        for request in samples:
            assert (request.caller, request.priority, request.deadline) == ("127.0.0.1", Priority.NORMAL, None)

    run(test)


@pytest.mark.parametrize("options", [SAMPLES, ALTERNATIVES], ids=["samples", "alternatives"])
def test_who_leaves_a_stream_takes_all_of_it_along(options: pb.DecodingOptions) -> None:
    """The requests that nobody streams, too."""
    steps = itertools.count()

    async def test(service: Service) -> None:
        def hold(sources: Sequence[Source]) -> None:
            if next(steps) == 5:
                service.gate.clear()
            service.before_step(sources)

        service.bench.runtime.before_step = hold
        call = service.stub.StreamTranslate(pb.StreamTranslateRequest(text=OTHER, options=options))
        await service.until_stepping()
        call.cancel()
        await service.until(lambda: service.num_requests("StreamTranslate", "CANCELLED") == 1)
        service.gate.set()
        await service.until(lambda: service.bench.pool.free == service.bench.pool.rows)
        await service.until(lambda: not service.bench.value("texts_waiting"))

        assert service.bench.value("texts_ended_total", reason="cancelled") >= 1

    run(test)


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_a_first_round_that_fails_ends_the_call(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to go on with."""

    async def test(service: Service) -> None:
        rounds = submitted(service, monkeypatch)
        service.bench.runtime.before_encode = fail
        if stream:
            call = service.stub.StreamTranslate(pb.StreamTranslateRequest(text=TEXT, options=ALTERNATIVES))
            error = await error_of(read_all(call, []))
        else:
            error = await error_of(service.stub.Translate(pb.TranslateRequest(texts=[TEXT], options=ALTERNATIVES)))

        assert error.code() is grpc.StatusCode.INTERNAL
        assert len(rounds) == 1

    run(test)


def test_a_failure_of_the_streamed_request_does_not_wait_for_the_others() -> None:
    """They are of no use to anybody, and leave."""
    steps = itertools.count()

    async def test(service: Service) -> None:
        def fail_late(sources: Sequence[Source]) -> None:
            if next(steps) == 4:
                fail(sources)

        service.bench.runtime.before_step = fail_late
        pieces: list[str] = []
        request = pb.StreamTranslateRequest(text=OTHER, options=SAMPLES)
        error = await error_of(read_all(service.stub.StreamTranslate(request), pieces))

        assert error.code() is grpc.StatusCode.INTERNAL
        assert OTHER.startswith("".join(pieces))
        await service.until(lambda: service.bench.pool.free == service.bench.pool.rows)

    run(test)


def test_samples_and_alternatives_are_answered() -> None:
    """Each text of a call gets all of its own, in order; a blank one has its blank one."""

    async def test(service: Service) -> None:
        both = pb.TranslateRequest(texts=[TEXT, "", OTHER], options=SAMPLES)
        samples, alternatives = await asyncio.gather(
            service.stub.Translate(both),
            service.stub.Translate(pb.TranslateRequest(texts=[TEXT, "", OTHER], options=ALTERNATIVES)),
        )

        texts = [[hypothesis.text for hypothesis in one.hypotheses] for one in samples.translations]
        assert texts == [[TEXT] * 3, [""], [OTHER] * 3]
        assert [one.text for one in alternatives.translations] == [TEXT, "", OTHER]

    run(test)


def test_a_text_meets_its_stop_sequence_and_leaves_its_slot() -> None:
    """The engine is told at once; it would have gone on to the end."""
    options = pb.DecodingOptions(stop_sequences=["and"])

    async def test(service: Service) -> None:
        response = await service.stub.Translate(pb.TranslateRequest(texts=[OTHER], options=options))
        streamed: list[str] = []
        await read_all(service.stub.StreamTranslate(pb.StreamTranslateRequest(text=OTHER, options=options)), streamed)

        assert response.translations[0].text == "".join(streamed) == OTHER.split("and")[0]
        assert response.translations[0].finish_reason == pb.FINISH_REASON_STOP_SEQUENCE
        await service.until(lambda: service.bench.pool.free == service.bench.pool.rows)

    run(test)
