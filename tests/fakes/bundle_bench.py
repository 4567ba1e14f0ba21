"""The real engine on the real runtime with a bundle, driven one iteration at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dragoman.export.bundle import Manifest
from dragoman.server.budget import plan_pool
from dragoman.server.device_memory import Memory
from dragoman.server.engine import Event
from dragoman.server.kv_cache import CachePool
from dragoman.server.loading import make_engine
from dragoman.server.metrics import Metrics
from dragoman.server.request import Request
from dragoman.server.runtime import OnnxRuntime
from tests.fakes.engine import new_request
from tests.fakes.pools import PLENTY

_MOST_QUEUED = 5000


class BundleBench:
    """Runtime, pool and engine of a bundle; each has its own sessions.

    Attributes:
        runtime: With one thread.
        pool: The engine's slots.
        engine: Not started.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, rows: int, encode_tokens: int = 512, memory: Memory | None = None
    ) -> None:
        self.runtime = OnnxRuntime(
            folder, manifest, device="cpu", threads=1, encode_tokens=encode_tokens, memory=memory
        )
        types = self.runtime.slot_types
        size = plan_pool(rows, manifest.shape, manifest.limits, types, cache_bytes=PLENTY)
        self.pool = CachePool(size, manifest.shape, types, memory)
        self._longest = manifest.limits.max_target_tokens
        self.engine = make_engine(
            self.runtime,
            self.pool,
            Metrics(manifest.name),
            encode_tokens=encode_tokens,
            max_queued=_MOST_QUEUED,
            deliver=_run_all,
        )

    def start(self, sources: Sequence[Sequence[int]], **options: Any) -> list[Request]:
        """Queue sources that may become as long as the bundle allows, unless options say otherwise."""
        options.setdefault("max_new_tokens", self._longest)
        requests = [new_request(source, **options) for source in sources]
        self.engine.submit(requests)
        return requests

    def finish(self, requests: Sequence[Request]) -> list[list[int]]:
        """Iterate until all have ended; returns the tokens of their best hypotheses."""
        while not all(request.status.final for request in requests):
            self.engine.iterate()
        return [request.output for request in requests]

    def translate(self, sources: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
        """Return the tokens of sources that arrive together."""
        return self.finish(self.start(sources, **options))


def _run_all(events: Sequence[Event]) -> None:
    for event in events:
        event()
