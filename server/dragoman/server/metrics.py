"""Every metric of the server: name, unit, help, buckets, labels. One registry per server.

Labels are bounded: the model's name, the method, the status code or the reason. Never a text.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

# Before the import: a `_created` series per metric is noise that nobody asked for.
os.environ.setdefault("PROMETHEUS_DISABLE_CREATED_SERIES", "true")

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

NAMESPACE = "dragoman"
_SECONDS = (0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60)
_STEP_SECONDS = (0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class Load:
    """How busy an engine is.

    Attributes:
        running: Texts that own slots.
        waiting: Texts in the queue.
        slots: Of the pool.
        slots_used: Those in use.
        cache_bytes: Memory of the pool.
    """

    running: int = 0
    waiting: int = 0
    slots: int = 0
    slots_used: int = 0
    cache_bytes: int = 0

    def __add__(self, other: Load) -> Load:
        """Return what both have together."""
        return Load(
            self.running + other.running,
            self.waiting + other.waiting,
            self.slots + other.slots,
            self.slots_used + other.slots_used,
            self.cache_bytes + other.cache_bytes,
        )


class Metrics:
    """The metrics of one server, bound to one model's name."""

    def __init__(self, model: str) -> None:
        """Register everything in a new registry."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._model = model
        # calls
        self._requests = Counter(
            "requests", "Calls that ended, by status code.", ("method", "code"),
            namespace=NAMESPACE, registry=self.registry,
        )  # fmt: skip
        self._request_duration = Histogram(
            "request_duration", "End to end time of a call in the server.", ("method",),
            namespace=NAMESPACE, unit="seconds", buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        # texts
        self.tokenize_duration = self._histogram(
            "tokenize_duration", "Tokenizing all texts of a call.", "seconds", _SECONDS
        )
        self.queue_duration = self._histogram("queue_duration", "A text's wait for the encoder.", "seconds", _SECONDS)
        self.time_to_first_token = self._histogram(
            "time_to_first_token", "From a text's arrival in the queue to its first token.", "seconds", _SECONDS
        )
        self.source_tokens = self._histogram(
            "text_source_tokens", "Source tokens of a text, EOS included.", "", _TOKENS
        )
        self.target_tokens = self._histogram("text_target_tokens", "Target tokens of a text.", "", _TOKENS)
        self.source_tokens_total = self._counter("source_tokens", "Source tokens encoded.")
        self.target_tokens_total = self._counter("target_tokens", "Target tokens generated.")
        # engine
        self.encode_duration = self._histogram("encode_duration", "Encoding one batch.", "seconds", _STEP_SECONDS)
        self.encode_rows = self._histogram("encode_rows", "Texts in an encode batch.", "", _ROWS)
        self.step_duration = self._histogram("decode_step_duration", "One decode step.", "seconds", _STEP_SECONDS)
        self.step_rows = self._histogram(
            "decode_step_rows", "Rows that share a decode step: one per text, or one per beam.", "", _ROWS
        )
        self._load = {
            "running": self._gauge("texts_running", "Texts that own slots."),
            "waiting": self._gauge("texts_waiting", "Texts in the queue."),
            "slots": self._gauge("slots", "Slots in the pools: the most rows that decode together."),
            "slots_used": self._gauge("slots_used", "Slots in use: one per text, or one per beam."),
            "cache_bytes": self._gauge("cache", "Memory of the slot pools: keys, values and cells.", "bytes"),
        }
        self.engine_failures = self._counter("engine_failures", "Encode batches and decode steps that failed.")
        self.not_finite = self._counter("not_finite", "Texts that failed because the graph returned no number.")
        self._texts_ended = Counter(
            "texts_ended", "Texts that left the engine, by how they ended.", ("model", "reason"),
            namespace=NAMESPACE, registry=self.registry,
        )  # fmt: skip
        self._info = Gauge(
            "model_info", "Always 1; the labels describe the loaded model.",
            ("model", "version", "precision", "device", "requested_device"),
            namespace=NAMESPACE, registry=self.registry,
        )  # fmt: skip

    def request_ended(self, method: str, code: str, seconds: float) -> None:
        """Account for a call."""
        self._requests.labels(method, code).inc()
        self._request_duration.labels(method).observe(seconds)

    def watch(self, load: Callable[[], Load]) -> None:
        """Show how busy the engines are whenever somebody asks; `load` is called on the asking thread."""
        for field, gauge in self._load.items():
            gauge.set_function(lambda field=field: getattr(load(), field))  # type: ignore[misc]  # mypy cannot infer lambda defaults

    def request_left(self, reason: str) -> None:
        """Account for a text that left the engine."""
        self._texts_ended.labels(self._model, reason).inc()

    def describe_model(self, *, version: str, precision: str, device: str, requested_device: str) -> None:
        """Publish what is loaded."""
        self._info.labels(self._model, version, precision, device, requested_device).set(1)

    def _histogram(self, name: str, text: str, unit: str, buckets: tuple[float, ...]) -> Histogram:
        metric = Histogram(
            name, text, ("model",), namespace=NAMESPACE, unit=unit, buckets=buckets, registry=self.registry
        )
        return metric.labels(self._model)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ("model",), namespace=NAMESPACE, registry=self.registry).labels(self._model)

    def _gauge(self, name: str, text: str, unit: str = "") -> Gauge:
        return Gauge(name, text, ("model",), namespace=NAMESPACE, unit=unit, registry=self.registry).labels(self._model)
