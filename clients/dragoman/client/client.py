"""The synchronous client.

Owns the channel and the waiting between attempts. What is sent, what comes back, what an error means
and when to try again live in `options`, `requests`, `results`, `errors` and `retry`, which `aio` shares.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TypeVar

import grpc

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

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class TranslationClient:
    """A connection to a Dragoman server. Threads may share one.

    Connects on the first call. Every call has a deadline, retries included, and raises a
    `dragoman.client.CallError` when it fails.

    Args:
        target: HOST, where Dragoman's port is meant, 50051, or HOST:PORT, or a gRPC target with its scheme such as
            "dns:///translate.example:50051" or "unix:/run/dragoman.sock", to which nothing is added: gRPC takes port
            443 if it has none. Calls go round robin over all addresses of the name.
        timeout_s: Seconds for a call, its retries included; above 0, at most a year.
        retries: How often to try again when no server answers; 0 turns all retries off. Retries that
            an overloaded server asks for are not counted, only bounded by the deadline.
        max_message_bytes: Largest request and response; the server has its own limit for requests.
        secure: Credentials for TLS, for example `grpc.ssl_channel_credentials()`; None means plain text.
        channel: Use this channel instead of a new one; it stays the caller's to close, and `target`,
            `max_message_bytes` and `secure` have no effect.
        caller: Whose calls these are, at most 128 ASCII characters. Callers get equal shares of a busy server;
            without a name, each address is one.

    Raises:
        TypeError: A setting is of another type than its parameter.
        ValueError: A setting is out of range, or `target` is no address.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retries: int = DEFAULT_RETRIES,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        secure: grpc.ChannelCredentials | None = None,
        channel: grpc.Channel | None = None,
        caller: str = "",
    ) -> None:
        self._policy = CallPolicy(timeout_s=timeout_s, retries=retries)
        self._metadata = call_metadata(caller)
        self._owned_channel: grpc.Channel | None = None
        if channel is None:
            channel = self._owned_channel = _open_channel(target, max_message_bytes, secure)
        elif not isinstance(channel, grpc.Channel):
            raise wrong_type("channel", channel, "grpc.Channel; one of grpc.aio is for AsyncTranslationClient")
        self._stub = TranslationServiceStub(channel)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._streams: weakref.WeakSet[TranslationStream] = weakref.WeakSet()

    def __enter__(self) -> TranslationClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; calls in progress end with a CallCancelledError."""
        if self._owned_channel is None:
            return
        with self._lock:
            self._closed.set()
            streams = tuple(self._streams)
        for stream in streams:
            stream.cancel()  # also one that waits for its next attempt
        self._owned_channel.close()

    def translate(
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
        """Translate texts; the results are one to one with them and in their order.

        Args:
            texts: 1 to the server's `max_texts`; blank ones are allowed.
            target_prefixes: What the translations begin with: none, or one per text, "" where there is none. The
                translations include them.
            model: Name of a loaded model; empty means the server's default.
            source_language: BCP-47 tag, for example "en"; empty if the model has just one.
            target_language: As `source_language`.
            options: How to decode.
            timeout_s: Seconds for this call, its retries included; None means the client's.
            id: Echoed in the result; not interpreted.

        Raises:
            CallError: The call failed; the subclass says how.
            TypeError: `texts` is one str, or holds something else than str, or another argument has a wrong type.
            ValueError: A text has a lone surrogate, or `timeout_s` is out of range.
        """
        request = translate_request(
            texts,
            target_prefixes=target_prefixes,
            model=model,
            source_language=source_language,
            target_language=target_language,
            options=options,
            request_id=id,
        )
        response = self._call(self._stub.Translate, request, timeout_s)
        return TranslateResult.from_proto(response, num_texts=len(request.texts))

    def translate_text(
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
        """Translate one text; arguments and errors are those of `translate`."""
        texts, target_prefixes = one_text(text, target_prefix)
        result = self.translate(
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
    ) -> TranslationStream:
        """Translate one text and return its pieces as the server makes them.

        The call starts at once; its errors are raised by the iteration. The other arguments are those
        of `translate`.

        Raises:
            TypeError: `text` is not a str, or another argument has a wrong type.
            ValueError: The text has a lone surrogate, or `timeout_s` is out of range.
        """
        request = stream_request(
            text,
            target_prefix=target_prefix,
            model=model,
            source_language=source_language,
            target_language=target_language,
            options=options,
            request_id=id,
        )
        attempts = self._policy.start(timeout_s)
        stream = TranslationStream(self._stub.StreamTranslate, request, attempts, self._metadata)
        with self._lock:
            self._streams.add(stream)
        return stream

    def score(
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
        """Say how probable the model finds a translation; arguments and errors are those of `score_many`."""
        result = self.score_many(
            [(source, target)],
            model=model,
            source_language=source_language,
            target_language=target_language,
            priority=priority,
            timeout_s=timeout_s,
        )
        return result.scores[0]

    def score_many(
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
        """Say how probable the model finds given translations.

        Args:
            pairs: 1 to the server's `max_texts` pairs of a source and its translation.
            model: As in `translate`.
            source_language: As in `translate`.
            target_language: As in `translate`.
            priority: Whose turn it is when texts wait.
            timeout_s: As in `translate`.
            id: Echoed in the result; not interpreted.

        Raises:
            CallError: The call failed; the subclass says how.
            TypeError: A pair is something else than two str, or another argument has a wrong type.
            ValueError: A text has a lone surrogate, or `timeout_s` is out of range.
        """
        request = score_request(
            pairs,
            model=model,
            source_language=source_language,
            target_language=target_language,
            priority=priority,
            request_id=id,
        )
        response = self._call(self._stub.Score, request, timeout_s)
        return ScoreResult.from_proto(response, num_pairs=len(request.pairs))

    def models(self, *, timeout_s: float | None = None) -> tuple[ModelInfo, ...]:
        """List the models the server has loaded.

        Raises:
            CallError: The call failed.
        """
        response = self._call(self._stub.ListModels, pb.ListModelsRequest(), timeout_s)
        return tuple(map(ModelInfo.from_proto, response.models))

    def model(self, name: str = "", *, timeout_s: float | None = None) -> ModelInfo:
        """Describe one model; an empty name means the server's default.

        Raises:
            ModelNotFoundError: The server has no model of this name.
            CallError: The call failed otherwise.
        """
        response = self._call(self._stub.GetModel, model_request(name), timeout_s)
        return ModelInfo.from_proto(response.model)

    def _call(
        self,
        method: grpc.UnaryUnaryMultiCallable[_Request, _Response],
        request: _Request,
        timeout_s: float | None,
    ) -> _Response:
        attempts = self._policy.start(timeout_s)
        while True:
            try:
                return method(request, timeout=attempts.remaining_s(), metadata=self._metadata)
            except grpc.RpcError as error:
                wait_s = attempts.wait_s(error, is_closed=self._closed.is_set())
                if self._closed.wait(wait_s):
                    raise closed_error() from error


class TranslationStream(Iterator[StreamPiece]):
    """The pieces of one translation, as the server makes them. `TranslationClient.stream` returns it.

    The last piece has `end`. Whoever stops before it leaves the `with` block, calls `close` or drops
    the stream; each of them cancels the call, so that the server stops working on it.

    Failures are retried as in other calls until the first piece has arrived, never after it.
    """

    def __init__(
        self,
        method: grpc.UnaryStreamMultiCallable[pb.StreamTranslateRequest, pb.StreamTranslateResponse],
        request: pb.StreamTranslateRequest,
        attempts: Attempts,
        metadata: Metadata = (),
    ) -> None:
        self._attempts = attempts
        self._start = partial(method, request, metadata=metadata)
        self._cancelled = threading.Event()
        self._call = self._start(timeout=attempts.remaining_s())
        self._has_end = False
        self._is_over = False

    def __enter__(self) -> TranslationStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the call if it is not complete; the iteration ends."""
        self._is_over = True
        self.cancel()

    def cancel(self) -> None:
        """Cancel the call from any thread; whoever waits for a piece gets a CallCancelledError."""
        self._cancelled.set()
        self._call.cancel()

    def __next__(self) -> StreamPiece:
        """Wait for the next piece.

        Raises:
            CallError: The call failed, or it ended before the translation did.
        """
        while not self._is_over:
            try:
                message = next(self._call)
            except StopIteration:
                self._is_over = True
                if not self._has_end:
                    raise protocol_error(ENDED_EARLY) from None
            except grpc.RpcError as error:
                wait_s = self._attempts.wait_s(error, is_closed=self._cancelled.is_set())
                if self._cancelled.wait(wait_s):
                    raise closed_error() from error
                self._call = self._start(timeout=self._attempts.remaining_s())
                if self._cancelled.is_set():  # meanwhile, by another thread, which knew only the old call
                    self._call.cancel()
            else:
                self._attempts.commit()
                self._has_end = message.HasField("end")
                return StreamPiece.from_proto(message)
        raise StopIteration


def _open_channel(target: str, max_message_bytes: int, secure: grpc.ChannelCredentials | None) -> grpc.Channel:
    target, options = server_target(target), channel_options(max_message_bytes, secure)
    if secure is None:
        return grpc.insecure_channel(target, options=options)
    return grpc.secure_channel(target, secure, options=options)
