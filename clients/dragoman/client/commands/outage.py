"""How long a command waits for a server that does not answer. Pure policy: clock and chance come in as arguments.

The library's own retries (`dragoman.client.retry`) last about a second, which bridges a lost connection. A server
that restarts is away for longer, and a file that is half translated is worth waiting for.

- Nothing answers, the server is starting or stopping, or it stays full: try again until the wait is over, first after
  a second, then after longer pauses, up to 10 s. The user is told when it begins, now and then, and when it is over.
- A call's time is up: nothing was heard in it. If the server has answered before and does not seem to be away, the call
  takes too long, and would again: that is said at once. Else the server is away: a connection that hangs, a name that
  takes long to resolve, and it is waited for as for one that refuses connections.
- Unless the user says how long, there is a wait only once the server has answered. Before that, the address may be
  wrong or the server not started, and the user wants to know at once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from dragoman.client.errors import (
    CallError,
    DeadlineExceededError,
    OverloadedError,
    UnavailableError,
)

DEFAULT_WAIT_S = 300.0

_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 10.0
_REMINDER_S = 30.0


class Outage:
    """What all calls of a command know of the server's absence.

    Args:
        server: Its address, for messages.
        wait_s: Seconds that a call waits, from its first failure; None means `DEFAULT_WAIT_S` once the server has
            answered, and 0 before.
        say: Tells the user one sentence.
        clock: Seconds of a clock that does not go back.
        chance: Numbers from 0 to 1, which spread the pauses of many clients.
    """

    def __init__(
        self,
        server: str,
        wait_s: float | None,
        say: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._server = server
        self._wait_s = wait_s
        self._say = say
        self._clock = clock
        self._chance = chance
        self._has_answered = False
        self._since: float | None = None
        self._last_said = 0.0

    def patience(self) -> Patience:
        """Return the patience of one call."""
        return Patience(self, self._clock, self._chance)

    @property
    def wait_s(self) -> float:
        """Seconds that a call waits now."""
        if self._wait_s is not None:
            return self._wait_s
        return DEFAULT_WAIT_S if self._has_answered else 0.0

    def means_absence(self, error: CallError) -> bool:
        """Whether the server can be expected to do later what it did not do now."""
        if isinstance(error, OverloadedError):
            return error.retry_after_s is not None
        if isinstance(error, DeadlineExceededError):
            return not self._has_answered or self._since is not None
        return isinstance(error, UnavailableError)

    def failed(self, error: CallError, now: float) -> None:
        """Take note of a call that will be tried again."""
        if self._since is None:
            self._since = self._last_said = now
            what = "is full" if isinstance(error, OverloadedError) else "does not answer"
            self._say(f"{self._server} {what} ({error}); trying again for {self.wait_s:g} s")
        elif now - self._last_said >= _REMINDER_S:
            self._last_said = now
            self._say(f"{self._server}: still trying, {now - self._since:.0f} of {self.wait_s:g} s")

    def answered(self, begun: float, now: float) -> None:
        """Take note of a call that was answered, well or not.

        Args:
            begun: When the call began. A server that stops finishes old calls while it refuses new ones: an answer
                to an old one does not say that it is back.
            now: The time.
        """
        self._has_answered = True
        if self._since is not None and begun >= self._since:
            self._say(f"{self._server} answers again after {now - self._since:.0f} s")
            self._since = None


class Patience:
    """The attempts of one call: whether to try again, and when."""

    def __init__(self, outage: Outage, clock: Callable[[], float], chance: Callable[[], float]) -> None:
        self._outage = outage
        self._clock = clock
        self._chance = chance
        self._begun = clock()
        self._first_failure: float | None = None
        self._num_pauses = 0

    def begin(self) -> None:
        """Begin an attempt."""
        self._begun = self._clock()

    def answered(self) -> None:
        """End the attempt: the server answered."""
        self._outage.answered(self._begun, self._clock())

    def pause_s(self, error: CallError) -> float | None:
        """End the attempt with an error; return the seconds to wait before the next one, None if there is none."""
        now = self._clock()
        if not self._outage.means_absence(error):
            self._outage.answered(self._begun, now)
            return None
        if self._first_failure is None:
            self._first_failure = now
        longest_s: float = min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2.0**self._num_pauses)
        pause_s = longest_s * (0.5 + 0.5 * self._chance())
        left_s = self._first_failure + self._outage.wait_s - now
        if left_s <= 0:
            return None
        self._num_pauses += 1
        self._outage.failed(error, now)
        return min(pause_s, left_s)
