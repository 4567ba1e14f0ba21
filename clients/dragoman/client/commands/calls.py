"""Sends lines to a server until each has a result, or a reason why it has none.

A call fails as a whole. What is about the call and not about its lines is put right here: more lines than the server
takes are sent in several calls, and a server that is away is waited for (`outage`). What is about single lines stops
the command, or skips them if the user wants it: the call is repeated without them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Generic, NoReturn, TypeVar

from tqdm import tqdm

from dragoman.client.aio import AsyncTranslationClient
from dragoman.client.commands.common import BATCHES_IN_FLIGHT
from dragoman.client.commands.lines import Line, Skipped, batches
from dragoman.client.commands.outage import Outage
from dragoman.client.commands.output import Write
from dragoman.client.commands.pipeline import run_in_order
from dragoman.client.commands.report import place, refused_lines
from dragoman.client.commands.tally import Tally
from dragoman.client.errors import (
    CallError,
    CommandError,
    InputError,
    InternalError,
    InvalidRequestError,
    MessageTooLargeError,
)
from dragoman.client.results import FinishReason

_Result = TypeVar("_Result")

_COUNTED_FIELDS = ("texts", "pairs")


class Calls(Generic[_Result]):
    """The calls of one command.

    Args:
        send: Makes one call; one result per line.
        ask_limit: Asks the server how many lines it takes per call.
        explain: Turns an error of a call into one for the user.
        outage: What is known of the server's absence.
        say: Tells the user one sentence.
        skips: Go on without lines that have no result.
        problem_of: Says what is wrong with a line that need not be sent, or "".
    """

    def __init__(
        self,
        send: Callable[[Sequence[Line]], Awaitable[Sequence[_Result]]],
        *,
        ask_limit: Callable[[], Awaitable[int]],
        explain: Callable[[CallError, Sequence[Line]], CommandError],
        outage: Outage,
        say: Callable[[str], None],
        skips: bool,
        problem_of: Callable[[Line], str] = lambda line: line.problem,
    ) -> None:
        self._send = send
        self._ask_limit = ask_limit
        self._explain = explain
        self._outage = outage
        self._say = say
        self._skips = skips
        self._problem_of = problem_of
        self._most_lines: int | None = None  # per call; known once the server has refused more

    async def run(self, lines: Sequence[Line]) -> list[_Result | Skipped]:
        """Return what became of each line.

        Raises:
            CommandError: A line, or all of them, failed for good.
        """
        outcomes: dict[int, _Result | Skipped] = {}
        for i, line in enumerate(lines):
            if problem := self._problem_of(line):
                if not self._skips:
                    raise InputError(f"{place([line])} {problem}. Nothing from its batch on was sent")
                outcomes[i] = Skipped(problem)
        fault: CallError | None = None  # of a server that failed at single lines
        parts = deque([[i for i in range(len(lines)) if i not in outcomes]])
        while parts:
            part = parts.popleft()
            if not part:
                continue
            if self._most_lines is not None and len(part) > self._most_lines:
                parts.extendleft(reversed(_split(part, self._most_lines)))
                continue
            sent = [lines[i] for i in part]
            try:
                outcomes.update(zip(part, await self._attempt(sent), strict=True))
            except CallError as error:
                if (size := await self._smaller(error, sent)) is not None:
                    parts.extendleft(reversed(_split(part, size)))
                elif self._skips and (refused := refused_lines(error, sent)):
                    outcomes.update((part[i], Skipped(reason)) for i, reason in refused.items())
                    parts.appendleft([i for i in part if i not in outcomes])
                elif self._skips and isinstance(error, InternalError) and len(part) > 1:
                    parts.extendleft(reversed(_split(part, -(-len(part) // 2))))
                elif self._skips and isinstance(error, (InternalError, MessageTooLargeError)):
                    fault = error
                    outcomes[part[0]] = Skipped(str(error))
                else:
                    raise self._explain(error, sent) from error
        results = [outcomes[i] for i in range(len(lines))]
        if fault is not None and len(lines) > 1 and all(isinstance(result, Skipped) for result in results):
            raise self._explain(fault, lines) from fault  # no fault of the lines
        return results

    async def _attempt(self, lines: Sequence[Line]) -> Sequence[_Result]:
        patience = self._outage.patience()
        while True:
            patience.begin()
            try:
                results = await self._send(lines)
            except CallError as error:
                pause_s = patience.pause_s(error)
                if pause_s is None:
                    raise
            else:
                patience.answered()
                return results
            await asyncio.sleep(pause_s)

    async def _smaller(self, error: CallError, lines: Sequence[Line]) -> int | None:
        """Return how many lines to send at once if these were too many for one call, else None."""
        if len(lines) == 1 or not isinstance(error, InvalidRequestError):
            return None
        if isinstance(error, MessageTooLargeError):
            return -(-len(lines) // 2)
        if not any(violation.field in _COUNTED_FIELDS for violation in error.field_violations):
            return None
        try:
            limit = await self._ask_limit()
        except CallError as unanswered:
            raise self._explain(unanswered, lines) from unanswered
        if not 0 < limit < len(lines):
            return None
        if self._most_lines is None:
            self._say(f"--batch is more than this server takes; sending {limit} lines per call, its limit")
        self._most_lines = limit
        return limit


async def run_batches(
    calls: Calls[_Result],
    lines: Iterator[Line | None],
    *,
    max_lines: int,
    write: Write,
    form: Callable[[Line, _Result | Skipped], str],
    tally: Tally,
    progress: tqdm[NoReturn],
    reason_of: Callable[[_Result], FinishReason] = lambda _: FinishReason.UNSPECIFIED,
) -> None:
    """Send lines in batches, several at a time, and write and count what became of each, in order.

    Args:
        calls: Makes the calls.
        lines: None where the input makes us wait.
        max_lines: Of a batch.
        write: Takes the output.
        form: Makes a line's output.
        tally: Counts the lines.
        progress: Shows how many are done.
        reason_of: Says why a result ended.
    """

    async def work(batch: tuple[Line, ...]) -> tuple[tuple[Line, ...], list[_Result | Skipped]]:
        return batch, await calls.run(batch)

    def emit(done: tuple[tuple[Line, ...], list[_Result | Skipped]]) -> None:
        write("".join(map(form, *done)))
        for line, outcome in zip(*done, strict=True):
            if isinstance(outcome, Skipped):
                tally.skip(line, outcome)
            else:
                tally.add(line, reason_of(outcome))
        progress.update(len(done[0]))

    await run_in_order(batches(lines, max_lines=max_lines), work, emit, max_in_flight=BATCHES_IN_FLIGHT)


async def most_lines(client: AsyncTranslationClient, model: str) -> int:
    """Ask how many lines a call may have."""
    return (await client.model(model)).limits.max_texts


def _split(part: list[int], size: int) -> list[list[int]]:
    return [part[start : start + size] for start in range(0, len(part), size)]
