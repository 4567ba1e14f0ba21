"""The gRPC servicer: validate, submit, await, answer. Knows nothing of batching."""

from __future__ import annotations

import asyncio
import enum
import functools
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.message import Message

from dragoman.export.bundle import Manifest
from dragoman.server import answers, calls, decoding, jobs, scoring, validate
from dragoman.server.callers import caller_name
from dragoman.server.decoding import Decoding
from dragoman.server.errors import AnswerTooLarge, CallError, EngineFault, NotServing, to_status
from dragoman.server.jobs import Caller, Job
from dragoman.server.metrics import Metrics
from dragoman.server.replicas import Replicas
from dragoman.server.request import Request
from dragoman.server.serving import CallLimits, Model, describe
from dragoman.server.tokenizing import Tokenizing
from dragoman.server.validate import Text
from dragoman.server.writing import Writer
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc

__all__ = ["CallLimits", "Model", "Phase", "TranslationService"]

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
_Named = pb.TranslateRequest | pb.StreamTranslateRequest | pb.ScoreRequest
_Result = TypeVar("_Result")
_Response = TypeVar("_Response", bound=Message)


class Phase(enum.Enum):
    """What the service does with new calls."""

    LOADING = "the model is still loading; try again in a moment"
    SERVING = ""
    DRAINING = "the server is shutting down; send the call to another one"


class TranslationService(pb_grpc.TranslationServiceServicer):
    """Implements dragoman.v1.TranslationService.

    Attributes:
        phase: What it does with new calls.
        begun: Calls so far.
        tokenizing: Tokenizes the texts of calls.
    """

    def __init__(
        self, metrics: Metrics, limits: CallLimits, tokenizers: Executor, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Answer UNAVAILABLE until `serve` is called.

        Args:
            metrics: Gets codes and durations.
            limits: Of each call.
            tokenizers: Threads for tokenizing, so that a long text does not hold up the loop.
            clock: Monotonic seconds, the engine's.
        """
        self.phase = Phase.LOADING
        self._model: Model | None = None
        self._metrics = metrics
        self._limits = limits
        self._clock = clock
        self.begun = 0
        self._open_calls = 0
        self.tokenizing = Tokenizing(tokenizers, metrics, most=limits.max_queued_texts, clock=clock)
        self._idle = asyncio.Event()
        self._idle.set()

    def serve(self, model: Model) -> None:
        """Accept calls from now on."""
        self._model = model
        self.phase = Phase.SERVING

    def drain(self) -> None:
        """Refuse new calls; those accepted go on."""
        self.phase = Phase.DRAINING

    async def idle(self) -> None:
        """Return when no call is open."""
        await self._idle.wait()

    async def Translate(self, request: pb.TranslateRequest, context: Context) -> pb.TranslateResponse:  # noqa: N802  # gRPC's name
        """Translate many texts."""
        with self._observed("Translate", context) as call:
            try:
                return self._sendable(await self._translate(request, context))
            except Exception as error:
                await self._abort(call, context, error)

    async def StreamTranslate(  # noqa: N802  # gRPC's name
        self, request: pb.StreamTranslateRequest, context: Context
    ) -> AsyncIterator[pb.StreamTranslateResponse]:
        """Translate one text and send pieces as they are made."""
        with self._observed("StreamTranslate", context) as call:
            try:
                async with aclosing(self._stream(request, context)) as responses:
                    async for response in responses:
                        yield response
            except Exception as error:
                await self._abort(call, context, error)

    async def Score(self, request: pb.ScoreRequest, context: Context) -> pb.ScoreResponse:  # noqa: N802  # gRPC's name
        """Say how probable given translations are."""
        with self._observed("Score", context) as call:
            try:
                return self._sendable(await self._score(request, context))
            except Exception as error:
                await self._abort(call, context, error)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:  # noqa: N802, ARG002  # gRPC's name and signature
        """List what is loaded; empty while loading."""
        with self._observed("ListModels", context):
            return pb.ListModelsResponse(models=[describe(self._model, self._limits)] if self._model else [])

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:  # noqa: N802  # gRPC's name
        """Describe one model."""
        with self._observed("GetModel", context) as call:
            try:
                model = self._loaded()
                validate.check_model(request.name, model.manifest)
                return pb.GetModelResponse(model=describe(model, self._limits))
            except Exception as error:
                await self._abort(call, context, error)

    async def _translate(self, request: pb.TranslateRequest, context: Context) -> pb.TranslateResponse:
        started = self._clock()
        model = self._accepting()
        languages = _languages(request, model.manifest)
        validate.check_texts(request.texts, self._limits.max_texts)
        validate.check_prefixes(request.target_prefixes, len(request.texts))
        options = decoding.read(request.options, model.allowed)
        name = caller_name(context)
        prefixes = request.target_prefixes or [""] * len(request.texts)
        texts = [
            Text(text, f"texts[{i}]", prefix, f"target_prefixes[{i}]")
            for i, (text, prefix) in enumerate(zip(request.texts, prefixes, strict=True))
        ]
        work = await self._prepare(model, texts, options, languages)
        tokenized = self._clock()
        caller = Caller(name, options.priority, tokenized, _deadline(context, tokenized))
        requests = await self._first_round(model, work, options, caller)
        gather = calls.Gather()
        for job in work:
            jobs.set_parts(job, options, model.manifest.special.eos, caller, gather)
            jobs.watch(job, options.stop_sequences, model.tokenizer, model.engine.stop, gather)
        last = [one for job in work for one in job.requests]
        await _run(model.engine, last, gather)
        calls.raise_for(last)
        return pb.TranslateResponse(
            translations=[answers.translation(job, options, model.tokenizer) for job in work],
            model=model.manifest.name,
            id=request.id,
            timings=calls.timings(started, tokenized, self._clock(), [*requests, *last]),
        )

    async def _stream(
        self, request: pb.StreamTranslateRequest, context: Context
    ) -> AsyncGenerator[pb.StreamTranslateResponse, None]:
        started = self._clock()
        model = self._accepting()
        languages = _languages(request, model.manifest)
        options = decoding.read(request.options, model.allowed)
        name = caller_name(context)
        text = Text(request.text, "text", request.target_prefix, "target_prefix")
        work = await self._prepare(model, [text], options, languages)
        tokenized = self._clock()
        caller = Caller(name, options.priority, tokenized, _deadline(context, tokenized))
        requests = await self._first_round(model, work, options, caller)
        [job] = work
        async with aclosing(_pieces(model, job, options, caller)) as pieces:
            async for piece in pieces:
                yield pb.StreamTranslateResponse(text=piece)
        requests += job.requests
        found = answers.translation(job, options, model.tokenizer)
        end = pb.StreamEnd(
            finish_reason=found.finish_reason,
            source_tokens=found.source_tokens,
            target_tokens=found.target_tokens,
            model=model.manifest.name,
            id=request.id,
            timings=calls.timings(started, tokenized, self._clock(), requests),
            hypotheses=found.hypotheses,
            source_pieces=found.source_pieces,
        )
        yield self._sendable(pb.StreamTranslateResponse(end=end))

    async def _score(self, request: pb.ScoreRequest, context: Context) -> pb.ScoreResponse:
        started = self._clock()
        model = self._accepting()
        languages = _languages(request, model.manifest)
        scoring.check_pairs(len(request.pairs), self._limits.max_texts)
        priority = decoding.read_priority(request.priority, "priority")
        name = caller_name(context)
        pairs = await self.tokenizing.run(
            functools.partial(scoring.tokenize, request.pairs, model.tokenizer, model.manifest, languages),
            texts=len(request.pairs),
            characters=sum(len(pair.source) + len(pair.target) for pair in request.pairs),
        )
        tokenized = self._clock()
        caller = Caller(name, priority, tokenized, _deadline(context, tokenized))
        gather = calls.Gather()
        requests: list[Request | None] = []
        for pair in pairs:
            if pair.known is None:
                jobs.check_fits(pair.source, 1, len(pair.target) + 1, model.engine.fits)
            eos = model.manifest.special.eos
            requests.append(scoring.new_request(pair, eos, caller, gather) if pair.known is None else None)
        submitted = [one for one in requests if one is not None]
        await _run(model.engine, submitted, gather)
        calls.raise_for(submitted)
        return pb.ScoreResponse(
            scores=[scoring.message(p, r, model.tokenizer) for p, r in zip(pairs, requests, strict=True)],
            model=model.manifest.name,
            id=request.id,
            timings=calls.timings(started, tokenized, self._clock(), submitted),
        )

    async def _prepare(
        self, model: Model, texts: Sequence[Text], options: Decoding, languages: tuple[str, str]
    ) -> list[Job]:
        """Return the jobs of a call, which the engine can take."""
        work = await self.tokenizing.run(
            functools.partial(_new_jobs, model, texts, options, languages),
            texts=len(texts),
            characters=sum(len(one) for text in texts for one in (text.text, text.prefix))
            + sum(map(len, options.suppressed_texts)),
        )
        jobs.check_number(work, options, self._limits.max_queued_texts)
        for job in work:
            if job.source.ids:
                jobs.check_fits(job.source, job.options.beams, job.source.max_new_tokens, model.engine.fits)
        return work

    async def _first_round(self, model: Model, work: Sequence[Job], options: Decoding, caller: Caller) -> list[Request]:
        """Find the first tokens of alternatives, if they are wanted."""
        if not options.alternatives:
            return []
        gather = calls.Gather()
        requests = [
            jobs.ask_for_first_tokens(job, options.alternatives, caller, gather) for job in work if job.source.ids
        ]
        await _run(model.engine, requests, gather)
        calls.raise_for(requests)
        return requests

    def _sendable(self, response: _Response) -> _Response:
        size = response.ByteSize()
        if size > self._limits.max_message_bytes:
            raise AnswerTooLarge(size, self._limits.max_message_bytes)
        return response

    def _accepting(self) -> Model:
        if self.phase is Phase.DRAINING:
            raise NotServing(self.phase.value)
        return self._loaded()

    def _loaded(self) -> Model:
        if self._model is None:
            raise NotServing(Phase.LOADING.value)
        return self._model

    @contextmanager
    def _observed(self, method: str, context: Context) -> Iterator[_Call]:
        """Count a call and time it, however it ends."""
        call = _Call()
        self.begun += 1
        self._open_calls += 1
        self._idle.clear()
        start = self._clock()
        try:
            yield call
        except (asyncio.CancelledError, GeneratorExit):
            # gRPC cancels the handler in both cases.
            late = context.time_remaining() == 0
            call.code = grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
            raise
        finally:
            self._metrics.request_ended(method, call.code.name, self._clock() - start)
            self._open_calls -= 1
            if not self._open_calls:
                self._idle.set()

    async def _abort(self, call: _Call, context: Context, error: Exception) -> NoReturn:
        """End the call with an error's status; an unexpected one hides behind an id that the log explains."""
        if not isinstance(error, CallError):
            fault = EngineFault(uuid.uuid4().hex[:12])
            logger.error("call failed: %s", fault, exc_info=error)
            error = fault
        call.code = error.code
        await context.abort_with_status(to_status(error))
        raise AssertionError("abort_with_status has raised")


@dataclass(slots=True)
class _Call:
    code: grpc.StatusCode = grpc.StatusCode.OK


async def _run(engine: Replicas, requests: Sequence[Request], gather: calls.Gather) -> None:
    """Submit requests and wait for all; a caller who leaves takes them out of the engine."""
    if not requests:
        return
    gather.expect(len(requests))
    engine.submit(requests)
    try:
        await gather.wait()
    except asyncio.CancelledError:
        engine.cancel(requests)
        raise


async def _pieces(model: Model, job: Job, options: Decoding, caller: Caller) -> AsyncGenerator[str, None]:
    """Yield the text of a job's first hypothesis as it is made, none of the pieces empty; then all others have ended.

    Raises:
        CallError: There is no result.
    """
    gather = calls.Gather()
    jobs.set_parts(job, options, model.manifest.special.eos, caller, gather)
    if not job.parts:
        return
    jobs.watch(job, options.stop_sequences, model.tokenizer, model.engine.stop, gather)
    first = job.parts[0]
    writer = Writer(model.tokenizer, job.source.prefix, options.stop_sequences)
    head = writer.prefix + "".join([writer.push(token) for token in first.lead_tokens])
    streamed: calls.Pieces | None = None
    if first.request is None:
        head += writer.finish()
    else:
        first.request.listener = streamed = calls.Pieces(first.request, writer, model.engine.stop)
    requests = job.requests
    gather.expect(len(requests) - (streamed is not None))
    if requests:
        model.engine.submit(requests)
    try:
        if head:
            yield head
        while streamed is not None and isinstance(piece := await streamed.next(), str):
            yield piece
        if first.request is not None:
            calls.raise_for([first.request])
        await gather.wait()
    finally:
        left = [request for request in requests if not request.status.final]
        if left:
            model.engine.cancel(left)
    calls.raise_for(requests)


def _new_jobs(model: Model, texts: Sequence[Text], options: Decoding, languages: tuple[str, str]) -> list[Job]:
    sources = validate.tokenize(texts, options, model.tokenizer, model.manifest, languages)
    suppressed = model.suppressor.sequences(options.suppressed_texts)
    return [jobs.new_job(source, options, suppressed) for source in sources]


def _languages(request: _Named, manifest: Manifest) -> tuple[str, str]:
    """Check what all requests have in common and return the language pair."""
    validate.check_model(request.model, manifest)
    languages = validate.choose_languages(request.source_language, request.target_language, manifest)
    validate.check_mime_type(request.mime_type)
    return languages


def _deadline(context: Context, now: float) -> float | None:
    remaining = context.time_remaining()
    return None if remaining is None else now + remaining
