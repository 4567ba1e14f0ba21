"""Invariants 2 and 4 of the engine under any history: one end per row, and all slots come back."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dragoman.model.vocab import SPECIAL_IDS
from dragoman.server.errors import QueueFull
from dragoman.server.request import Request, RequestStatus
from dragoman.server.slot_types import SlotTypes
from tests.fakes.engine import EngineBench, recorder
from tests.fakes.pools import CELLS, LIMITS, SHAPE
from tests.fakes.runtime import FIRST_WORD, Source

ROWS = 4
MAX_QUEUED = 12


def translate(source: Source) -> list[int]:
    """Return 0 to 45 tokens that depend on the whole source: some rows hit the bundle's limit."""
    seed = sum((position + 1) * token for position, token in enumerate(source))
    return [FIRST_WORD + (seed + 7 * step * step) % 900 for step in range(seed % 46)]


@dataclass
class Expected:
    """What a test knows of an accepted row.

    Attributes:
        row: The row.
        cancelled: It was cancelled before it ended.
        failed: A failure was injected while it was open.
    """

    row: Request
    cancelled: bool = False
    failed: bool = False

    @property
    def solo(self) -> tuple[RequestStatus, list[int]]:
        """How the row ends, with which text, when it runs alone and undisturbed."""
        target = translate(tuple(self.row.source))
        limit = self.row.options.max_new_tokens
        return (RequestStatus.EOS, target) if len(target) < limit else (RequestStatus.LENGTH, target[:limit])


sources = st.lists(st.integers(FIRST_WORD, 999), max_size=LIMITS.max_source_tokens - 1).map(
    lambda tokens: (*tokens, SPECIAL_IDS.eos)
)


class EngineHistories(RuleBasedStateMachine):
    """Arrivals, cancels, deadlines, full queues and failures in any order."""

    shape = SHAPE

    def __init__(self) -> None:
        super().__init__()
        self.bench = EngineBench(
            rows=ROWS,
            shape=self.shape,
            types=SlotTypes(cross_last=True),  # one more thing that has to follow its row
            encode_tokens=80,
            max_queued=MAX_QUEUED,
            translate=translate,
        )
        self.accepted: list[Expected] = []

    @rule(
        batch=st.lists(sources, min_size=1, max_size=6),
        limit=st.integers(1, LIMITS.max_target_tokens),
        timeout_s=st.none() | st.floats(0, 20),
    )
    def submit(self, batch: list[Source], limit: int, timeout_s: float | None) -> None:
        """Send a call of several texts."""
        waiting = self.bench.value("texts_waiting")
        try:
            rows = self.bench.submit(*batch, max_new_tokens=limit, timeout_s=timeout_s)
        except QueueFull:
            assert waiting + len(batch) > MAX_QUEUED
            return
        assert waiting + len(batch) <= MAX_QUEUED
        self.accepted += [Expected(row) for row in rows]

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Let some callers leave, perhaps after their rows have ended."""
        for expected in data.draw(st.lists(st.sampled_from(self.accepted), min_size=1, max_size=3)):
            expected.cancelled |= not expected.row.status.final
            self.bench.engine.cancel([expected.row])

    @rule(seconds=st.floats(0.1, 10))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.bench.clock.advance(seconds)

    @rule(times=st.integers(1, 12))
    def iterate(self, times: int) -> None:
        """Run the engine."""
        self.bench.iterate(times)

    @rule(seconds=st.floats(0, 2))
    def iterate_slowly(self, seconds: float) -> None:
        """Run an iteration in which encoding and the step take time."""
        runtime = self.bench.runtime
        runtime.before_encode = runtime.before_step = lambda _: self.bench.clock.advance(seconds)
        self.bench.iterate()
        runtime.before_encode = runtime.before_step = _nothing

    @rule()
    def fail_encoding(self) -> None:
        """Run an iteration whose encode batch fails."""
        self._fail_during("before_encode")

    @rule()
    def fail_step(self) -> None:
        """Run an iteration whose decode step fails after it wrote to the cache."""
        self._fail_during("before_step")

    def _fail_during(self, hook: str) -> None:
        def fail(batch: Sequence[Source]) -> None:
            touched.extend(batch)
            raise RuntimeError("scripted")

        touched: list[Source] = []
        setattr(self.bench.runtime, hook, fail)
        self.bench.iterate()
        setattr(self.bench.runtime, hook, _nothing)
        for expected in self.accepted:
            expected.failed |= expected.row.status is RequestStatus.FAILED and tuple(expected.row.source) in touched

    @invariant()
    def slots_are_owned_by_running_rows(self) -> None:
        """Live slots and running rows are the same number, within the pool."""
        running = [e for e in self.accepted if e.row.status is RequestStatus.RUNNING]
        assert self.bench.pool.live == len(running) <= ROWS

    @invariant()
    def every_token_is_the_solo_runs(self) -> None:
        """Whatever shared the batch, what a caller has so far begins the text of a solo run."""
        for expected in self.accepted:
            row = expected.row
            _, target = expected.solo
            assert recorder(row).tokens == target[: len(recorder(row).tokens)]
            assert recorder(row).ends == row.status.final

    def teardown(self) -> None:
        """Let everything end, then account for every row."""
        self.bench.finish()
        for expected in self.accepted:
            self._check_end(expected)
        counted = {status: self.bench.ended(status) for status in RequestStatus}
        assert sum(counted.values()) == len(self.accepted)
        for status, count in counted.items():
            assert count == sum(expected.row.status is status for expected in self.accepted)
        assert self.bench.pool.free == ROWS

    def _check_end(self, expected: Expected) -> None:
        row = expected.row
        assert recorder(row).ends == 1
        if row.status is RequestStatus.CANCELLED:
            assert expected.cancelled
        elif row.status is RequestStatus.DEADLINE:
            assert row.deadline is not None
            assert self.bench.clock() >= row.deadline
        elif row.status is RequestStatus.FAILED:
            assert expected.failed
            assert row.correlation_id
        else:
            assert (row.status, row.output) == expected.solo


def _nothing(batch: Sequence[Source]) -> None:
    del batch


class CellHistories(EngineHistories):
    """The same with recurrent layers: their memory has to be right after the same histories."""

    shape = CELLS


TestEngineHistories = EngineHistories.TestCase
TestCellHistories = CellHistories.TestCase
