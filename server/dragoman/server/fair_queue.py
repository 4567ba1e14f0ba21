"""The waiting requests of one class in the order in which they are due, fair between callers.

The caller who was served fewest tokens is next, and its own texts go in order of arrival. A token is one of the
source, once per beam: that is known before a text is decoded, and the target is about as long.

A caller whose queue was empty begins where the last one whose turn it was has got to: not at zero, or it could
catch up on all the time that it was away, nor behind those who have been served a lot. Since each turn moves that
point on, an endless stream of new callers cannot keep an old one waiting for ever (start-time fair queueing, Goyal
et al. 1996, with the clock of self-clocked fair queueing, Golestani 1994). A caller without waiting requests is
forgotten.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from dragoman.server.request import Request

# Tokens served, texts served, a number of its own: the smallest is next. At equal tokens, who has had fewer texts.
_Place = tuple[int, int, int]


@dataclass(slots=True, eq=False)
class _Caller:
    place: _Place
    queue: OrderedDict[Request, None] = field(default_factory=OrderedDict)  # any of them can leave at any time


class FairQueue:
    """Waiting requests by caller."""

    def __init__(self) -> None:
        self._callers: dict[str, _Caller] = {}
        self._order: list[tuple[_Place, _Caller]] = []  # sorted; places differ, so callers are never compared
        self._joined = 0
        self._served = 0  # tokens, where a new caller begins

    def append(self, request: Request) -> None:
        """Put a request behind the others of its caller."""
        caller = self._callers.get(request.caller)
        if caller is None:
            self._joined += 1
            caller = self._callers[request.caller] = _Caller((self._served, 0, self._joined))
            insort(self._order, (caller.place, caller))
        caller.queue[request] = None

    def remove(self, request: Request) -> None:
        """Take out a request that needs no service any more; its caller does not pay."""
        caller = self._callers[request.caller]
        del caller.queue[request]
        if not caller.queue:
            self._forget(request.caller, caller)

    def serve(self, request: Request) -> None:
        """Take out a request; its caller pays for it."""
        caller = self._callers[request.caller]
        served, texts, number = caller.place
        served += tokens_of(request)
        if self._order[0][1] is caller:
            self._served = max(self._served, served)
        del caller.queue[request]
        if not caller.queue:
            self._forget(request.caller, caller)
            return
        del self._order[self._index(caller)]
        caller.place = (served, texts + 1, number)
        insort(self._order, (caller.place, caller))

    def in_order(self) -> Iterator[Request]:
        """Yield the requests as they would be served, had each caller paid for those before; lazily."""
        # Callers who have been visited, by the place that they would have by then.
        visited: list[tuple[_Place, Iterator[Request], Request]] = []
        fresh = iter(self._order)
        newcomer = next(fresh, None)
        while visited or newcomer is not None:
            if newcomer is not None and (not visited or newcomer[0] < visited[0][0]):
                place, queue = newcomer[0], iter(newcomer[1].queue)
                request = next(queue)
                newcomer = next(fresh, None)
            else:
                place, queue, request = heapq.heappop(visited)
            yield request
            following = next(queue, None)
            if following is not None:
                then = (place[0] + tokens_of(request), place[1] + 1, place[2])
                heapq.heappush(visited, (then, queue, following))

    def _forget(self, name: str, caller: _Caller) -> None:
        del self._callers[name]
        del self._order[self._index(caller)]

    def _index(self, caller: _Caller) -> int:
        return bisect_left(self._order, (caller.place,))


def tokens_of(request: Request) -> int:
    """Return what a caller pays for a request."""
    return request.width * len(request.source)
