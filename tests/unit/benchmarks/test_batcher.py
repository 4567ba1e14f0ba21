"""The server that ours is compared with has to batch as well as it can."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from tests.benchmarks.batcher import Batcher, Waiting


class Recorder:
    """Translates by repeating the source, keeps the batches, and waits where it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, batch: Sequence[Waiting]) -> list[list[str]]:
        """Translate a batch, on a thread of the batcher's."""
        self.batches.append([len(waiting.tokens) for waiting in batch])
        assert self.gate.wait(10)
        if any(waiting.tokens == ["fails"] for waiting in batch):
            raise ValueError("on purpose")
        return [waiting.tokens for waiting in batch]


def test_texts_that_arrive_within_the_window_share_a_batch() -> None:
    """And each caller gets its own result."""
    recorder = Recorder()

    async def run() -> list[list[str]]:
        batcher = Batcher(recorder, window_s=0.05, max_batch=8, replicas=1)
        found = await asyncio.gather(*(batcher.submit([str(i)] * (i + 1), 10, 1) for i in range(3)))
        await batcher.close()
        return found

    assert asyncio.run(run()) == [["0"], ["1", "1"], ["2", "2", "2"]]
    assert [sorted(batch) for batch in recorder.batches] == [[1, 2, 3]]


def test_a_full_batch_takes_the_oldest_text_and_those_of_about_its_length() -> None:
    """Texts that wait for a busy replica go on in batches of like lengths; texts of other beams go alone."""
    recorder = Recorder()

    async def run() -> None:
        batcher = Batcher(recorder, window_s=0.0, max_batch=2, replicas=1)
        recorder.gate.clear()
        first = asyncio.ensure_future(batcher.submit(["x"], 10, 1))
        while not recorder.batches:
            await asyncio.sleep(0.001)
        tasks = [asyncio.ensure_future(batcher.submit(["x"] * length, 10, 1)) for length in (10, 50, 12, 49)]
        tasks.append(asyncio.ensure_future(batcher.submit(["x"] * 11, 10, 4)))
        await asyncio.sleep(0)
        recorder.gate.set()
        await asyncio.gather(first, *tasks)
        await batcher.close()

    asyncio.run(run())

    assert recorder.batches == [[1], [10, 12], [50, 49], [11]]


def test_a_failing_batch_fails_its_callers_and_no_others() -> None:
    """The batcher goes on."""
    recorder = Recorder()

    async def run() -> list[str]:
        batcher = Batcher(recorder, window_s=0.0, max_batch=8, replicas=1)
        with pytest.raises(ValueError, match="on purpose"):
            await batcher.submit(["fails"], 10, 1)
        found = await asyncio.wait_for(batcher.submit(["works"], 10, 1), 10)
        await batcher.close()
        return found

    assert asyncio.run(run()) == ["works"]


def test_nobody_translates_for_callers_that_have_gone() -> None:
    """A cancelled caller's text is not in a later batch."""
    recorder = Recorder()

    async def run() -> None:
        batcher = Batcher(recorder, window_s=0.0, max_batch=8, replicas=1)
        recorder.gate.clear()
        first = asyncio.ensure_future(batcher.submit(["x"], 10, 1))
        while not recorder.batches:
            await asyncio.sleep(0.001)
        gone = asyncio.ensure_future(batcher.submit(["x"] * 2, 10, 1))
        stays = asyncio.ensure_future(batcher.submit(["x"] * 3, 10, 1))
        await asyncio.sleep(0)
        gone.cancel()
        recorder.gate.set()
        await asyncio.gather(first, stays)
        await batcher.close()

    asyncio.run(run())

    assert recorder.batches == [[1], [3]]
