"""Whom to drop and whom to encode: pure policy with a queue. No clock, thread, session or array.

**Order.** Three classes of priority. A request that has waited `ageing_s` counts as one class higher, after twice
that as two. Within a class the caller who was served fewest tokens is next (`fair_queue`), within a caller the
earliest. One that has waited `ageing_s` in the highest class is overdue: every fourth batch begins with the one that
has been overdue longest, whoever's it is. So nobody starves, however many others come, and the other three batches
are still shared fairly.

**The pool is filled in that order.** What is encoded now are the first request and those behind it that are about
as long (`bucket`), so that little is padding. One that is passed over because of its length keeps its slots: no
companion takes what somebody before it needs. A lower class joins only a batch that leaves nobody of a higher one
behind.

**The first is always in the batch if it fits.** If it does not, because it is wide or long, those behind it may
take as many slots as it needs itself, all in all, and then nothing behind it is encoded until it fits. Every
running request ends after at most its limit of steps, so the first waits for the longest of them at most, and what
fits an empty pool runs.

**Running rows wait for one encode batch per step at most**, and that batch is small: a plan has one batch, of at
most `encode_tokens` padded tokens (requests x longest source), and of the share `running_share` of it while rows are
running. One longer request still gets a batch of its own. With nothing running nobody waits, the budget is whole,
and whatever has arrived is encoded at once.

A request that does not even fit an empty pool must be refused at the door. It is nobody's fault but the server's
if one gets here, and everything behind it would wait for ever: `plan` raises AssertionError.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dragoman.server.agenda import Agenda
from dragoman.server.fair_queue import FairQueue
from dragoman.server.request import Priority, Request, RequestStatus

# Waiting requests that a plan looks at, and that it moves to a higher class: a plan must not take longer because
# thousands are waiting.
_CANDIDATES = 128
_RISING = 16
# Batches that begin with whoever is next, before one begins with an overdue request.
_FAIR_BATCHES = 3


class Room(Protocol):
    """The slot pool as the scheduler sees it."""

    @property
    def rows(self) -> int:
        """All slots."""

    def fits(self, rows: int, longest_source: int, longest_target: int) -> bool:
        """Whether so many live rows can share the pool if the longest source and the longest possible target are these.

        If something fits, then so does anything that is smaller in each of the three.
        """


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the engine does next.

    Attributes:
        drop: Requests to end, running or waiting, and how: DEADLINE, CANCELLED or STOPPED.
        encode: Requests to encode together; each gets `width` slots, of which those of dropped ones are some.
    """

    drop: list[tuple[Request, RequestStatus]]
    encode: list[Request]


@dataclass(slots=True)
class _Entry:
    """What the scheduler knows of a waiting request."""

    number: int
    level: int
    deadline: float | None
    rises_at: float  # to the next level, and from the highest to the overdue ones; infinite for these


class Scheduler:
    """Has the waiting requests.

    Not safe for threads: its owner calls one method at a time. Only a request's `cancelled` and `stopped` may change
    while it waits.
    """

    def __init__(self, *, encode_tokens: int, ageing_s: float = 5.0, running_share: float = 0.25) -> None:
        """Start with nobody waiting.

        Args:
            encode_tokens: Largest encode batch: requests x longest source.
            ageing_s: After so many seconds a request counts as one class higher; infinity keeps the classes apart, and
                the lower ones may starve.
            running_share: Part of `encode_tokens` that may be encoded between two steps of running rows. Lower: their
                tokens come more evenly; higher: a burst is encoded sooner. A full pool needs about one source token
                per row and step to stay full, so the part should be a few times the number of slots.
        """
        if encode_tokens < 1 or not ageing_s > 0 or not 0 < running_share <= 1:
            raise AssertionError(f"encode_tokens {encode_tokens}, ageing_s {ageing_s}, running_share {running_share}")
        self._encode_tokens = encode_tokens
        self._ageing_s = ageing_s
        self._running_tokens = max(1, int(encode_tokens * running_share))
        self._entries: dict[Request, _Entry] = {}  # in order of arrival
        self._levels = tuple(FairQueue() for _ in Priority)
        self._deadlines = Agenda()
        self._rising = Agenda()
        self._overdue: OrderedDict[Request, None] = OrderedDict()
        self._fair_batches = 0  # since one began with an overdue request
        self._arrived = 0
        self._waiting_rows = 0
        self._of_caller: dict[str, int] = {}  # waiting requests; nobody without any is remembered
        self._touched = False
        self._blocked: Request | None = None  # the last that was first and did not fit
        self._passed = 0  # slots that were given past it

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._entries)

    @property
    def waiting_rows(self) -> int:
        """Slots that the waiting requests will need."""
        return self._waiting_rows

    def waiting_of(self, caller: str) -> int:
        """Return how many requests of a caller wait."""
        return self._of_caller.get(caller, 0)

    def add(self, requests: Sequence[Request]) -> None:
        """Queue requests that fit an empty pool."""
        for request in requests:
            if request in self._entries:
                raise AssertionError("a request that is waiting was added again")
            self._arrived += 1
            rises_at = request.times.submitted + self._ageing_s
            entry = _Entry(self._arrived, int(request.priority), request.deadline, rises_at)
            self._entries[request] = entry
            self._waiting_rows += request.width
            self._of_caller[request.caller] = self._of_caller.get(request.caller, 0) + 1
            self._levels[entry.level].append(request)
            if entry.deadline is not None:
                self._deadlines.add(entry.deadline, entry.number, request)
            self._rising.add(entry.rises_at, entry.number, request)

    def touch(self) -> None:
        """Make the next plan look at every waiting request, because one was cancelled or stopped."""
        self._touched = True

    def plan(self, running: Sequence[Request], room: Room, now: float) -> StepPlan:
        """Decide the next step; what is dropped or encoded is no longer in the queue.

        Args:
            running: Requests that own slots, all of them.
            room: The pool.
            now: Monotonic seconds.
        """
        drop = [(request, reason) for request in running if (reason := _reason_to_drop(request, now)) is not None]
        drop += self._drop_waiting(now)
        self._raise_levels(now)
        if not self._entries:
            return StepPlan(drop, [])
        gone = {request for request, _ in drop}
        load = _Load.of([request for request in running if request not in gone] if gone else running)
        if load.rows >= room.rows:
            return StepPlan(drop, [])
        batch = _Batch(self._running_tokens if load.rows else self._encode_tokens)
        drop += self._fill(batch, load, room, now)
        if batch.requests:
            self._fair_batches = 0 if batch.requests[0] is self._overdue_first() else self._fair_batches + 1
        for request in batch.requests:
            self._levels[self._leave(request).level].serve(request)
        return StepPlan(drop, batch.requests)

    def drain(self) -> list[Request]:
        """Take out everything, in order of arrival."""
        requests = list(self._entries)
        for request in requests:
            self._discard(request)
        return requests

    def _drop_waiting(self, now: float) -> list[tuple[Request, RequestStatus]]:
        drop = []
        while (request := self._deadlines.next_due(now)) is not None:
            self._discard(request)
            drop.append((request, RequestStatus.DEADLINE))
        if self._touched:
            self._touched = False
            for request in [r for r in self._entries if r.cancelled or r.stopped]:
                self._discard(request)
                drop.append((request, RequestStatus.CANCELLED if request.cancelled else RequestStatus.STOPPED))
        return drop

    def _raise_levels(self, now: float) -> None:
        for _ in range(_RISING):
            request = self._rising.next_due(now)
            if request is None:
                return
            entry = self._entries[request]
            self._rising.remove(entry.rises_at, entry.number)
            if entry.level:
                self._levels[entry.level].remove(request)
                entry.level -= 1
                self._levels[entry.level].append(request)
                entry.rises_at += self._ageing_s
            else:
                self._overdue[request] = None
                entry.rises_at = math.inf
            self._rising.add(entry.rises_at, entry.number, request)

    def _fill(self, batch: _Batch, load: _Load, room: Room, now: float) -> list[tuple[Request, RequestStatus]]:
        """Choose the batch, and count in `load` whoever has a slot or is sure of one; returns whom to drop instead."""
        late: list[tuple[Request, RequestStatus]] = []
        behind_level: int | None = None  # the highest level of which somebody stays behind
        allowed = math.inf  # slots for those behind one that is blocked
        first = True
        if load.rows and not room.fits(load.rows + 1, load.longest_source, load.longest_target):
            return late  # not even the shortest would fit, so there is nothing to look for
        for level, request in itertools.islice(self._in_order(), _CANDIDATES):
            if load.rows >= room.rows or batch.full or not allowed or behind_level not in (None, level):
                break
            reason = _reason_to_drop(request, now)
            if reason is not None:
                late.append((request, reason))
                continue
            if load.leaves_room(request, room) and request.width <= allowed:
                load.add(request)
                if batch.takes(request):
                    allowed -= request.width
                else:
                    behind_level = level
            elif first or request is self._blocked:
                allowed = self._allowance(request, load, room)
            else:
                behind_level = level
            first = False
        if allowed != math.inf and self._blocked is not None:
            self._passed = self._blocked.width - int(allowed)
        for request, _ in late:
            self._discard(request)
        return late

    def _allowance(self, blocked: Request, load: _Load, room: Room) -> int:
        """Return how many more slots those behind a request that does not fit may take."""
        if not load.rows:
            raise AssertionError(
                f"a request of {blocked.width} slots, {len(blocked.source)} source and {blocked.longest_target} target "
                f"tokens was queued but does not fit the empty pool of {room.rows} slots"
            )
        if blocked is not self._blocked:
            self._blocked, self._passed = blocked, 0
        return blocked.width - self._passed

    def _overdue_first(self) -> Request | None:
        """Return the overdue request that the next batch begins with, if it is the turn of one."""
        return next(iter(self._overdue), None) if self._fair_batches >= _FAIR_BATCHES else None

    def _in_order(self) -> Iterator[tuple[int, Request]]:
        overdue = self._overdue_first()
        if overdue is not None:
            yield 0, overdue
        for level, queue in enumerate(self._levels):
            for request in queue.in_order():
                if request is not overdue:
                    yield level, request

    def _discard(self, request: Request) -> None:
        self._levels[self._leave(request).level].remove(request)

    def _leave(self, request: Request) -> _Entry:
        """Forget a request, but for its place in the queue of its level."""
        entry = self._entries.pop(request)
        self._waiting_rows -= request.width
        left = self._of_caller.pop(request.caller) - 1
        if left:
            self._of_caller[request.caller] = left
        if entry.deadline is not None:
            self._deadlines.remove(entry.deadline, entry.number)
        self._rising.remove(entry.rises_at, entry.number)
        self._overdue.pop(request, None)
        if request is self._blocked:
            self._blocked = None
        return entry


@dataclass(slots=True)
class _Load:
    """Rows that share the pool."""

    rows: int = 0
    longest_source: int = 0
    longest_target: int = 0

    @classmethod
    def of(cls, requests: Sequence[Request]) -> _Load:
        return cls(
            sum([request.width for request in requests]),
            max([len(request.source) for request in requests], default=0),
            max([request.longest_target for request in requests], default=0),
        )

    def add(self, request: Request) -> None:
        self.rows += request.width
        self.longest_source = max(self.longest_source, len(request.source))
        self.longest_target = max(self.longest_target, request.longest_target)

    def leaves_room(self, request: Request, room: Room) -> bool:
        rows = self.rows + request.width
        return rows <= room.rows and room.fits(
            rows,
            max(self.longest_source, len(request.source)),
            max(self.longest_target, request.longest_target),
        )


class _Batch:
    """Requests of one bucket within a budget of padded tokens; the first may be longer."""

    def __init__(self, budget: int) -> None:
        self.requests: list[Request] = []
        self._budget = budget
        self._longest = 0

    @property
    def full(self) -> bool:
        """Whether it takes nothing more, however short."""
        return bool(self.requests) and (len(self.requests) + 1) * self._longest > self._budget

    def takes(self, request: Request) -> bool:
        """Add a request if it belongs here; returns whether it does."""
        length = len(request.source)
        longest = max(self._longest, length)
        if self.requests and (
            bucket(length) != bucket(self._longest) or (len(self.requests) + 1) * longest > self._budget
        ):
            return False
        self.requests.append(request)
        self._longest = longest
        return True


def bucket(length: int, smallest: int = 16) -> int:
    """Return the smallest power of two that holds `length`, at least `smallest`."""
    return max(smallest, 1 << (length - 1).bit_length())


def _reason_to_drop(request: Request, now: float) -> RequestStatus | None:
    # A deadline first: gRPC cancels the call when it passes.
    if request.deadline is not None and now >= request.deadline:
        return RequestStatus.DEADLINE
    if request.cancelled:
        return RequestStatus.CANCELLED
    if request.stopped:
        return RequestStatus.STOPPED
    return None
