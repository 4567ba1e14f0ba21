import asyncio
import random
import threading
from collections.abc import Iterator

import pytest

from dragoman.client.commands.pipeline import run_in_order

SEED = 7


async def _echo(item: int) -> int:
    await asyncio.sleep(0)
    return item


def test_results_come_in_the_order_of_the_items() -> None:
    """However long each item takes, results are emitted in order and none is lost."""
    dice = random.Random(SEED)
    emitted: list[int] = []

    async def work(item: int) -> int:
        for _ in range(dice.randrange(20)):
            await asyncio.sleep(0)
        return item

    asyncio.run(run_in_order(iter(range(200)), work, emitted.append, max_in_flight=8))

    assert emitted == list(range(200))


def test_reading_runs_ahead_only_so_far() -> None:
    """Items that were read and not yet emitted are never more than the limit, so memory is bounded."""
    num_read = 0
    emitted: list[int] = []
    ahead: list[int] = []

    def items() -> Iterator[int]:
        nonlocal num_read
        for item in range(100):
            num_read += 1
            ahead.append(num_read - len(emitted))
            yield item

    asyncio.run(run_in_order(items(), _echo, emitted.append, max_in_flight=3))

    assert len(emitted) == 100
    assert max(ahead) <= 3


def test_several_items_are_worked_on_at_once() -> None:
    """The first item can wait for the third, so three must be under way."""
    third_begun = asyncio.Event()
    emitted: list[int] = []

    async def work(item: int) -> int:
        if item == 2:
            third_begun.set()
        await asyncio.wait_for(third_begun.wait(), timeout=10)
        return item

    asyncio.run(run_in_order(iter(range(5)), work, emitted.append, max_in_flight=3))

    assert emitted == [0, 1, 2, 3, 4]


def test_a_failure_comes_in_its_turn_and_cancels_the_rest() -> None:
    """Results before the failed item are emitted, later work is cancelled, later failures are dropped."""
    emitted: list[int] = []
    cancelled: list[int] = []
    others_begun = asyncio.Event()

    async def work(item: int) -> int:
        if item == 4:
            others_begun.set()
        if item == 2:
            await asyncio.wait_for(others_begun.wait(), timeout=10)
            raise ValueError("item 2")
        if item == 3:
            raise ValueError("item 3")
        if item > 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(item)
                raise
        return item

    with pytest.raises(ValueError, match="item 2"):
        asyncio.run(run_in_order(iter(range(100)), work, emitted.append, max_in_flight=5))

    assert emitted == [0, 1]
    assert 4 in cancelled


def test_a_failing_source_is_reported_after_its_items() -> None:
    """What was read before the source failed is emitted first."""
    emitted: list[int] = []

    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("broken source")

    with pytest.raises(ValueError, match="broken source"):
        asyncio.run(run_in_order(items(), _echo, emitted.append, max_in_flight=8))

    assert emitted == [1, 2]


def test_a_failure_does_not_wait_for_more_input() -> None:
    """The program can end while its source blocks, as a terminal does."""
    never = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        never.wait(10)

    async def work(item: int) -> int:
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 1"):
        asyncio.run(run_in_order(items(), work, print, max_in_flight=2))

    assert not never.is_set()
    never.set()
