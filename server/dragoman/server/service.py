"""The gRPC servicer: validate, submit, await, answer. Knows nothing of batching."""

from __future__ import annotations

import asyncio
import enum
import itertools
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc

from dragoman.export.bundle import Manifest
from dragoman.model.tokenizers import Tokenizer
from dragoman.server import calls, validate
from dragoman.server.engine import Engine
from dragoman.server.errors import CallError, EngineFault, NotServing, QueueFull, to_status
from dragoman.server.metrics import Metrics
from dragoman.server.request import Row
from dragoman.server.validate import Source
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc

logger = logging.getLogger(__name__)

# A model of 200 languages has 40,000 pairs, too many for one answer.
_MOST_PAIRS = 1000
# Tokenizing a full queue takes about as long.
_TOKENIZING_RETRY_S = 0.5

Context = grpc.aio.ServicerContext[Any, Any]


class Phase(enum.Enum):
    """What the service does with new calls."""

    LOADING = "the model is still loading; try again in a moment"
    SERVING = ""
    DRAINING = "the server is shutting down; send the call to another one"


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model, ready to serve."""

    manifest: Manifest
    tokenizer: Tokenizer
    engine: Engine
    device: str
    requested_device: str


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What one call may ask for."""

    max_texts: int
    max_message_bytes: int
    max_queued_texts: int


class TranslationService(pb_grpc.TranslationServiceServicer):
    """Implements dragoman.v1.TranslationService.

    Attributes:
        phase: What it does with new calls.
        tokenizing: Texts that the tokenizer threads have not finished.
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
        self._tokenizers = tokenizers
        self._clock = clock
        self._open_calls = 0
        self.tokenizing = 0
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
                return await self._translate(request, context)
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

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:  # noqa: N802, ARG002  # gRPC's name and signature
        """List what is loaded; empty while loading."""
        with self._observed("ListModels", context):
            return pb.ListModelsResponse(models=[self._describe(self._model)] if self._model else [])

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:  # noqa: N802  # gRPC's name
        """Describe one model."""
        with self._observed("GetModel", context) as call:
            try:
                model = self._loaded()
                validate.check_model(request.name, model.manifest)
                return pb.GetModelResponse(model=self._describe(model))
            except Exception as error:
                await self._abort(call, context, error)

    async def _translate(self, request: pb.TranslateRequest, context: Context) -> pb.TranslateResponse:
        started = self._clock()
        model = self._accepting()
        validate.check_model(request.model, model.manifest)
        validate.check_texts(request.texts, self._limits.max_texts)
        languages = _languages(request, model.manifest)
        fields = [f"texts[{i}]" for i in range(len(request.texts))]
        sources = await self._tokenize(model, request.texts, fields, request.options, languages)
        tokenized = self._clock()
        gather = calls.Gather(sum(bool(source.ids) for source in sources))
        deadline = _deadline(context, tokenized)
        rows = [calls.new_row(s, gather, tokenized, deadline) if s.ids else None for s in sources]
        submitted = [row for row in rows if row is not None]
        await self._run(model.engine, submitted, gather.wait)
        calls.raise_for(submitted)
        return pb.TranslateResponse(
            translations=[calls.translation(s, r, model.tokenizer) for s, r in zip(sources, rows, strict=True)],
            model=model.manifest.name,
            id=request.id,
            timings=calls.timings(started, tokenized, self._clock(), submitted),
        )

    async def _stream(
        self, request: pb.StreamTranslateRequest, context: Context
    ) -> AsyncGenerator[pb.StreamTranslateResponse, None]:
        started = self._clock()
        model = self._accepting()
        validate.check_model(request.model, model.manifest)
        languages = _languages(request, model.manifest)
        [source] = await self._tokenize(model, [request.text], ["text"], request.options, languages)
        tokenized = self._clock()
        end = pb.StreamEnd(
            finish_reason=pb.FINISH_REASON_EOS, source_tokens=source.tokens, model=model.manifest.name, id=request.id
        )
        rows: list[Row] = []
        if source.ids:
            pieces = calls.Pieces(model.tokenizer)
            rows = [calls.new_row(source, pieces, tokenized, _deadline(context, tokenized))]
            model.engine.submit(rows)
            try:
                while isinstance(piece := await pieces.next(), str):
                    yield pb.StreamTranslateResponse(text=piece)
            finally:
                if not rows[0].status.final:
                    model.engine.cancel(rows)
            calls.raise_for(rows)
            end.finish_reason = calls.finish_reason(rows[0])
            end.target_tokens = len(rows[0].output)
        end.timings.CopyFrom(calls.timings(started, tokenized, self._clock(), rows))
        yield pb.StreamTranslateResponse(end=end)

    async def _run(self, engine: Engine, rows: Sequence[Row], wait: Callable[[], Any]) -> None:
        """Submit rows and wait for all; a caller who leaves takes them out of the engine."""
        if not rows:
            return
        engine.submit(rows)
        try:
            await wait()
        except asyncio.CancelledError:
            engine.cancel(rows)
            raise

    async def _tokenize(
        self,
        model: Model,
        texts: Sequence[str],
        fields: Sequence[str],
        options: pb.DecodingOptions,
        languages: tuple[str, str],
    ) -> list[Source]:
        start = self._clock()
        if self.tokenizing + len(texts) > self._limits.max_queued_texts:
            raise QueueFull(
                f"{self.tokenizing} texts wait to be tokenized and the limit is {self._limits.max_queued_texts}, so "
                f"{len(texts)} more do not fit; try again later or send fewer texts per call",
                _TOKENIZING_RETRY_S,
            )
        self.tokenizing += len(texts)
        try:
            sources = await asyncio.get_running_loop().run_in_executor(
                self._tokenizers, validate.tokenize, texts, fields, options, model.tokenizer, model.manifest, languages
            )
        finally:
            self.tokenizing -= len(texts)
        self._metrics.tokenize_duration.observe(self._clock() - start)
        return sources

    def _accepting(self) -> Model:
        if self.phase is Phase.DRAINING:
            raise NotServing(self.phase.value)
        return self._loaded()

    def _loaded(self) -> Model:
        if self._model is None:
            raise NotServing(Phase.LOADING.value)
        return self._model

    def _describe(self, model: Model) -> pb.Model:
        manifest = model.manifest
        pairs = itertools.islice(manifest.languages.pairs(), _MOST_PAIRS)
        added = model.tokenizer.added_ids + manifest.languages.longest_frame
        return pb.Model(
            name=manifest.name,
            version=manifest.version,
            language_pairs=[pb.LanguagePair(source_language=one, target_language=other) for one, other in pairs],
            limits=pb.Limits(
                max_texts=self._limits.max_texts,
                max_source_tokens=manifest.limits.max_source_tokens - added,
                max_target_tokens=manifest.limits.max_target_tokens,
                max_message_bytes=self._limits.max_message_bytes,
                max_queued_texts=self._limits.max_queued_texts,
            ),
            requested_device=model.requested_device,
            device=model.device,
            precision=manifest.precision,
        )

    @contextmanager
    def _observed(self, method: str, context: Context) -> Iterator[_Call]:
        """Count a call and time it, however it ends."""
        call = _Call()
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


def _languages(request: pb.TranslateRequest | pb.StreamTranslateRequest, manifest: Manifest) -> tuple[str, str]:
    languages = validate.choose_languages(request.source_language, request.target_language, manifest)
    validate.check_mime_type(request.mime_type)
    return languages


def _deadline(context: Context, now: float) -> float | None:
    remaining = context.time_remaining()
    return None if remaining is None else now + remaining
