"""The gRPC service on loopback with the real engine and a runtime that can fail and wait."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc
import pytest

from dragoman.export import bundle
from dragoman.export.bundle import Manifest
from dragoman.model.tokenizers import SentencePieceTokenizer, Tokenizer
from dragoman.server.engine import Event
from dragoman.server.replicas import Replicas
from dragoman.server.service import CallLimits, Model, TranslationService
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1.translation_pb2_grpc import TranslationServiceStub
from dragoman.v1.translation_pb2_grpc import add_TranslationServiceServicer_to_server as add_to_server
from tests.fakes.engine import EngineBench
from tests.fakes.pools import LIMITS
from tests.fakes.runtime import Source

if TYPE_CHECKING:
    from dragoman.v1.translation_pb2_grpc import TranslationServiceAsyncStub  # exists for type checkers only

BUNDLE = Path(__file__).parents[1] / "data" / "tiny-v1"
WAIT_S = 10.0  # a test that needs this long has failed
REASON, TEXT = "a scripted reason that callers must not see", "one hundred twenty-three"
OTHER = "forty-two euros and three cents and one thousand two hundred minutes"  # of another length bucket
ONE_TEXT = pb.TranslateRequest(texts=[TEXT])


class Service:
    """The service under test and its engine, whose thread runs.

    Attributes:
        bench: Engine, pool, runtime and metrics.
        service: Answers UNAVAILABLE until `load`.
        stub: Calls it.
        gate: While it is clear, decode steps wait.
    """

    def __init__(self, stub: TranslationServiceAsyncStub, service: TranslationService, bench: EngineBench) -> None:
        self.stub = stub
        self.service = service
        self.bench = bench
        self.gate = threading.Event()
        self.gate.set()
        self._stepping = threading.Event()
        bench.runtime.before_step = self.before_step

    async def until(self, condition: Callable[[], bool]) -> None:
        """Poll until something holds."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.005)

    async def until_stepping(self) -> None:
        """Return when a step waits at the gate."""
        await self.until(self._stepping.is_set)

    def num_requests(self, method: str, code: str) -> float:
        """Return how many calls have ended with a code."""
        get = self.bench.metrics.registry.get_sample_value
        return get("dragoman_requests_total", {"method": method, "code": code}) or 0.0

    def before_step(self, sources: Sequence[Source]) -> None:
        """Wait at the gate, on the engine's thread."""
        del sources
        if not self.gate.is_set():
            self._stepping.set()
            self.gate.wait(WAIT_S)


def fail(sources: Sequence[Source]) -> None:
    """Fail an encode batch or a step."""
    raise RuntimeError(f"{REASON}, {len(sources)} rows")


def run(test: Callable[[Service], Awaitable[None]], *, loaded: bool = True) -> None:
    """Run a test against a new service."""

    async def main() -> None:
        async with serving(loaded=loaded) as service:
            await test(service)

    asyncio.run(main())


@asynccontextmanager
async def serving(*, loaded: bool) -> AsyncIterator[Service]:
    loop = asyncio.get_running_loop()

    def deliver(events: Sequence[Event]) -> None:
        loop.call_soon_threadsafe(lambda: [event() for event in events])

    manifest = replace(bundle.load_manifest(BUNDLE), limits=LIMITS)
    tokenizer = bundle.load_tokenizer(BUNDLE, manifest)
    bench = EngineBench(translate=lambda source: source[:-1], deliver=deliver, clock=time.monotonic)
    server = grpc.aio.server()
    with ThreadPoolExecutor(max_workers=2) as threads:
        service = TranslationService(bench.metrics, CallLimits(8, 10_000, 100), threads)
        add_to_server(service, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        if loaded:
            service.serve(make_model(manifest, tokenizer, bench))
        bench.engine.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", [("grpc.enable_http_proxy", 0)]) as channel:
            stub: TranslationServiceAsyncStub = TranslationServiceStub(channel)
            made = Service(stub, service, bench)
            try:
                yield made
            finally:
                made.gate.set()
                await server.stop(grace=WAIT_S)
                await loop.run_in_executor(None, bench.engine.close)


def make_model(manifest: Manifest, tokenizer: Tokenizer, bench: EngineBench) -> Model:
    return Model(manifest, tokenizer, Replicas([bench.engine], max_queued=100), device="cpu", requested_device="auto")


async def error_of(call: Awaitable[object]) -> grpc.aio.AioRpcError:
    """Return the error a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call, WAIT_S)
    return caught.value


async def read_all(call: AsyncIterable[pb.StreamTranslateResponse], into: list[str]) -> None:
    async for response in call:
        into += [response.text]  # one by one: what came before an error counts


# Phases


def test_a_loading_server_says_so() -> None:
    """Calls get UNAVAILABLE and may be tried again; the list of models is empty."""

    async def test(service: Service) -> None:
        errors = [
            await error_of(service.stub.Translate(ONE_TEXT)),
            await error_of(read_all(service.stub.StreamTranslate(pb.StreamTranslateRequest(text=TEXT)), [])),
            await error_of(service.stub.GetModel(pb.GetModelRequest())),
        ]

        assert {error.code() for error in errors} == {grpc.StatusCode.UNAVAILABLE}
        assert all("still loading" in str(error.details()) for error in errors)
        assert not (await service.stub.ListModels(pb.ListModelsRequest())).models

    run(test, loaded=False)


def test_a_draining_server_refuses_new_calls_and_finishes_the_others() -> None:
    """A call that was accepted before has its answer, and then the service is idle."""

    async def test(service: Service) -> None:
        service.gate.clear()
        accepted = service.stub.Translate(ONE_TEXT)
        await service.until_stepping()
        service.service.drain()
        error = await error_of(service.stub.Translate(ONE_TEXT))
        idle = asyncio.ensure_future(service.service.idle())
        await asyncio.sleep(0)
        assert not idle.done()
        service.gate.set()

        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in str(error.details())
        assert (await accepted).translations[0].text == TEXT
        await asyncio.wait_for(idle, WAIT_S)

    run(test)


# Our own failures


def assert_hides(error: grpc.aio.AioRpcError, log: str) -> None:
    """An internal error names the one log entry and nothing of what is in it."""
    assert error.code() is grpc.StatusCode.INTERNAL
    found = re.search(r"correlation id ([0-9a-f]{12})", str(error.details()))
    assert found
    assert found[1] in log
    assert log.count("correlation") == log.count(found[1]) == 1
    assert REASON in log
    assert REASON not in str(error.details())
    assert TEXT not in log


def test_a_failing_encode_is_an_internal_error_of_its_calls_only(caplog: pytest.LogCaptureFixture) -> None:
    """The caller gets an id, the log the reason under it; whoever decodes meanwhile is not disturbed."""

    async def test(service: Service) -> None:
        service.gate.clear()
        running = service.stub.Translate(pb.TranslateRequest(texts=[OTHER]))
        await service.until_stepping()
        service.bench.runtime.before_encode = fail
        failing = service.stub.Translate(ONE_TEXT)
        await service.until(lambda: service.bench.value("texts_waiting") == 1)
        service.gate.set()

        with caplog.at_level(logging.ERROR):
            assert_hides(await error_of(failing), caplog.text)
        assert (await running).translations[0].text == OTHER
        await service.until(lambda: service.num_requests("Translate", "INTERNAL") == 1)

    run(test)


def test_a_failing_step_ends_a_stream_after_its_pieces(caplog: pytest.LogCaptureFixture) -> None:
    """What was sent stays sent, then comes the error; there is no end message that looks like success."""

    async def test(service: Service) -> None:
        steps = 0

        def fail_late(sources: Sequence[Source]) -> None:
            nonlocal steps
            steps += 1
            if steps == 5:
                fail(sources)

        service.bench.runtime.before_step = fail_late
        pieces: list[str] = []
        error = await error_of(read_all(service.stub.StreamTranslate(pb.StreamTranslateRequest(text=TEXT)), pieces))

        assert_hides(error, caplog.text)
        assert all(pieces)
        assert TEXT.startswith("".join(pieces))
        assert len("".join(pieces)) > 3

    run(test)


def test_a_call_with_one_failed_text_fails_as_a_whole(caplog: pytest.LogCaptureFixture) -> None:
    """Results are one to one with the texts, so there is no half answer; the next call works."""

    async def test(service: Service) -> None:
        def fail_short(batch: Sequence[Source]) -> None:
            if len(batch[0]) <= 16:
                fail(batch)

        service.bench.runtime.before_encode = fail_short
        error = await error_of(service.stub.Translate(pb.TranslateRequest(texts=[OTHER, TEXT])))

        assert_hides(error, caplog.text)
        response = await service.stub.Translate(pb.TranslateRequest(texts=[OTHER]))
        assert response.translations[0].text == OTHER

    run(test)


@pytest.mark.parametrize("method", ["Translate", "StreamTranslate"])
def test_an_unexpected_exception_is_hidden_too(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever goes wrong in a handler, the caller gets an id and the log the rest."""

    def fail(*_: object) -> list[int]:
        raise RuntimeError(REASON)

    async def test(service: Service) -> None:
        monkeypatch.setattr(SentencePieceTokenizer, "encode", fail)
        if method == "Translate":
            error = await error_of(service.stub.Translate(ONE_TEXT))
        else:
            error = await error_of(read_all(service.stub.StreamTranslate(pb.StreamTranslateRequest(text=TEXT)), []))

        assert_hides(error, caplog.text)
        await service.until(lambda: service.num_requests(method, "INTERNAL") == 1)

    run(test)


# Load


def test_texts_that_wait_for_the_tokenizer_count_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst is refused also while the engine's own queue is empty; the calls before it get their answers."""
    gate = threading.Event()
    encode = SentencePieceTokenizer.encode

    def slow(tokenizer: SentencePieceTokenizer, text: str) -> list[int]:
        gate.wait(WAIT_S)
        return encode(tokenizer, text)

    async def test(service: Service) -> None:
        monkeypatch.setattr(SentencePieceTokenizer, "encode", slow)
        request = pb.TranslateRequest(texts=[" ".join([TEXT] * 4)] * 8)
        callers = [(("dragoman-caller", f"{number}"),) for number in range(12)]
        accepted = [service.stub.Translate(request, metadata=caller) for caller in callers]  # 96 texts of 100
        try:
            await service.until(lambda: service.service.tokenizing.pending == 96)
            error = await error_of(service.stub.Translate(request))
        finally:
            gate.set()
        responses = [await call for call in accepted]

        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "96 texts wait to be tokenized and the limit is 100, so 8 more do not fit" in str(error.details())
        assert all(translation.text for response in responses for translation in response.translations)

    run(test)


# Callers who leave


class LateContext:
    """A context whose deadline has just passed and that gRPC has not cancelled yet.

    Attributes:
        status: What the call was aborted with.
    """

    status: grpc.Status | None = None
    peer = staticmethod(lambda: "ipv4:127.0.0.1:41234")
    invocation_metadata = staticmethod(tuple)

    def time_remaining(self) -> float:
        """Return the seconds left."""
        return 0.0

    async def abort_with_status(self, status: grpc.Status) -> None:
        """Keep the status and leave the handler, as gRPC does."""
        self.status = status
        raise grpc.aio.AbortError


def test_a_deadline_reaches_the_engine() -> None:
    """The engine drops the row by itself, without waiting for gRPC to cancel the call."""

    async def test(service: Service) -> None:
        context = LateContext()
        with pytest.raises(grpc.aio.AbortError):
            await asyncio.wait_for(service.service.Translate(ONE_TEXT, cast(Any, context)), WAIT_S)

        assert context.status is not None
        assert context.status.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert service.bench.value("texts_ended_total", reason="deadline") == 1
        assert service.num_requests("Translate", "DEADLINE_EXCEEDED") == 1
        assert service.bench.runtime.encoded == []

    run(test)


def test_a_stream_that_is_cancelled_between_two_pieces_frees_its_slot() -> None:
    """The row leaves before its next step, and the call is counted as cancelled."""
    steps = itertools.count()

    async def test(service: Service) -> None:
        def hold_sixth(sources: Sequence[Source]) -> None:
            if next(steps) == 5:
                service.gate.clear()
            service.before_step(sources)

        service.bench.runtime.before_step = hold_sixth
        call = service.stub.StreamTranslate(pb.StreamTranslateRequest(text=OTHER))
        await service.until_stepping()
        first = await call.read()
        assert isinstance(first, pb.StreamTranslateResponse)
        assert OTHER.startswith(first.text)
        call.cancel()
        await service.until(lambda: service.num_requests("StreamTranslate", "CANCELLED") == 1)
        service.gate.set()
        await service.until(lambda: service.bench.value("texts_ended_total", reason="cancelled") == 1)

        assert service.bench.pool.free == service.bench.pool.rows

    run(test)


def test_a_call_whose_deadline_passes_while_it_runs_frees_its_slots() -> None:
    """The caller is told at once, even while a step hangs; the rows leave before the next one."""

    async def test(service: Service) -> None:
        service.gate.clear()
        error = await error_of(service.stub.Translate(pb.TranslateRequest(texts=[OTHER] * 3), timeout=0.2))
        service.gate.set()
        await service.until(
            lambda: sum(service.bench.value("texts_ended_total", reason=r) for r in ("cancelled", "deadline")) == 3
        )

        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert service.bench.pool.free == service.bench.pool.rows
        assert (await service.stub.Translate(ONE_TEXT)).translations[0].text == TEXT

    run(test)
