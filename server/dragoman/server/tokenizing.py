"""Where a call's texts are tokenized: short ones at once, long ones on threads, so that the loop never waits long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from dragoman.server.errors import QueueFull
from dragoman.server.metrics import Metrics

_Result = TypeVar("_Result")

# Takes 0.1 ms. The way to a thread and back takes longer, above all while an engine computes.
_SHORT_CHARACTERS = 512
# Tokenizing a full queue takes about as long.
_RETRY_S = 0.5


class Tokenizing:
    """The tokenizer threads and what waits for them.

    Attributes:
        pending: Texts that the threads have not finished.
    """

    def __init__(
        self, threads: Executor, metrics: Metrics, *, most: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin with nothing pending.

        Args:
            threads: For long texts.
            metrics: Get the durations.
            most: Texts that may be pending.
            clock: Monotonic seconds.
        """
        self.pending = 0
        self._threads = threads
        self._metrics = metrics
        self._most = most
        self._clock = clock

    async def run(self, work: Callable[[], _Result], *, texts: int, characters: int) -> _Result:
        """Do a call's work.

        Args:
            work: Tokenizes.
            texts: So many.
            characters: So long all together.

        Raises:
            QueueFull: Too many texts are pending.
        """
        start = self._clock()
        tokens = work() if characters <= _SHORT_CHARACTERS else await self._on_a_thread(work, texts)
        self._metrics.tokenize_duration.observe(self._clock() - start)
        return tokens

    async def _on_a_thread(self, work: Callable[[], _Result], texts: int) -> _Result:
        if self.pending + texts > self._most:
            raise QueueFull(
                f"{self.pending} texts wait to be tokenized and the limit is {self._most}, so {texts} more do not fit; "
                "try again later or send fewer texts per call",
                _RETRY_S,
            )
        self.pending += texts
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self.pending -= texts
