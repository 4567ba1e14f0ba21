"""What a gRPC call waits on: listeners that turn the engine's events into results. Loop thread only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from dragoman.server.errors import CallError, DeadlineExceeded, EngineFault, NotServing
from dragoman.server.request import Request, RequestStatus
from dragoman.server.writing import Writer
from dragoman.v1 import translation_pb2 as pb

Stop = Callable[[Sequence[Request]], None]


class Gather:
    """Waits until requests have ended, whatever their listeners."""

    wants_tokens = False

    def __init__(self, requests: int = 0) -> None:
        """Expect so many ends, and those that `expect` adds."""
        self._open = requests
        self._done = asyncio.Event()

    def expect(self, requests: int) -> None:
        """Expect so many more."""
        self._open += requests

    def token(self, token: int) -> None:  # the protocol's signature
        """Do nothing; a unary call needs the end only."""

    def ended(self, request: Request) -> None:  # noqa: ARG002  # the requests are read when all have ended
        """Count."""
        self._open -= 1
        if not self._open:
            self._done.set()

    async def wait(self) -> None:
        """Return when every request has ended."""
        if self._open:
            await self._done.wait()


class _Stopping:
    """Asks the engine once to stop a request whose text has met a stop sequence."""

    wants_tokens = True

    def __init__(self, request: Request, writer: Writer, stop: Stop) -> None:
        self._request = request
        self._writer = writer
        self._stop = stop
        self._asked = False

    def _write(self, token: int) -> str:
        piece = self._writer.push(token)
        if self._writer.stopped and not self._asked:
            self._asked = True
            self._stop((self._request,))
        return piece


class Watch(_Stopping):
    """Stops a request of a unary call at its first stop sequence."""

    def __init__(self, request: Request, writer: Writer, stop: Stop, gather: Gather) -> None:
        """Watch one request.

        Args:
            request: Whose listener this becomes.
            writer: Of its text; it may have written a prefix and first tokens already.
            stop: The engine's.
            gather: Told of the end.
        """
        super().__init__(request, writer, stop)
        self._gather = gather

    def token(self, token: int) -> None:
        """Look for a stop sequence."""
        self._write(token)

    def ended(self, request: Request) -> None:
        """Pass it on."""
        self._gather.ended(request)


class Pieces(_Stopping):
    """Turns one request's tokens into pieces of text as they come.

    A beam search tells its tokens at the end; they are then written all at once.
    """

    def __init__(self, request: Request, writer: Writer, stop: Stop) -> None:
        """Stream one request; arguments as for `Watch`."""
        super().__init__(request, writer, stop)
        self._pushed = 0
        self._queue: asyncio.Queue[str | Request] = asyncio.Queue()

    def token(self, token: int) -> None:
        """Queue what the token makes certain."""
        self._pushed += 1
        self._put(self._write(token))

    def ended(self, request: Request) -> None:
        """Queue what is left, then the request."""
        if has_result(request):
            rest = [self._writer.push(token) for token in request.output[self._pushed :]]
            self._put("".join(rest) + self._writer.finish())
        self._queue.put_nowait(request)

    async def next(self) -> str | Request:
        """Return the next piece, or the request when it has ended."""
        return await self._queue.get()

    def _put(self, piece: str) -> None:
        if piece:
            self._queue.put_nowait(piece)


def has_result(request: Request) -> bool:
    """Whether a final request ended with a text."""
    return request.status in (RequestStatus.EOS, RequestStatus.LENGTH, RequestStatus.STOPPED)


def raise_for(requests: Sequence[Request]) -> None:
    """Raise the error of the first request without a result."""
    for request in requests:
        error = _error(request)
        if error is not None:
            raise error


def _error(request: Request) -> CallError | None:
    if request.status is RequestStatus.FAILED:
        return EngineFault(request.correlation_id)
    if request.status is RequestStatus.DEADLINE:
        return DeadlineExceeded("the deadline passed before the translation was finished; allow more time or send less")
    if request.status is RequestStatus.CANCELLED:
        return NotServing("the server stopped before the translation was finished; send the call again")
    return None


def timings(started: float, tokenized: float, ended: float, requests: Sequence[Request]) -> pb.Timings:
    """Return where the time of a call went; all arguments are monotonic seconds."""
    times = [request.times for request in requests]
    return pb.Timings(
        total_ns=_ns(ended - started),
        tokenize_ns=_ns(tokenized - started),
        queue_ns=max((_between(t.submitted, t.encode_start) for t in times), default=0),
        encode_ns=max((_between(t.encode_start, t.encode_end) for t in times), default=0),
        decode_ns=max((_between(t.encode_end, t.ended) for t in times), default=0),
        first_token_ns=max((_between(started, t.first_token) for t in times), default=0),
    )


def _between(start: float | None, end: float | None) -> int:
    return 0 if start is None or end is None else _ns(end - start)


def _ns(seconds: float) -> int:
    return max(0, round(seconds * 1e9))
