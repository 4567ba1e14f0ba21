"""A clock that stands still until a test moves it."""

from __future__ import annotations


class FakeClock:
    """Monotonic seconds under control of a test; call it like `time.monotonic`."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
