"""The loop: plan, encode, step, commit. Rows of any age share a decode step.

The engine runs on a thread of its own; ONNX Runtime releases the interpreter lock while it computes.
It knows nothing of gRPC, texts or tokenizers. A failing encode or step ends the rows it worked on and
nothing else.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from dragoman.model.vocab import SpecialIds
from dragoman.server import scheduler, search
from dragoman.server.errors import NotServing, QueueFull
from dragoman.server.kv_cache import CachePool
from dragoman.server.metrics import Metrics
from dragoman.server.request import Row, RowStatus
from dragoman.server.runtime import Runtime
from dragoman.server.scheduler import StepPlan

logger = logging.getLogger(__name__)

Event = Callable[[], None]
# How long an idle engine sleeps at most; a submitted or cancelled row wakes it at once.
_IDLE_WAIT_S = 1.0
# Rows at the head of the queue that every iteration looks at; the rest only when one of them may have to go.
_WINDOW = 256
_SHORTEST_RETRY_S, _LONGEST_RETRY_S = 0.1, 30.0


class Engine:
    """Owns the queue, the slot pool and the thread that works on them."""

    def __init__(
        self,
        runtime: Runtime,
        pool: CachePool,
        special: SpecialIds,
        metrics: Metrics,
        *,
        encode_tokens: int,
        max_queued: int,
        deliver: Callable[[Sequence[Event]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; `start` begins.

        Args:
            runtime: Computes.
            pool: Slots for the live rows.
            special: Token ids with a meaning.
            metrics: Gets everything measured.
            encode_tokens: Token budget of an encode batch.
            max_queued: Most rows that may wait.
            deliver: Runs the events of one iteration, in order, on the listeners' thread.
            clock: Monotonic seconds.
        """
        self._runtime = runtime
        self._pool = pool
        self._special = special
        self._metrics = metrics
        self._encode_tokens = encode_tokens
        self._max_queued = max_queued
        self._deliver = deliver
        self._clock = clock
        self._rows: list[Row] = []  # by slot
        self._waiting: deque[Row] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._planned: list[Row] = []  # taken from the queue by the plan that is carried out
        self._sweep_at = math.inf  # when a waiting row may have to be dropped
        self._pool_in_doubt = False  # work on the pool has begun and not ended
        self._events: list[Event] = []
        self._row_seconds = 0.1  # moving average of a row's time from encoder to end
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        metrics.slots.set(pool.rows)
        metrics.cache_bytes.set(pool.nbytes)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    def submit(self, rows: Sequence[Row]) -> None:
        """Queue rows, all or none. Callable from any thread.

        Raises:
            QueueFull: They do not fit; nothing was queued.
            NotServing: The engine is closing.
        """
        with self._wake:
            if self._closing:
                raise NotServing("the server is shutting down; send the call to another one")
            queued = len(self._waiting)
            if queued + len(rows) > self._max_queued:
                raise QueueFull(
                    f"{queued} texts are waiting and the limit is {self._max_queued}, so {len(rows)} more do not fit; "
                    "try again later or send fewer texts per call",
                    self._retry_after(queued),
                )
            self._waiting.extend(rows)
            self._sweep_at = min((self._sweep_at, *(row.deadline for row in rows if row.deadline is not None)))
            self._metrics.waiting.set(len(self._waiting))
            self._wake.notify()

    def cancel(self, rows: Iterable[Row]) -> None:
        """Tell the engine that nobody waits for these rows any more. Callable from any thread."""
        with self._wake:
            for row in rows:
                row.cancelled = True
            self._sweep_at = -math.inf
            self._wake.notify()

    def close(self) -> None:
        """Finish every row that was accepted, then end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self.iterate()
        except Exception:
            # Nothing in an iteration is expected to get here. Whoever waits must not wait for ever, and
            # liveness fails from now on.
            self._give_up()

    def _give_up(self) -> None:
        with self._wake:
            self._closing = True
            rows = [*self._rows, *self._planned, *self._waiting]
            self._rows.clear()
            self._waiting.clear()
        left = {id(row): row for row in rows if not row.status.final}
        self._fail(list(left.values()), "the engine stopped", exc_info=True)
        self._publish()

    def iterate(self) -> None:
        """Do one iteration; public so that tests can drive the engine without its thread."""
        plan = self._plan()
        self._drop(plan.drop)
        if plan.encode:
            self._guarded(self._encode, plan.encode)
        if self._rows:
            self._guarded(self._step, list(self._rows))
        self._publish()

    def _wait_for_work(self) -> bool:
        with self._wake:
            while not self._waiting and not self._rows:
                if self._closing:
                    return False
                self._wake.wait(_IDLE_WAIT_S)
        return True

    def _plan(self) -> StepPlan:
        with self._wake:
            now = self._clock()
            sweep = now >= self._sweep_at
            window = len(self._waiting) if sweep else min(_WINDOW, len(self._waiting))
            looked_at = [self._waiting.popleft() for _ in range(window)]
            plan = scheduler.plan(
                looked_at, self._rows, free_slots=self._pool.free, encode_tokens=self._encode_tokens, now=now
            )
            self._planned = [*plan.encode, *(row for row, _ in plan.drop)]
            gone = {id(row) for row in self._planned}
            self._waiting.extendleft(row for row in reversed(looked_at) if id(row) not in gone)
            if sweep:
                deadlines = (row.deadline for row in self._waiting if row.deadline is not None)
                self._sweep_at = min(deadlines, default=math.inf)
        return plan

    def _drop(self, rows: Sequence[tuple[Row, RowStatus]]) -> None:
        for row, status in rows:
            if row.status is RowStatus.RUNNING:
                self._leave(row)
            self._end(row, status)
        if rows:
            self._pool.tighten()

    def _encode(self, rows: Sequence[Row]) -> None:
        start = self._clock()
        for row in rows:
            row.times.encode_start = start
            self._metrics.queue_duration.observe(start - row.times.submitted)
        cross = self._runtime.encode([row.source for row in rows])
        lengths = [len(row.source) for row in rows]
        self._pool_in_doubt = True
        limits = [row.max_new_tokens + len(row.first_target) for row in rows]
        self._pool.admit(cross, lengths, limits, self._special.start)
        end = self._clock()
        for row in rows:
            row.times.encode_end = end
            row.status = RowStatus.RUNNING
            self._rows.append(row)
            self._metrics.source_tokens.observe(len(row.source))
        self._metrics.source_tokens_total.inc(sum(lengths))
        self._metrics.encode_duration.observe(end - start)
        self._metrics.encode_rows.observe(len(rows))
        self._pool_in_doubt = False

    def _step(self, rows: Sequence[Row]) -> None:
        start = self._clock()
        self._pool_in_doubt = True
        self._pool.reserve()
        next_ids = self._runtime.step(self._pool)
        live = len(rows)
        forced = search.forced([row.first_target for row in rows], self._pool.cache_lengths[:live])
        generated = self._pool.cache_lengths[:live] + 1
        verdict = search.greedy(next_ids, generated, self._pool.max_new_tokens[:live], self._special, forced)
        self._pool.append(verdict.tokens)
        now = self._clock()
        self._metrics.step_duration.observe(now - start)
        self._metrics.step_rows.observe(live)
        self._commit(rows, verdict, now)
        self._pool_in_doubt = False

    def _commit(self, rows: Sequence[Row], verdict: search.Verdict, now: float) -> None:
        """Hand out the step's tokens and let finished rows leave."""
        generated = 0
        outcome = zip(rows, verdict.tokens.tolist(), verdict.is_text.tolist(), strict=True)
        for row, token, is_text in outcome:
            if row.times.first_token is None:
                row.times.first_token = now
                self._metrics.time_to_first_token.observe(now - row.times.submitted)
            if is_text:
                row.output.append(token)
                generated += 1
                if row.listener.wants_tokens:
                    self._events.append(lambda row=row, token=token: row.listener.token(token))  # type: ignore[misc]  # mypy cannot infer lambda defaults
        self._metrics.target_tokens_total.inc(generated)
        for slot in reversed(verdict.ended.nonzero()[0].tolist()):  # from the back: slots ahead stay valid
            row = rows[slot]
            if verdict.faulty[slot]:
                self._pool.erase(slot)
                self._leave(row)
                self._fail([row], f"the graph chose token {verdict.tokens[slot]}, as it does for logits that are NaN")
                continue
            self._leave(row)
            self._metrics.target_tokens.observe(len(row.output))
            self._row_seconds += 0.05 * (now - (row.times.encode_start or now) - self._row_seconds)
            self._end(row, RowStatus.EOS if verdict.eos[slot] else RowStatus.LENGTH)
        if verdict.ended.any():
            self._pool.tighten()

    def _leave(self, row: Row) -> None:
        """Take a row out of its slot; the last row moves into the gap."""
        slot = self._rows.index(row)
        last = self._pool.release(slot)
        self._rows[slot] = self._rows[last]
        self._rows.pop()

    def _end(self, row: Row, status: RowStatus) -> None:
        row.status = status
        row.times.ended = self._clock()
        self._metrics.row_ended(status.value)
        self._events.append(lambda: row.listener.ended(row))

    def _guarded(self, work: Callable[[Sequence[Row]], None], rows: Sequence[Row]) -> None:
        """Run `work`; if it fails, its rows fail and the engine goes on."""
        try:
            work(rows)
        except Exception:
            failed = [row for row in rows if not row.status.final]
            if self._pool_in_doubt:
                # Whoever has a slot fails with them: their caches cannot be trusted.
                failed += [row for row in self._rows if row not in failed and not row.status.final]
                self._pool.clear()
                self._rows.clear()
                self._pool_in_doubt = False
            self._fail(failed, "encode or decode step failed", exc_info=True)

    def _fail(self, rows: Sequence[Row], reason: str, *, exc_info: bool = False) -> None:
        """End rows with an id that the log explains."""
        correlation_id = uuid.uuid4().hex[:12]
        logger.error("%s correlation_id=%s rows=%d", reason, correlation_id, len(rows), exc_info=exc_info)
        self._metrics.engine_failures.inc()
        for row in rows:
            row.correlation_id = correlation_id
            self._end(row, RowStatus.FAILED)

    def _publish(self) -> None:
        self._metrics.running.set(len(self._rows))
        self._metrics.waiting.set(len(self._waiting))
        events, self._events = self._events, []
        if events:
            self._deliver(events)

    def _retry_after(self, queued: int) -> float:
        """Estimate when the present queue is gone, from the time rows took lately."""
        estimate = self._row_seconds * queued / self._pool.rows
        return min(_LONGEST_RETRY_S, max(_SHORTEST_RETRY_S, estimate))
