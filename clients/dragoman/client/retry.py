"""When to try a call again. Pure policy: clock and chance come in as arguments, waiting is the caller's.

Every call of the API can be repeated without harm: translating changes nothing on the server.

- The server asked for it (RetryInfo: it is full now): try again at the time it named, as often as it
  asks, until the call's deadline.
- Nothing answers, or the server is starting or stopping (UNAVAILABLE, or CANCELLED by the server: one that stops
  cancels calls that it has read and not begun): try again `retries` times, waiting longer each time, until the call's
  deadline.
- The client or the stream was closed on this side: never.
- Anything else fails at once; so does DEADLINE_EXCEEDED, because the time for retries is over with it, and a wait that
  would pass the deadline: the caller learns now what is wrong instead of later that time is up.

Waits are spread at random, so that clients that were turned away together do not come back together.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from dragoman.client.checks import is_integer, is_number, wrong_type
from dragoman.client.errors import UnavailableError, call_error

DEFAULT_TIMEOUT_S = 60.0
DEFAULT_RETRIES = 4
MAX_SECONDS = 365 * 24 * 3600  # gRPC counts nanoseconds: beyond some 200 years, a call's time is up before it begins

_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 2.0
_MIN_WAIT_S = 0.02  # a server that asks for "now" must not get a busy loop
_MIN_TIMEOUT_S = 0.001  # gRPC takes a deadline in the past badly


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """Deadline and retries of a client's calls.

    Attributes:
        timeout_s: Seconds for a call, its retries included, unless the call says otherwise.
        retries: How often to try again when no server answers; 0 turns all retries off.

    `timeout_s` is above 0 and at most `MAX_SECONDS`, a year.
    """

    timeout_s: float = DEFAULT_TIMEOUT_S
    retries: int = DEFAULT_RETRIES

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            TypeError: A value is no number, or `retries` no whole one.
            ValueError: A value is out of range.
        """
        _check_timeout(self.timeout_s)
        if not is_integer(self.retries):
            raise wrong_type("retries", self.retries, "int, 0 (never) or more")
        if self.retries < 0:
            raise ValueError(f"retries is {self.retries}; it must be 0 (never) or more")

    def start(self, timeout_s: float | None) -> Attempts:
        """Start the clock of one call.

        Raises:
            TypeError: `timeout_s` is no number.
            ValueError: `timeout_s` is given and not above 0, or more than a year.
        """
        if timeout_s is None:
            return Attempts(retries=self.retries, timeout_s=self.timeout_s)
        _check_timeout(timeout_s)
        return Attempts(retries=self.retries, timeout_s=timeout_s)


class Attempts:
    """The attempts of one call: how much time is left, and whether to try again."""

    def __init__(
        self,
        *,
        retries: int,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._retries = retries
        self._clock = clock
        self._chance = chance
        self._deadline = clock() + timeout_s
        self._num_unanswered = 0
        self._may_retry = retries > 0

    def remaining_s(self) -> float:
        """Return the seconds left, never less than gRPC accepts."""
        return max(_MIN_TIMEOUT_S, self._deadline - self._clock())

    def commit(self) -> None:
        """Rule out another attempt, because the user has seen a part of the answer."""
        self._may_retry = False

    def wait_s(self, error: grpc.RpcError, *, is_closed: bool = False) -> float:
        """Return how many seconds to wait before the next attempt.

        Args:
            error: Why the last one failed.
            is_closed: The client or the stream was closed on this side.

        Raises:
            CallError: There is no next attempt; says why this one failed.
        """
        failure = call_error(error, is_closed=is_closed)
        if is_closed or not self._may_retry:
            raise failure from error
        if failure.retry_after_s is not None:
            wait_s = max(_MIN_WAIT_S, failure.retry_after_s) * (1 + 0.2 * self._chance())
        elif isinstance(failure, UnavailableError) and self._num_unanswered < self._retries:
            backoff_s = min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2**self._num_unanswered)
            wait_s = backoff_s * (0.5 + 0.5 * self._chance())
            self._num_unanswered += 1
        else:
            raise failure from error
        if self._clock() + wait_s >= self._deadline:
            raise failure from error
        return wait_s


def _check_timeout(timeout_s: float) -> None:
    allowed = f"a number of seconds above 0, at most {MAX_SECONDS} (a year)"
    if not is_number(timeout_s):
        raise wrong_type("timeout_s", timeout_s, allowed)
    if not 0 < timeout_s <= MAX_SECONDS:
        raise ValueError(f"timeout_s is {timeout_s}; it must be {allowed}")
