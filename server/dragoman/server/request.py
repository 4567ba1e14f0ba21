"""One text on its way through the engine, and what became of it. Standard library only."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dragoman.server.options import SearchOptions


class RequestStatus(enum.Enum):
    """Where a text stands; all but the first two are final."""

    WAITING = "waiting"  # in the queue
    RUNNING = "running"  # owns slots
    EOS = "eos"  # the model ended the text
    LENGTH = "length"  # the limit on new tokens ended it
    STOPPED = "stopped"  # its listener has seen enough: a stop sequence
    CANCELLED = "cancelled"  # the caller has gone
    DEADLINE = "deadline"  # the caller's time is up
    FAILED = "failed"  # the engine failed on it

    @property
    def final(self) -> bool:
        """Whether nothing will change any more."""
        return self not in (RequestStatus.WAITING, RequestStatus.RUNNING)


class Priority(enum.IntEnum):
    """Who is encoded first; a text that waits long rises."""

    INTERACTIVE = 0
    NORMAL = 1
    BULK = 2


class Listener(Protocol):
    """Gets a request's events, in order, on whatever thread the engine's `deliver` uses.

    Attributes:
        wants_tokens: Whether `token` is called at all; an event per token and row is not free.
    """

    wants_tokens: bool

    def token(self, token: int) -> None:
        """One more token, EOS not included. Never called for a beam search, whose text is not known before its end."""

    def ended(self, request: Request) -> None:
        """The request is final; nothing follows."""


@dataclass(slots=True)
class Times:
    """Monotonic seconds, all taken in this process; None while it has not happened."""

    submitted: float
    encode_start: float | None = None
    encode_end: float | None = None
    first_token: float | None = None
    ended: float | None = None


@dataclass(slots=True)
class Hypothesis:
    """A translation that was found.

    Attributes:
        tokens: Target ids, neither forced ones nor EOS.
        log_prob: Sum of the log-probabilities of the chosen tokens, EOS included where it was reached; 0 where
            nobody asked for scores.
        score: What the hypotheses of a text are ranked by: `log_prob`, normalised.
        token_scores: Log-probability of each of `tokens`, and of EOS where it was reached.
        alignment: Per token of `tokens`, attention to each source token.
        ended_by_eos: Whether the model ended it.
    """

    tokens: list[int] = field(default_factory=list)
    log_prob: float = 0.0
    score: float = 0.0
    token_scores: list[float] = field(default_factory=list)
    alignment: list[Sequence[float]] = field(default_factory=list)
    ended_by_eos: bool = False


@dataclass(slots=True, eq=False)
class Request:
    """A text to translate.

    Attributes:
        source: Token ids with EOS and what names the languages.
        options: How to decode.
        listener: Gets the events.
        times: When things happened.
        deadline: Monotonic seconds; None means no deadline.
        first_target: Tokens that the target begins with: a language, a prefix. They are no part of the text.
        caller: Whose it is; callers get equal shares.
        priority: Its class.
        cancelled: Set by any thread when the caller has gone; the engine looks once per iteration, before it
            encodes and steps.
        stopped: Likewise, when the listener has seen enough; what there is by then is the result.
        status: Written by the engine only.
        hypotheses: The best first; of a text that ended without a result, empty.
        alternatives: Best tokens of the first free position and their log-probabilities, if asked for.
        correlation_id: Of the log entry, when it failed.
        width: Slots that it needs.
        longest_target: Most positions that each of its slots may need.
    """

    source: Sequence[int]
    options: SearchOptions
    listener: Listener
    times: Times
    deadline: float | None = None
    first_target: Sequence[int] = ()
    caller: str = ""
    priority: Priority = Priority.NORMAL
    cancelled: bool = False
    stopped: bool = False
    status: RequestStatus = RequestStatus.WAITING
    hypotheses: list[Hypothesis] = field(default_factory=list)
    alternatives: list[tuple[int, float]] = field(default_factory=list)
    correlation_id: str = ""
    width: int = field(init=False)
    longest_target: int = field(init=False)

    def __post_init__(self) -> None:
        """Work out what every plan asks of every request."""
        self.width = self.options.beams
        self.longest_target = len(self.first_target) + self.options.max_new_tokens

    @property
    def output(self) -> list[int]:
        """Target ids of the best hypothesis."""
        return self.hypotheses[0].tokens if self.hypotheses else []
