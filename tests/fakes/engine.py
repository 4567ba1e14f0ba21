"""The real engine on a fake runtime and a fake clock, driven one iteration at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dragoman.export.bundle import Shape
from dragoman.model.vocab import SPECIAL_IDS
from dragoman.server.engine import Engine, Event
from dragoman.server.metrics import Metrics
from dragoman.server.options import SearchOptions
from dragoman.server.request import Request, RequestStatus, Times
from dragoman.server.scheduler import Scheduler
from dragoman.server.search import Search
from dragoman.server.slot_types import SlotTypes
from tests.fakes.clock import FakeClock
from tests.fakes.pools import FLOATS, LIMITS, PLENTY, SHAPE, make_pool
from tests.fakes.runtime import FIRST_WORD, FakeRuntime, Scorer, Source, certain, echo

_MORE_THAN_ENOUGH = 10_000


def words(count: int, first: int = FIRST_WORD) -> Source:
    """Return a source of so many words and EOS."""
    return (*range(first, first + count), SPECIAL_IDS.eos)


class Recorder:
    """A listener that keeps what it was told and refuses to be told anything after the end."""

    wants_tokens = True

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ends = 0

    def token(self, token: int) -> None:
        """Keep a token."""
        assert not self.ends, "a token came after the end"
        self.tokens.append(token)

    def ended(self, request: Request) -> None:
        """Count the only end; the row has to be final and complete by now."""
        assert not self.ends, "a second end"
        assert request.status.final
        assert not request.hypotheses or request.width > 1 or self.tokens == request.output
        self.ends += 1


def new_request(
    source: Sequence[int] = (FIRST_WORD, SPECIAL_IDS.eos),
    *,
    max_new_tokens: int = LIMITS.max_target_tokens,
    deadline: float | None = None,
    submitted: float = 0.0,
    first_target: Sequence[int] = (),
    caller: str = "",
    **options: Any,
) -> Request:
    """Return a request with a recorder."""
    chosen = SearchOptions(max_new_tokens=max_new_tokens, **options)
    return Request(source, chosen, Recorder(), Times(submitted), deadline, first_target, caller)


def recorder(request: Request) -> Recorder:
    """Return a request's listener."""
    assert isinstance(request.listener, Recorder)
    return request.listener


class EngineBench:
    """An engine without its thread, and everything around it.

    Attributes:
        clock: Moves when a test says so; the engine's unless it got another.
        runtime: Records what it computed.
        pool: The engine's slots.
        engine: Not started.
        after_deliver: Called when the events of an iteration have been delivered.
    """

    def __init__(
        self,
        *,
        rows: int = 4,
        shape: Shape = SHAPE,
        encode_tokens: int = 1000,
        max_queued: int = 100,
        translate: Callable[[Source], Sequence[int]] = echo,
        score: Scorer | None = None,
        cache_bytes: int = PLENTY,
        types: SlotTypes = FLOATS,
        deliver: Callable[[Sequence[Event]], None] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.pool = make_pool(rows, shape, types=types, cache_bytes=cache_bytes)
        self.runtime = FakeRuntime(score or certain(translate, shape.vocab_size)).bind(self.pool)
        self.search = Search(
            rows, LIMITS.max_target_tokens, SPECIAL_IDS, shape.vocab_size, candidates=self.runtime.candidates
        )
        self.metrics = Metrics("fake")
        self.after_deliver: Callable[[], object] = _nothing
        self.engine = Engine(
            self.runtime,
            self.pool,
            self.search,
            Scheduler(encode_tokens=encode_tokens),
            SPECIAL_IDS,
            self.metrics,
            max_queued=max_queued,
            deliver=deliver or self._deliver,
            clock=clock or self.clock,
        )
        self.metrics.watch(lambda: self.engine.load)

    def submit(
        self,
        *sources: Sequence[int],
        max_new_tokens: int = LIMITS.max_target_tokens,
        timeout_s: float | None = None,
        **options: Any,
    ) -> list[Request]:
        """Queue requests in one call and return them."""
        deadline = None if timeout_s is None else self.clock() + timeout_s
        requests = [
            new_request(source, max_new_tokens=max_new_tokens, deadline=deadline, submitted=self.clock(), **options)
            for source in sources
        ]
        self.engine.submit(requests)
        return requests

    def iterate(self, times: int = 1) -> None:
        """Run iterations of the loop."""
        for _ in range(times):
            self.engine.iterate()

    def finish(self) -> None:
        """Iterate until nothing waits and nothing runs."""
        for _ in range(_MORE_THAN_ENOUGH):
            if not self.value("texts_running") and not self.value("texts_waiting"):
                return
            self.engine.iterate()
        raise AssertionError(f"still busy after {_MORE_THAN_ENOUGH} iterations")

    def value(self, name: str, **labels: str) -> float:
        """Return a sample of a metric; 0 if it was never touched."""
        value = self.metrics.registry.get_sample_value(f"dragoman_{name}", {"model": "fake", **labels})
        return 0.0 if value is None else value

    def ended(self, status: RequestStatus) -> float:
        """Return how many texts ended like this, says the metric."""
        return self.value("texts_ended_total", reason=status.value)

    def _deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            event()
        self.after_deliver()


def _nothing() -> None:
    pass
