"""Requests by the time when something is due for them. Standard library only, no clock."""

from __future__ import annotations

from bisect import bisect_left, insort

from dragoman.server.request import Request


class Agenda:
    """Appointments, the earliest first; each can be called off.

    A sorted list, not a heap: what is called off is gone at once, so its memory does not depend on how far ahead
    the appointments are. Moving a few thousand pointers takes a microsecond.
    """

    def __init__(self) -> None:
        self._appointments: list[tuple[float, int, Request]] = []

    def __len__(self) -> int:
        return len(self._appointments)

    def add(self, time: float, number: int, request: Request) -> None:
        """Note that something is due at `time`, in seconds; `number` is the request's own and breaks ties."""
        insort(self._appointments, (time, number, request))

    def remove(self, time: float, number: int) -> None:
        """Call off an appointment that was added with these values."""
        index = bisect_left(self._appointments, (time, number))
        if index == len(self) or self._appointments[index][:2] != (time, number):
            raise AssertionError(f"nothing is due at {time} for request number {number}")
        del self._appointments[index]

    def next_due(self, now: float) -> Request | None:
        """Return the request whose time came first, and leave it in the agenda; None if no time has come yet."""
        if self._appointments and self._appointments[0][0] <= now:
            return self._appointments[0][2]
        return None

    def clear(self) -> None:
        """Call off everything."""
        self._appointments.clear()
