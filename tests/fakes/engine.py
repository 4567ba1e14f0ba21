"""The real engine on a fake runtime and a fake clock, driven one iteration at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dragoman.export.bundle import SSRU, Limits, Shape
from dragoman.model.vocab import SPECIAL_IDS
from dragoman.server.engine import Engine, Event
from dragoman.server.kv_cache import CachePool
from dragoman.server.metrics import Metrics
from dragoman.server.request import Row, RowStatus, Times
from tests.fakes.clock import FakeClock
from tests.fakes.runtime import FIRST_WORD, FakeRuntime, Source, echo

SHAPE = Shape(vocab_size=1000, num_heads=2, head_dim=2, num_decoder_layers=1)
CELLS = Shape(vocab_size=1000, num_heads=2, head_dim=2, num_decoder_layers=2, decoder_layer=SSRU, cell_width=3)
LIMITS = Limits(max_source_tokens=48, max_target_tokens=40)
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

    def ended(self, row: Row) -> None:
        """Count the only end; the row has to be final and complete by now."""
        assert not self.ends, "a second end"
        assert row.status.final
        assert self.tokens == row.output
        self.ends += 1


def new_row(
    source: Sequence[int] = (FIRST_WORD, SPECIAL_IDS.eos),
    *,
    max_new_tokens: int = LIMITS.max_target_tokens,
    deadline: float | None = None,
    submitted: float = 0.0,
) -> Row:
    """Return a row with a recorder."""
    return Row(source, max_new_tokens, Recorder(), Times(submitted), deadline)


def recorder(row: Row) -> Recorder:
    """Return a row's listener."""
    assert isinstance(row.listener, Recorder)
    return row.listener


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
        deliver: Callable[[Sequence[Event]], None] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.pool = CachePool(rows, shape, LIMITS)
        self.runtime = FakeRuntime(translate).bind(self.pool)
        self.metrics = Metrics("fake")
        self.after_deliver: Callable[[], object] = _nothing
        self.engine = Engine(
            self.runtime,
            self.pool,
            SPECIAL_IDS,
            self.metrics,
            encode_tokens=encode_tokens,
            max_queued=max_queued,
            deliver=deliver or self._deliver,
            clock=clock or self.clock,
        )

    def submit(
        self, *sources: Sequence[int], max_new_tokens: int = LIMITS.max_target_tokens, timeout_s: float | None = None
    ) -> list[Row]:
        """Queue rows in one call and return them."""
        deadline = None if timeout_s is None else self.clock() + timeout_s
        rows = [
            new_row(source, max_new_tokens=max_new_tokens, deadline=deadline, submitted=self.clock())
            for source in sources
        ]
        self.engine.submit(rows)
        return rows

    def iterate(self, times: int = 1) -> None:
        """Run iterations of the loop."""
        for _ in range(times):
            self.engine.iterate()

    def finish(self) -> None:
        """Iterate until nothing waits and nothing runs."""
        for _ in range(_MORE_THAN_ENOUGH):
            if not self.value("rows_running") and not self.value("rows_waiting"):
                return
            self.engine.iterate()
        raise AssertionError(f"still busy after {_MORE_THAN_ENOUGH} iterations")

    def value(self, name: str, **labels: str) -> float:
        """Return a sample of a metric; 0 if it was never touched."""
        value = self.metrics.registry.get_sample_value(f"dragoman_{name}", {"model": "fake", **labels})
        return 0.0 if value is None else value

    def ended(self, status: RowStatus) -> float:
        """Return how many rows ended like this, says the metric."""
        return self.value("rows_ended_total", reason=status.value)

    def _deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            event()
        self.after_deliver()


def _nothing() -> None:
    pass
