"""The asyncio client: the surface of `client`, awaited.

Owns the channel and the waiting between attempts. What is sent, what comes back, what an error means
and when to try again live in `options`, `requests`, `results`, `errors` and `retry`, which `client` shares.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import grpc
import grpc.aio

from dragoman.client.channel import DEFAULT_MAX_MESSAGE_BYTES, DEFAULT_TARGET, channel_options, server_target
from dragoman.client.checks import wrong_type
from dragoman.client.errors import ENDED_EARLY, closed_error, protocol_error
from dragoman.client.model_info import ModelInfo
from dragoman.client.options import DEFAULT_OPTIONS, DecodingOptions, Priority
from dragoman.client.requests import (
    Metadata,
    call_metadata,
    model_request,
    one_text,
    score_request,
    stream_request,
    translate_request,
)
from dragoman.client.results import PairScore, ScoreResult, StreamPiece, TranslateResult, Translation
from dragoman.client.retry import DEFAULT_RETRIES, DEFAULT_TIMEOUT_S, Attempts, CallPolicy
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1.translation_pb2_grpc import TranslationServiceStub

if TYPE_CHECKING:
    from dragoman.v1.translation_pb2_grpc import TranslationServiceAsyncStub  # exists for type checkers only

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class AsyncTranslationClient:
    """A connection to a Dragoman server for use in one event loop; create it there.

    Cancelling the task that awaits a call cancels the call, so that the server stops working on it.
    Settings, arguments and errors are those of `dragoman.client.TranslationClient`.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retries: int = DEFAULT_RETRIES,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        secure: grpc.ChannelCredentials | None = None,
        channel: grpc.aio.Channel | None = None,
        caller: str = "",
    ) -> None:
        self._policy = CallPolicy(timeout_s=timeout_s, retries=retries)
        self._metadata = call_metadata(caller)
        self._owned_channel: grpc.aio.Channel | None = None
        if channel is None:
            channel = self._owned_channel = _open_channel(target, max_message_bytes, secure)
        elif not isinstance(channel, grpc.aio.Channel):
            raise wrong_type("channel", channel, "grpc.aio.Channel; one of grpc itself is for TranslationClient")
        self._stub: TranslationServiceAsyncStub = TranslationServiceStub(channel)
        self._closed = asyncio.Event()
        self._streams: weakref.WeakSet[AsyncTranslationStream] = weakref.WeakSet()

    async def __aenter__(self) -> AsyncTranslationClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls in progress end with a CallCancelledError."""
        if self._owned_channel is None:
            return
        self._closed.set()
        for stream in tuple(self._streams):
            stream.cancel()  # older gRPC leaves a stream alone that no task is waiting for
        await self._owned_channel.close()

    async def translate(
        self,
        texts: Sequence[str],
        *,
        target_prefixes: Sequence[str] = (),
        model: str = "",
        source_language: str = "",
        target_language: str = "",
        options: DecodingOptions = DEFAULT_OPTIONS,
        timeout_s: float | None = None,
        id: str = "",  # noqa: A002 - the API's name for it
    ) -> TranslateResult:
        """Translate texts; as `TranslationClient.translate`."""
        request = translate_request(
            texts,
            target_prefixes=target_prefixes,
            model=model,
            source_language=source_language,
            target_language=target_language,
            options=options,
            request_id=id,
        )
        response = await self._call(self._stub.Translate, request, timeout_s)
        return TranslateResult.from_proto(response, num_texts=len(request.texts))

    async def translate_text(
        self,
        text: str,
        *,
        target_prefix: str = "",
        model: str = "",
        source_language: str = "",
        target_language: str = "",
        options: DecodingOptions = DEFAULT_OPTIONS,
        timeout_s: float | None = None,
    ) -> Translation:
        """Translate one text; as `TranslationClient.translate_text`."""
        texts, target_prefixes = one_text(text, target_prefix)
        result = await self.translate(
            texts,
            target_prefixes=target_prefixes,
            model=model,
            source_language=source_language,
            target_language=target_language,
            options=options,
            timeout_s=timeout_s,
        )
        return result.translations[0]

    def stream(
        self,
        text: str,
        *,
        target_prefix: str = "",
        model: str = "",
        source_language: str = "",
        target_language: str = "",
        options: DecodingOptions = DEFAULT_OPTIONS,
        timeout_s: float | None = None,
        id: str = "",  # noqa: A002 - the API's name for it
    ) -> AsyncTranslationStream:
        """Translate one text and return its pieces; as `TranslationClient.stream`, with `async for`."""
        request = stream_request(
            text,
            target_prefix=target_prefix,
            model=model,
            source_language=source_language,
            target_language=target_language,
            options=options,
            request_id=id,
        )
        stream = AsyncTranslationStream(
            self._stub.StreamTranslate, request, self._policy.start(timeout_s), self._metadata
        )
        self._streams.add(stream)
        return stream

    async def score(
        self,
        source: str,
        target: str,
        *,
        model: str = "",
        source_language: str = "",
        target_language: str = "",
        priority: Priority = Priority.NORMAL,
        timeout_s: float | None = None,
    ) -> PairScore:
        """Say how probable a translation is; as `TranslationClient.score`."""
        result = await self.score_many(
            [(source, target)],
            model=model,
            source_language=source_language,
            target_language=target_language,
            priority=priority,
            timeout_s=timeout_s,
        )
        return result.scores[0]

    async def score_many(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        model: str = "",
        source_language: str = "",
        target_language: str = "",
        priority: Priority = Priority.NORMAL,
        timeout_s: float | None = None,
        id: str = "",  # noqa: A002 - the API's name for it
    ) -> ScoreResult:
        """Say how probable translations are; as `TranslationClient.score_many`."""
        request = score_request(
            pairs,
            model=model,
            source_language=source_language,
            target_language=target_language,
            priority=priority,
            request_id=id,
        )
        response = await self._call(self._stub.Score, request, timeout_s)
        return ScoreResult.from_proto(response, num_pairs=len(request.pairs))

    async def models(self, *, timeout_s: float | None = None) -> tuple[ModelInfo, ...]:
        """List the models the server has loaded; as `TranslationClient.models`."""
        response = await self._call(self._stub.ListModels, pb.ListModelsRequest(), timeout_s)
        return tuple(map(ModelInfo.from_proto, response.models))

    async def model(self, name: str = "", *, timeout_s: float | None = None) -> ModelInfo:
        """Describe one model; as `TranslationClient.model`."""
        response = await self._call(self._stub.GetModel, model_request(name), timeout_s)
        return ModelInfo.from_proto(response.model)

    async def _call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[_Request, _Response],
        request: _Request,
        timeout_s: float | None,
    ) -> _Response:
        attempts = self._policy.start(timeout_s)
        while True:
            try:
                return await method(request, timeout=attempts.remaining_s(), metadata=self._metadata)
            except asyncio.CancelledError as error:
                _raise_if_closed(error)
                raise
            except grpc.RpcError as error:
                wait_s = attempts.wait_s(error, is_closed=self._closed.is_set())
                if await _happens_within(wait_s, self._closed):
                    raise closed_error() from error


class AsyncTranslationStream(AsyncIterator[StreamPiece]):
    """The pieces of one translation. `AsyncTranslationClient.stream` returns it.

    As `TranslationStream`, with `async for`, `async with` and `await stream.aclose()`; use one of the
    last two to stop early. Cancelling the task that waits for a piece cancels the call too.
    """

    def __init__(
        self,
        method: grpc.aio.UnaryStreamMultiCallable[pb.StreamTranslateRequest, pb.StreamTranslateResponse],
        request: pb.StreamTranslateRequest,
        attempts: Attempts,
        metadata: Metadata = (),
    ) -> None:
        self._attempts = attempts
        self._start = partial(method, request, metadata=metadata)
        self._cancelled = asyncio.Event()
        self._call = self._start(timeout=attempts.remaining_s())
        self._messages = aiter(self._call)
        self._has_end = False
        self._is_over = False

    async def __aenter__(self) -> AsyncTranslationStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel the call if it is not complete; the iteration ends."""
        self._is_over = True
        self.cancel()

    def cancel(self) -> None:
        """Cancel the call; whoever waits for a piece gets a CallCancelledError."""
        self._cancelled.set()
        self._call.cancel()

    async def __anext__(self) -> StreamPiece:
        """Wait for the next piece.

        Raises:
            CallError: The call failed, or it ended before the translation did.
        """
        while not self._is_over:
            try:
                message = await anext(self._messages)
            except StopAsyncIteration:
                self._is_over = True
                if not self._has_end:
                    raise protocol_error(ENDED_EARLY) from None
            except asyncio.CancelledError as error:
                _raise_if_closed(error)
                raise
            except grpc.RpcError as error:
                wait_s = self._attempts.wait_s(error, is_closed=self._cancelled.is_set())
                if await _happens_within(wait_s, self._cancelled):
                    raise closed_error() from error
                self._call = self._start(timeout=self._attempts.remaining_s())
                self._messages = aiter(self._call)
            else:
                self._attempts.commit()
                self._has_end = message.HasField("end")
                return StreamPiece.from_proto(message)
        raise StopAsyncIteration


def _raise_if_closed(error: asyncio.CancelledError) -> None:
    # gRPC raises asyncio's CancelledError also where only the call was cancelled on this side, not the task that
    # awaits it. Passed on, it would end that task without a trace, in a TaskGroup for example. A call that the server
    # cancelled is an RpcError.
    task = asyncio.current_task()
    if task is not None and not task.cancelling():
        raise closed_error() from error


async def _happens_within(wait_s: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(wait_s):
            return await event.wait()
    except TimeoutError:
        return False


def _open_channel(target: str, max_message_bytes: int, secure: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    target, options = server_target(target), channel_options(max_message_bytes, secure)
    if secure is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, secure, options=options)
