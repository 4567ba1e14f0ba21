"""Several engines behind one door: each has its own thread and slots, a text runs in one of them.

Many small operators do not use many threads well: on a machine with more than a few cores, two engines of two
threads translate more texts per second than one engine of four. Texts go where least is waiting.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Iterable, Sequence

from dragoman.server.engine import Engine
from dragoman.server.errors import QueueFull
from dragoman.server.metrics import Load
from dragoman.server.request import Request


class Replicas:
    """What one engine offers, by several of them."""

    def __init__(self, engines: Sequence[Engine], *, max_queued: int) -> None:
        """Take engines of one model.

        Args:
            engines: At least one, with equal pools, none of them started.
            max_queued: Most requests that may wait in all of them together.
        """
        self._engines = list(engines)
        self._max_queued = max_queued
        self._door = threading.Lock()  # what is counted must not change before the requests are queued

    def start(self) -> None:
        """Start all threads."""
        for engine in self._engines:
            engine.start()

    @property
    def alive(self) -> bool:
        """Whether all threads are running."""
        return all(engine.alive for engine in self._engines)

    @property
    def load(self) -> Load:
        """How busy all of them are together."""
        return functools.reduce(operator.add, (engine.load for engine in self._engines))

    @property
    def most_rows(self) -> int:
        """Slots of a pool: the most beams that a text can have."""
        return self._engines[0].most_rows

    @property
    def can_align(self) -> bool:
        """Whether the model can tell which source word a target word translates."""
        return self._engines[0].can_align

    def fits(self, width: int, source_tokens: int, target_tokens: int) -> bool:
        """Whether a request of `width` slots could run if it were alone."""
        return self._engines[0].fits(width, source_tokens, target_tokens)

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests of one caller, all or none, each in the engine that has least to do. Callable from any thread.

        A caller who has texts waiting gets no more places than are free for others afterwards: alone it takes half of
        them, and whoever comes next finds room (the dynamic threshold of Choudhury and Hahne 1998).

        Raises:
            QueueFull: They do not fit, or are more than the caller's share; nothing was queued.
            NotServing: The engines are closing.
        """
        with self._door:
            free = self._max_queued - self.load.waiting
            theirs = sum(engine.waiting_of(requests[0].caller) for engine in self._engines)
            if len(requests) > free or (theirs and theirs + len(requests) > free):
                retry = min(engine.retry_after for engine in self._engines)
                raise QueueFull.of(len(requests), free=free, limit=self._max_queued, theirs=theirs, retry_after_s=retry)
            for engine, share in zip(self._engines, self._shares(requests), strict=True):
                if share:
                    engine.submit(share)

    def cancel(self, requests: Iterable[Request]) -> None:
        """Tell the engines that nobody waits for these requests any more. Callable from any thread."""
        requests = list(requests)
        for engine in self._engines:
            engine.cancel(requests)

    def stop(self, requests: Iterable[Request]) -> None:
        """Tell the engines that these have enough tokens. Callable from any thread."""
        requests = list(requests)
        for engine in self._engines:
            engine.stop(requests)

    def close(self) -> None:
        """Finish every request that was accepted, then end the threads."""
        for engine in self._engines:
            engine.close()

    def _shares(self, requests: Sequence[Request]) -> list[list[Request]]:
        """Deal the requests out, the widest and longest work counting most."""
        work = [float(engine.load.slots_used + engine.waiting_rows) for engine in self._engines]
        shares: list[list[Request]] = [[] for _ in self._engines]
        for request in requests:
            least = work.index(min(work))
            shares[least].append(request)
            work[least] += request.width
        return shares
