"""Dynamic batching for an engine that translates whole batches: the other side of the service benchmark.

Written to be as good as such a server can be: a batch begins when its oldest text has waited for the window or when
it is full, and never while all replicas are busy, so that a longer queue makes fuller batches; when more texts
wait than fit, those that are nearest in length to the oldest go with it, which keeps padding low and starves nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Waiting:
    """A text in the queue.

    Attributes:
        tokens: Of the source.
        limit: On new tokens.
        beams: 1 is greedy.
        arrived: Seconds of the event loop's clock.
        result: Gets the target's tokens.
    """

    tokens: list[str]
    limit: int
    beams: int
    arrived: float
    result: asyncio.Future[list[str]]


Translate = Callable[[Sequence[Waiting]], list[list[str]]]


class Batcher:
    """Queue and replicas."""

    def __init__(self, translate: Translate, *, window_s: float, max_batch: int, replicas: int) -> None:
        """Start on the running event loop.

        Args:
            translate: Translates a batch, all with equal beams; called on threads of its own.
            window_s: How long the oldest text waits for companions at most.
            max_batch: Texts of a batch, at most.
            replicas: Batches at a time.
        """
        self._translate = translate
        self._window_s = window_s
        self._max_batch = max_batch
        self._threads = ThreadPoolExecutor(replicas, thread_name_prefix="replica")
        self._free = asyncio.Semaphore(replicas)
        self._queue: list[Waiting] = []
        self._arrival = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._collector = self._loop.create_task(self._collect())

    async def submit(self, tokens: list[str], limit: int, beams: int) -> list[str]:
        """Translate one text."""
        result: asyncio.Future[list[str]] = self._loop.create_future()
        self._queue.append(Waiting(tokens, limit, beams, self._loop.time(), result))
        self._arrival.set()
        return await result

    async def close(self) -> None:
        """Finish what runs and end; nothing may be submitted any more."""
        self._collector.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._threads.shutdown()

    async def _collect(self) -> None:
        while True:
            await self._free.acquire()
            batch: list[Waiting] = []
            while not batch:  # callers may all have gone
                await self._fill()
                batch = self._take()
            task = self._loop.create_task(self._run(batch))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _fill(self) -> None:
        """Return when the oldest text has waited long enough, or a batch is full."""
        while True:
            self._queue = [waiting for waiting in self._queue if not waiting.result.done()]  # callers may leave
            left = self._queue[0].arrived + self._window_s - self._loop.time() if self._queue else None
            if left is not None and (left <= 0 or len(self._queue) >= self._max_batch):
                return
            self._arrival.clear()
            try:
                await asyncio.wait_for(self._arrival.wait(), left)
            except TimeoutError:
                return

    def _take(self) -> list[Waiting]:
        """Take the oldest text and those that are like it."""
        present = [waiting for waiting in self._queue if not waiting.result.done()]
        if not present:
            self._queue = []
            return []
        oldest = present[0]
        alike = [waiting for waiting in present if waiting.beams == oldest.beams]
        alike.sort(key=lambda waiting: abs(len(waiting.tokens) - len(oldest.tokens)))  # stable: the oldest is first
        batch = alike[: self._max_batch]
        taken = {id(waiting) for waiting in batch}
        self._queue = [waiting for waiting in present if id(waiting) not in taken]
        return batch

    async def _run(self, batch: list[Waiting]) -> None:
        try:
            targets = await self._loop.run_in_executor(self._threads, self._translate, batch)
        except Exception as error:
            for waiting in batch:
                if not waiting.result.done():
                    waiting.result.set_exception(error)
        else:
            for waiting, target in zip(batch, targets, strict=True):
                if not waiting.result.done():
                    waiting.result.set_result(target)
        finally:
            self._free.release()
