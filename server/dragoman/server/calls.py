"""What a gRPC call waits on: listeners that turn the engine's events into results. Loop thread only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dragoman.model.tokenizers import Tokenizer
from dragoman.server.errors import CallError, DeadlineExceeded, EngineFault, NotServing
from dragoman.server.request import Row, RowStatus, Times
from dragoman.server.validate import Source
from dragoman.v1 import translation_pb2 as pb

_REASONS = {
    RowStatus.EOS: pb.FINISH_REASON_EOS,
    RowStatus.LENGTH: pb.FINISH_REASON_LENGTH,
}


class Gather:
    """Waits until all rows of a call have ended."""

    wants_tokens = False

    def __init__(self, rows: int) -> None:
        """Expect so many rows."""
        self._open = rows
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not rows:
            self._done.set_result(None)

    def token(self, token: int) -> None:  # the protocol's signature
        """Do nothing; a unary call needs the end only."""

    def ended(self, row: Row) -> None:  # noqa: ARG002  # the rows are read when all have ended
        """Count."""
        self._open -= 1
        if not self._open and not self._done.done():
            self._done.set_result(None)

    async def wait(self) -> None:
        """Return when every row has ended."""
        await self._done


class Pieces:
    """Turns one row's tokens into pieces of text as they come."""

    wants_tokens = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Start a new text."""
        self._detokenizer = tokenizer.detokenizer()
        self._queue: asyncio.Queue[str | Row] = asyncio.Queue()

    def token(self, token: int) -> None:
        """Queue what the token completes."""
        piece = self._detokenizer.push(token)
        if piece:
            self._queue.put_nowait(piece)

    def ended(self, row: Row) -> None:
        """Queue what is left, then the row."""
        rest = self._detokenizer.finish()
        if rest:
            self._queue.put_nowait(rest)
        self._queue.put_nowait(row)

    async def next(self) -> str | Row:
        """Return the next piece, or the row when it has ended."""
        return await self._queue.get()


def raise_for(rows: Sequence[Row]) -> None:
    """Raise the error of the first row without a result."""
    for row in rows:
        error = _error(row)
        if error is not None:
            raise error


def _error(row: Row) -> CallError | None:
    if row.status is RowStatus.FAILED:
        return EngineFault(row.correlation_id)
    if row.status is RowStatus.DEADLINE:
        return DeadlineExceeded("the deadline passed before the translation was finished; allow more time or send less")
    if row.status is RowStatus.CANCELLED:
        return NotServing("the server stopped before the translation was finished; send the call again")
    return None


def finish_reason(row: Row) -> pb.FinishReason.ValueType:
    """Return why a row that has a result ended."""
    return _REASONS[row.status]


def translation(source: Source, row: Row | None, tokenizer: Tokenizer) -> pb.Translation:
    """Return the result of a text; `row` is None for a blank one."""
    if row is None:
        return pb.Translation(finish_reason=pb.FINISH_REASON_EOS)
    return pb.Translation(
        text=tokenizer.decode(row.output),
        finish_reason=finish_reason(row),
        source_tokens=source.tokens,
        target_tokens=len(row.output),
    )


def timings(started: float, tokenized: float, ended: float, rows: Sequence[Row]) -> pb.Timings:
    """Return where the time of a call went; all arguments are monotonic seconds."""
    times = [row.times for row in rows]
    return pb.Timings(
        total_ns=_ns(ended - started),
        tokenize_ns=_ns(tokenized - started),
        queue_ns=max((_between(t.submitted, t.encode_start) for t in times), default=0),
        encode_ns=max((_between(t.encode_start, t.encode_end) for t in times), default=0),
        decode_ns=max((_between(t.encode_end, t.ended) for t in times), default=0),
        first_token_ns=max((_between(started, t.first_token) for t in times), default=0),
    )


def new_row(source: Source, listener: Gather | Pieces, now: float, deadline: float | None) -> Row:
    """Return a row ready to be submitted."""
    return Row(source.ids, source.max_new_tokens, listener, Times(submitted=now), deadline, source.first_target)


def _between(start: float | None, end: float | None) -> int:
    return 0 if start is None or end is None else _ns(end - start)


def _ns(seconds: float) -> int:
    return max(0, round(seconds * 1e9))
