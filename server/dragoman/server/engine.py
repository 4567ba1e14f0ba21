"""The loop: plan, encode, step, commit. Rows of any age and any kind of search share a decode step.

The engine runs on a thread of its own; ONNX Runtime releases the interpreter lock while it computes.
It knows nothing of gRPC, texts or tokenizers. A failing encode or step ends the requests it worked on and
nothing else.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence

from dragoman.model.vocab import SpecialIds
from dragoman.server.errors import NotServing, QueueFull
from dragoman.server.kv_cache import CachePool
from dragoman.server.metrics import Load, Metrics
from dragoman.server.request import Request, RequestStatus
from dragoman.server.runtime import Runtime
from dragoman.server.scheduler import Scheduler, StepPlan
from dragoman.server.search import Decision, Search

logger = logging.getLogger(__name__)

Event = Callable[[], None]
# How long an idle engine sleeps at most; a submitted or cancelled request wakes it at once.
_IDLE_WAIT_S = 1.0
_SHORTEST_RETRY_S, _LONGEST_RETRY_S = 0.1, 30.0


class Engine:
    """Owns the queue, the slots and the thread that works on them."""

    def __init__(
        self,
        runtime: Runtime,
        pool: CachePool,
        search: Search,
        scheduler: Scheduler,
        special: SpecialIds,
        metrics: Metrics,
        *,
        max_queued: int,
        deliver: Callable[[Sequence[Event]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; `start` begins.

        Args:
            runtime: Computes.
            pool: States and caches of the live rows.
            search: Hypotheses of the live rows.
            scheduler: Has the queue and decides who is next.
            special: Token ids with a meaning.
            metrics: Gets everything measured.
            max_queued: Most requests that may wait.
            deliver: Runs the events of one iteration, in order, on the listeners' thread.
            clock: Monotonic seconds.
        """
        self._runtime = runtime
        self._pool = pool
        self._search = search
        self._scheduler = scheduler
        self._special = special
        self._metrics = metrics
        self._max_queued = max_queued
        self._deliver = deliver
        self._clock = clock
        self._wake = threading.Condition()
        self._closing = False
        self._plan = StepPlan([], [])  # what is carried out
        self._pool_in_doubt = False  # work on the pool has begun and not ended
        self._events: list[Event] = []
        self._row_seconds = 0.1  # moving average of a text's time from encoder to end
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    @property
    def device(self) -> str:
        """What it computes on."""
        return self._runtime.device

    @property
    def load(self) -> Load:
        """How busy it is. Callable from any thread; the numbers may be of two iterations."""
        return Load(
            running=len(self._search.requests),
            waiting=len(self._scheduler),
            slots=self._pool.rows,
            slots_used=self._pool.live,
            cache_bytes=self._pool.nbytes,
        )

    @property
    def most_rows(self) -> int:
        """Slots of the pool: the most beams that a text can have."""
        return self._pool.rows

    @property
    def can_align(self) -> bool:
        """Whether the model can tell which source word a target word translates."""
        return self._runtime.can_align

    def fits(self, width: int, source_tokens: int, target_tokens: int) -> bool:
        """Whether a request of `width` slots could run if it were alone."""
        return self._pool.fits(width, source_tokens, target_tokens)

    @property
    def waiting_rows(self) -> int:
        """Slots that the queued requests will need."""
        return self._scheduler.waiting_rows

    def waiting_of(self, caller: str) -> int:
        """Return how many requests of a caller are queued. Callable from any thread."""
        return self._scheduler.waiting_of(caller)

    @property
    def retry_after(self) -> float:
        """Seconds until the present queue is gone, estimated from the time that texts took lately."""
        estimate = self._row_seconds * self._scheduler.waiting_rows / self._pool.rows
        return min(_LONGEST_RETRY_S, max(_SHORTEST_RETRY_S, estimate))

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests, all or none; each has to fit. Callable from any thread.

        Raises:
            QueueFull: The queue is full; nothing was queued.
            NotServing: The engine is closing.
        """
        with self._wake:
            if self._closing:
                raise NotServing("the server is shutting down; send the call to another one")
            free = self._max_queued - len(self._scheduler)
            if len(requests) > free:
                raise QueueFull.of(len(requests), free=free, limit=self._max_queued, retry_after_s=self.retry_after)
            self._scheduler.add(requests)
            self._wake.notify()

    def cancel(self, requests: Iterable[Request]) -> None:
        """Tell the engine that nobody waits for these requests any more. Callable from any thread."""
        with self._wake:
            for request in requests:
                request.cancelled = True
            self._scheduler.touch()
            self._wake.notify()

    def stop(self, requests: Iterable[Request]) -> None:
        """Tell the engine that these have enough tokens: what there is is the result. Callable from any thread."""
        with self._wake:
            for request in requests:
                request.stopped = True
            self._scheduler.touch()
            self._wake.notify()

    def close(self) -> None:
        """Finish every request that was accepted, then end the thread."""
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

    def iterate(self) -> None:
        """Do one iteration; public so that tests can drive the engine without its thread."""
        with self._wake:
            self._plan = plan = self._scheduler.plan(self._search.requests, self._pool, self._clock())
        self._drop(plan.drop)
        if plan.encode:
            self._guarded(self._encode, plan.encode)
        if self._search.live:
            self._guarded(self._step, self._search.requests)
        self._publish()

    def _wait_for_work(self) -> bool:
        with self._wake:
            while not len(self._scheduler) and not self._search.live:
                if self._closing:
                    return False
                self._wake.wait(_IDLE_WAIT_S)
        return True

    def _drop(self, requests: Sequence[tuple[Request, RequestStatus]]) -> None:
        running = [(request, status) for request, status in requests if request.status is RequestStatus.RUNNING]
        for request, status in running:
            if status is RequestStatus.STOPPED:
                self._search.conclude(request)
        self._leave([request for request, _ in running])
        for request, status in requests:
            self._end(request, status)
        if requests:
            self._pool.tighten()

    def _encode(self, requests: Sequence[Request]) -> None:
        start = self._clock()
        for request in requests:
            request.times.encode_start = start
            self._metrics.queue_duration.observe(start - request.times.submitted)
        encoded = self._runtime.encode([request.source for request in requests])
        lengths = [len(request.source) for request in requests]
        self._pool_in_doubt = True
        self._pool.admit(encoded, lengths, [request.width for request in requests], self._special.start)
        self._search.admit(requests)
        end = self._clock()
        for request, length in zip(requests, lengths, strict=True):
            request.times.encode_end = end
            request.status = RequestStatus.RUNNING
            self._metrics.source_tokens.observe(length)
        self._metrics.source_tokens_total.inc(sum(lengths))
        self._metrics.encode_duration.observe(end - start)
        self._metrics.encode_rows.observe(len(requests))
        self._pool_in_doubt = False

    def _step(self, _requests: Sequence[Request]) -> None:
        start = self._clock()
        self._pool_in_doubt = True
        self._pool.reserve()
        decision = self._search.decide(self._runtime.step(self._pool, self._search.wanted()))
        self._pool.append(decision.tokens)
        if decision.parents is not None:
            self._pool.reorder(decision.parents)
        now = self._clock()
        self._metrics.step_duration.observe(now - start)
        self._metrics.step_rows.observe(self._pool.live)
        self._commit(decision, now)
        self._pool_in_doubt = False

    def _commit(self, decision: Decision, now: float) -> None:
        """Hand out the step's tokens and let finished requests leave."""
        for request in decision.first:
            request.times.first_token = now
            self._metrics.time_to_first_token.observe(now - request.times.submitted)
        for request, token in decision.emitted:
            self._events.append(lambda request=request, token=token: request.listener.token(token))  # type: ignore[misc]  # mypy cannot infer lambda defaults
        self._metrics.target_tokens_total.inc(decision.new_tokens)
        for request, status in decision.ended:
            if status is RequestStatus.FAILED:
                for slot in self._search.slots_of(request):
                    self._pool.erase(slot)
        self._leave([request for request, _ in decision.ended])
        for request, status in decision.ended:
            if status is RequestStatus.FAILED:
                self._metrics.not_finite.inc()
                self._fail([request], "the graph returned what is no number, or chose a token that it masks")
                continue
            self._metrics.target_tokens.observe(len(request.output))
            if request.width > 1:  # of beams, only the best one is a text
                self._metrics.target_tokens_total.inc(len(request.output))
            self._row_seconds += 0.05 * (now - (request.times.encode_start or now) - self._row_seconds)
            self._end(request, status)
        if decision.ended:
            self._pool.tighten()

    def _leave(self, requests: Sequence[Request]) -> None:
        """Take requests out of their slots; the last rows move into the gaps."""
        slots = sorted((slot for request in requests for slot in self._search.slots_of(request)), reverse=True)
        for slot, last in zip(slots, self._pool.release_all(slots), strict=True):
            if self._search.release(slot) != last:
                raise AssertionError(f"pool and search disagree about the row that moves into slot {slot}")

    def _end(self, request: Request, status: RequestStatus) -> None:
        request.status = status
        request.times.ended = self._clock()
        self._metrics.request_left(status.value)
        self._events.append(lambda: request.listener.ended(request))

    def _guarded(self, work: Callable[[Sequence[Request]], None], requests: Sequence[Request]) -> None:
        """Run `work`; if it fails, its requests fail and the engine goes on."""
        requests = list(requests)
        try:
            work(requests)
        except Exception:
            failed = [request for request in requests if not request.status.final]
            if self._pool_in_doubt:
                # Whoever has a slot fails with them: their caches cannot be trusted.
                failed += [request for request in self._search.requests if request not in failed]
                self._pool.clear()
                self._search.clear()
                self._pool_in_doubt = False
            self._fail([request for request in failed if not request.status.final], "encode or decode step failed")

    def _fail(self, requests: Sequence[Request], reason: str) -> None:
        """End requests with an id that the log explains; inside an `except`, the log has the traceback."""
        correlation_id = uuid.uuid4().hex[:12]
        logger.error("%s correlation_id=%s texts=%d", reason, correlation_id, len(requests), exc_info=_in_flight())
        self._metrics.engine_failures.inc()
        for request in requests:
            request.correlation_id = correlation_id
            request.hypotheses = []
            self._end(request, RequestStatus.FAILED)

    def _give_up(self) -> None:
        with self._wake:
            self._closing = True
            left = [*self._search.requests, *self._plan.encode, *(request for request, _ in self._plan.drop)]
            left += self._scheduler.drain()
        self._fail([r for r in dict.fromkeys(left) if not r.status.final], "the engine stopped")
        self._publish()

    def _publish(self) -> None:
        events, self._events = self._events, []
        if events:
            self._deliver(events)


def _in_flight() -> bool:
    """Whether an exception is being handled."""
    return sys.exc_info()[0] is not None
