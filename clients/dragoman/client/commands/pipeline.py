"""Work on several items at once and hand out the results in order, in bounded memory.

Knows nothing of lines or gRPC. Reading blocks, so it has a thread; everything else is one event loop.
The thread is a daemon and shares only a semaphore and the loop's inbox with it: a failure can end the
program while the thread still waits for input that may never come.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _End:
    failure: Exception | None


async def run_in_order(
    items: Iterator[_Item],
    work: Callable[[_Item], Coroutine[Any, Any, _Result]],
    emit: Callable[[_Result], None],
    *,
    max_in_flight: int,
) -> None:
    """Run `work` on each item and `emit` on each result, in the order of the items.

    Args:
        items: Iterated in a thread; may block.
        work: At most `max_in_flight` run at once.
        emit: Called as soon as a result and all before it are there.
        max_in_flight: Items that have been read and not yet emitted, at most.

    Raises:
        Exception: What `items`, `work` or `emit` raised first, in the order of the items. Everything
            before it has been emitted; work on items after it is cancelled.
    """
    loop = asyncio.get_running_loop()
    slots = threading.Semaphore(max_in_flight)
    is_stopped = threading.Event()
    entries: asyncio.Queue[asyncio.Task[_Result] | _End] = asyncio.Queue()
    unfinished: deque[asyncio.Task[_Result]] = deque()

    def start(item: _Item) -> None:
        if not is_stopped.is_set():
            task = loop.create_task(work(item))
            unfinished.append(task)
            entries.put_nowait(task)

    def read() -> None:
        failure: Exception | None = None
        try:
            while slots.acquire() and not is_stopped.is_set():
                loop.call_soon_threadsafe(start, next(items))
        except StopIteration:
            pass
        except Exception as error:
            failure = error  # raised again by the loop, in its turn
        with contextlib.suppress(RuntimeError):  # the loop is closed, nobody wants to know
            loop.call_soon_threadsafe(entries.put_nowait, _End(failure))

    threading.Thread(target=read, name="dragoman-translate-input", daemon=True).start()
    try:
        while not isinstance(entry := await entries.get(), _End):
            emit(await entry)
            unfinished.popleft()
            slots.release()
        if entry.failure is not None:
            raise entry.failure
    finally:
        is_stopped.set()
        slots.release()
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
