"""The real engine on the real runtime with a bundle, driven one iteration at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dragoman.export.bundle import Manifest
from dragoman.server.engine import Engine, Event
from dragoman.server.kv_cache import CachePool
from dragoman.server.metrics import Metrics
from dragoman.server.request import Row
from dragoman.server.runtime import OnnxRuntime
from tests.fakes.engine import new_row


class BundleBench:
    """Runtime, pool and engine of a bundle; each has its own sessions.

    Attributes:
        runtime: With one thread.
        pool: The engine's slots.
        engine: Not started.
    """

    def __init__(self, folder: Path, manifest: Manifest, rows: int, encode_tokens: int = 512) -> None:
        self.runtime = OnnxRuntime(folder, manifest, device="cpu", threads=1, encode_tokens=encode_tokens)
        self.pool = CachePool(rows, manifest.shape, manifest.limits)
        self._longest = manifest.limits.max_target_tokens
        self.engine = Engine(
            self.runtime,
            self.pool,
            manifest.special,
            Metrics(manifest.name),
            encode_tokens=encode_tokens,
            max_queued=1000,
            deliver=_run_all,
        )

    def start(self, sources: Sequence[Sequence[int]]) -> list[Row]:
        """Queue sources that may become as long as the bundle allows."""
        rows = [new_row(source, max_new_tokens=self._longest) for source in sources]
        self.engine.submit(rows)
        return rows

    def finish(self, rows: Sequence[Row]) -> list[list[int]]:
        """Iterate until all rows have ended; returns their tokens."""
        while not all(row.status.final for row in rows):
            self.engine.iterate()
        return [row.output for row in rows]

    def translate(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the tokens of sources that arrive together."""
        return self.finish(self.start(sources))


def _run_all(events: Sequence[Event]) -> None:
    for event in events:
        event()
