"""Signals that end a training run between two updates."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stopping(stop: threading.Event) -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into a request; a second one ends the process at once."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def request(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # the handler's signature
        print("\nstopping after this update; once more to stop at once", file=sys.stderr)
        stop.set()
        restore()

    for number in before:
        signal.signal(number, request)
    try:
        yield
    finally:
        restore()
