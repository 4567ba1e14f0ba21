"""Our side of the comparisons: the one place that knows how the engine is put together.

It is the server without gRPC and tokenizer: its own functions for loading, its defaults, the engine on its
own thread, requests submitted as calls submit them. Only the number of slots is the benchmark's, because batch
size is what it compares.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.export.bundle import Manifest, load_manifest
from dragoman.export.precision import DEVICES, Precision
from dragoman.export.token_names import token_names
from dragoman.server.config import ServerConfig
from dragoman.server.engine import Engine, Event
from dragoman.server.kv_cache import CachePool
from dragoman.server.loading import make_engine, make_pool, warm_up
from dragoman.server.metrics import Metrics
from dragoman.server.options import SearchOptions
from dragoman.server.request import Request, Times
from dragoman.server.runtime import OnnxRuntime
from tests.benchmarks.baselines import CTranslate2Side, HuggingFaceSide, Job, Outcome, Side
from tests.benchmarks.child import ChildSide
from tests.benchmarks.models import BenchModel
from tests.benchmarks.names import AWAKE, CTRANSLATE2, CTRANSLATE2_AWAKE, HUGGING_FACE, OURS, PRECISIONS

_MOST_QUEUED = 100_000
_WAIT_S = 600.0


class Countdown:
    """A listener that waits for several requests."""

    wants_tokens = False

    def __init__(self, count: int) -> None:
        """Wait for `count` ends."""
        self._left = count
        self._done = threading.Event()

    def token(self, token: int) -> None:
        """Do nothing: nobody streams."""

    def ended(self, request: Request) -> None:  # noqa: ARG002  # the engine has written all into it
        """Count one end."""
        self._left -= 1
        if not self._left:
            self._done.set()

    def wait(self) -> None:
        """Return when all have ended.

        Raises:
            TimeoutError: They do not.
        """
        if not self._done.wait(_WAIT_S):
            raise TimeoutError(f"the engine has not finished {self._left} texts within {_WAIT_S:.0f} s")


@dataclass(slots=True)
class Loaded:
    """A bundle with sessions, slots and an engine whose thread has not been started.

    Attributes:
        manifest: Of the bundle.
        runtime: Sessions.
        pool: Slots.
        metrics: Of the engine.
        engine: Puts them to work.
    """

    manifest: Manifest
    runtime: OnnxRuntime
    pool: CachePool
    metrics: Metrics
    engine: Engine

    def decoded(self) -> tuple[float, int]:
        """Return seconds and number of decode steps so far."""
        labels = {"model": self.manifest.name}
        total, count = (
            self.metrics.registry.get_sample_value(f"dragoman_decode_step_duration_seconds_{part}", labels) or 0.0
            for part in ("sum", "count")
        )
        return total, int(count)


def load(folder: Path, *, rows: int, threads: int) -> Loaded:
    """Load a bundle as the server does, with its defaults.

    Args:
        folder: The bundle.
        rows: Slots.
        threads: Of each session.
    """
    config = ServerConfig(model=str(folder), max_rows=rows, threads=threads)
    manifest = load_manifest(folder)
    runtime = OnnxRuntime(folder, manifest, device="cpu", threads=threads, encode_tokens=config.encode_tokens)
    pool, metrics = make_pool(config, runtime), Metrics(manifest.name)
    warm_up(runtime, pool, manifest)
    engine = make_engine(
        runtime, pool, metrics, encode_tokens=config.encode_tokens, max_queued=_MOST_QUEUED, deliver=_run_all
    )
    return Loaded(manifest, runtime, pool, metrics, engine)


def make_request(source: Sequence[int], options: SearchOptions, listener: Countdown) -> Request:
    """Return a text that is submitted now."""
    return Request(source, options, listener, Times(time.monotonic()))


class DragomanSide:
    """Engine, scheduler, search, pool and ONNX Runtime of a bundle."""

    title = OURS

    def __init__(self, model: BenchModel, precision: Precision, threads: int) -> None:
        """Export the bundle; sessions and slots are made for a job.

        Args:
            model: The weights.
            precision: Of the bundle.
            threads: Of each session.
        """
        self.precision: str = precision
        self._folder = model.bundle(precision)
        self._threads = threads
        self._loaded: Loaded | None = None
        self._job = Job([], 1, 1, 1)

    def prepare(self, job: Job) -> None:
        """Give the engine as many slots as the job's rows have beams."""
        self._job = job
        rows = job.rows * job.beams
        if self._loaded is None or rows != self._loaded.pool.rows:
            self.close()
            self._loaded = load(self._folder, rows=rows, threads=self._threads)
            self._loaded.engine.start()

    def run(self) -> Outcome:
        """Submit all sources in one call and wait for the last."""
        assert self._loaded is not None
        options = SearchOptions(max_new_tokens=self._job.new_tokens, beams=self._job.beams)
        countdown = Countdown(len(self._job.sources))
        requests = [make_request(source, options, countdown) for source in self._job.sources]
        before = self._loaded.decoded()
        self._loaded.engine.submit(requests)
        countdown.wait()
        after = self._loaded.decoded()
        failed = [request.status.value for request in requests if not request.hypotheses]
        if failed:
            raise RuntimeError(f"{len(failed)} of {len(requests)} texts ended as {', '.join(sorted(set(failed)))}")
        return Outcome([r.output for r in requests], decode_s=after[0] - before[0], steps=after[1] - before[1])

    def close(self) -> None:
        """End the engine's thread."""
        if self._loaded is not None:
            self._loaded.engine.close()
            self._loaded = None


def open_side(title: str, precision: str, model: BenchModel, threads: int) -> Side:
    """Load a model into an engine.

    Args:
        title: A key of `PRECISIONS`.
        precision: One of its `PRECISIONS`.
        model: The weights.
        threads: Of its operators.
    """
    if title in (CTRANSLATE2, CTRANSLATE2_AWAKE):
        arguments = (model.ctranslate2(), token_names(model.checkpoint.tokenizer, None), precision, threads)
        if title == CTRANSLATE2:
            return CTranslate2Side(*arguments)
        return ChildSide(title, AWAKE, CTranslate2Side, *arguments)
    if title == HUGGING_FACE:
        return HuggingFaceSide(model, precision, threads)
    return DragomanSide(model, as_precision(precision), threads)


def as_precision(name: str) -> Precision:
    """Return a name as the type says.

    Raises:
        ValueError: Our bundles have no such precision on a CPU.
    """
    for precision, devices in DEVICES.items():
        if precision == name and "cpu" in devices:
            return precision
    raise ValueError(f"precision {name!r} is not one of {', '.join(PRECISIONS[OURS])}")


def _run_all(events: Sequence[Event]) -> None:
    for event in events:
        event()
