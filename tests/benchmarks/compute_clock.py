"""How long this process spends inside ONNX Runtime, and how its threads spend their CPU time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime

_RUN = "run_with_iobinding"
_TICKS = os.sysconf("SC_CLK_TCK")


class ComputeClock:
    """Counts calls of sessions while it is installed.

    Attributes:
        seconds: Wall time inside them.
        cpu_seconds: CPU time of the calling thread inside them; worker threads come on top.
        calls: How many.
    """

    def __init__(self) -> None:
        """Start at zero."""
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self.calls = 0

    @contextmanager
    def installed(self) -> Iterator[ComputeClock]:
        """Count in this process until the context is left."""
        original = getattr(onnxruntime.InferenceSession, _RUN)

        def timed(session: Any, *arguments: Any) -> Any:
            start, cpu = time.perf_counter(), time.thread_time()
            try:
                return original(session, *arguments)
            finally:
                self.seconds += time.perf_counter() - start
                self.cpu_seconds += time.thread_time() - cpu
                self.calls += 1

        setattr(onnxruntime.InferenceSession, _RUN, timed)
        try:
            yield self
        finally:
            setattr(onnxruntime.InferenceSession, _RUN, original)


def cpu_by_thread() -> dict[int, tuple[str, float]]:
    """Return name and CPU seconds of every thread of this process, by its id in the system.

    Python's threads have their Python names, others what the system calls them.
    """
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: dict[int, tuple[str, float]] = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            before, _, behind = (task / "stat").read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        fields = behind.split()
        number = int(task.name)
        name = names.get(number, before.partition("(")[2])
        found[number] = name, (int(fields[11]) + int(fields[12])) / _TICKS
    return found
