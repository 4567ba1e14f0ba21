"""Short calls are tokenized at once, long ones on threads, and no more of these may wait than is allowed."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dragoman.server.errors import QueueFull
from dragoman.server.metrics import Metrics
from dragoman.server.tokenizing import Tokenizing


def count_of(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("dragoman_tokenize_duration_seconds_count", {"model": "m"}) or 0.0


@pytest.mark.parametrize(("characters", "at_once"), [(0, True), (512, True), (513, False)])
def test_the_loop_tokenizes_what_is_short(characters: int, at_once: bool) -> None:
    """The way to a thread takes longer than a sentence; a document would hold up all other calls."""
    metrics = Metrics("m")

    async def test() -> bool:
        with ThreadPoolExecutor(1) as threads:
            tokenizing = Tokenizing(threads, metrics, most=1)
            where = await tokenizing.run(threading.get_ident, texts=1, characters=characters)
        return where == threading.get_ident()

    assert asyncio.run(test()) is at_once
    assert count_of(metrics) == 1


def test_a_full_queue_refuses_long_texts_only() -> None:
    """What is done at once never waits."""

    async def test() -> None:
        gate = threading.Event()
        with ThreadPoolExecutor(1) as threads:
            tokenizing = Tokenizing(threads, Metrics("m"), most=3)
            first = asyncio.ensure_future(tokenizing.run(lambda: gate.wait(10), texts=2, characters=1000))
            await asyncio.sleep(0)
            assert tokenizing.pending == 2
            with pytest.raises(QueueFull, match="2 texts wait to be tokenized and the limit is 3, so 2 more do not"):
                await tokenizing.run(bool, texts=2, characters=1000)
            assert await tokenizing.run(lambda: "short", texts=2, characters=10) == "short"
            gate.set()
            assert await first
        assert tokenizing.pending == 0

    asyncio.run(test())


def test_what_fails_waits_no_longer() -> None:
    """Else a few bad texts would close the door for ever."""

    async def test() -> int:
        with ThreadPoolExecutor(1) as threads:
            tokenizing = Tokenizing(threads, Metrics("m"), most=1)
            for _ in range(2):
                with pytest.raises(ZeroDivisionError):
                    await tokenizing.run(lambda: 1 // 0, texts=1, characters=1000)
        return tokenizing.pending

    assert asyncio.run(test()) == 0
