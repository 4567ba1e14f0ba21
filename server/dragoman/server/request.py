"""One text on its way through the engine. Standard library only."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


class RowStatus(enum.Enum):
    """Where a row stands; the last five are final."""

    WAITING = "waiting"  # in the queue
    RUNNING = "running"  # owns a slot
    EOS = "eos"  # the model ended the text
    LENGTH = "length"  # the limit on new tokens ended it
    CANCELLED = "cancelled"  # the caller has gone
    DEADLINE = "deadline"  # the caller's time is up
    FAILED = "failed"  # the engine failed on it

    @property
    def final(self) -> bool:
        """Whether nothing will change any more."""
        return self not in (RowStatus.WAITING, RowStatus.RUNNING)


class Listener(Protocol):
    """Gets a row's events, in order, on whatever thread the engine's `deliver` uses.

    Attributes:
        wants_tokens: Whether `token` is called at all; an event per token and row is not free.
    """

    wants_tokens: bool

    def token(self, token: int) -> None:
        """One more token, EOS not included."""

    def ended(self, row: Row) -> None:
        """The row is final; nothing follows."""


@dataclass(slots=True)
class Times:
    """Monotonic seconds, all taken in this process; None while it has not happened."""

    submitted: float
    encode_start: float | None = None
    encode_end: float | None = None
    first_token: float | None = None
    ended: float | None = None


@dataclass(slots=True, eq=False)
class Row:
    """A text to translate, and what became of it.

    Attributes:
        source: Token ids with EOS and what names the languages.
        max_new_tokens: At most this many target tokens, EOS included, those of `first_target` not.
        listener: Gets the events.
        times: When things happened.
        deadline: Monotonic seconds; None means no deadline.
        first_target: Tokens that the target begins with; they are no part of the text.
        cancelled: Set by any thread when the caller has gone; the engine looks once per iteration,
            before it encodes and steps.
        status: Written by the engine only.
        output: Target ids so far, EOS not included.
        correlation_id: Of the log entry, when it failed.
    """

    source: Sequence[int]
    max_new_tokens: int
    listener: Listener
    times: Times
    deadline: float | None = None
    first_target: Sequence[int] = ()
    cancelled: bool = False
    status: RowStatus = RowStatus.WAITING
    output: list[int] = field(default_factory=list)
    correlation_id: str = ""
