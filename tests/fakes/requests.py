"""Requests of any size, and a pool that only says what fits."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.model.vocab import SPECIAL_IDS
from dragoman.server.options import SearchOptions
from dragoman.server.request import Priority, Request, RequestStatus, Times


class SilentListener:
    """Wants nothing and keeps nothing."""

    wants_tokens = False

    def token(self, token: int) -> None:
        """Refuse what was not asked for."""
        raise AssertionError(f"token {token} was delivered to a listener that wants none")

    def ended(self, request: Request) -> None:
        """Ignore the end."""


def make_request(
    source_len: int = 8,
    *,
    beams: int = 1,
    max_new_tokens: int = 16,
    caller: str = "",
    priority: Priority = Priority.NORMAL,
    deadline: float | None = None,
    submitted: float = 0.0,
) -> Request:
    """Return a waiting request whose source has `source_len` tokens."""
    return Request(
        source=(SPECIAL_IDS.eos,) * source_len,
        options=SearchOptions(max_new_tokens, beams=beams),
        listener=SilentListener(),
        times=Times(submitted),
        deadline=deadline,
        caller=caller,
        priority=priority,
    )


def make_running(
    source_len: int = 8,
    *,
    beams: int = 1,
    max_new_tokens: int = 16,
    deadline: float | None = None,
    cancelled: bool = False,
    stopped: bool = False,
) -> Request:
    """Return a request that owns slots."""
    request = make_request(source_len, beams=beams, max_new_tokens=max_new_tokens, deadline=deadline)
    request.status = RequestStatus.RUNNING
    request.cancelled, request.stopped = cancelled, stopped
    return request


@dataclass
class FakeRoom:
    """A pool of `rows` slots with memory for `positions` of them all.

    Attributes:
        rows: Slots.
        positions: Live rows x (longest source + longest target) may not be more.
        asked: How often the scheduler asked what fits.
    """

    rows: int
    positions: int = 1_000_000
    asked: int = 0

    def fits(self, rows: int, longest_source: int, longest_target: int) -> bool:
        """Whether so many rows of such lengths can share it."""
        self.asked += 1
        return rows <= self.rows and rows * (longest_source + longest_target) <= self.positions

    def holds(self, *requests: Request) -> bool:
        """Whether these requests can all run at once."""
        if not requests:
            return True
        sources = [len(request.source) for request in requests]
        targets = [request.longest_target for request in requests]
        return self.fits(sum(request.width for request in requests), max(sources), max(targets))
