"""Time of the scheduler's plans, by what they have to do and how many requests wait.

    python tests/benchmarks/scheduler_cost.py
    python tests/benchmarks/scheduler_cost.py --waiting 2000 20000 --repeats 500

64 requests are running. Those that wait are of mixed lengths, classes and callers. Each line: median and 99th
percentile of a call, in microseconds.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence

from dragoman.server.budget import PoolSize
from dragoman.server.options import SearchOptions
from dragoman.server.request import Priority, Request, RequestStatus, Times
from dragoman.server.scheduler import Scheduler

SLOTS = 64
LONGEST = 512
ENCODE_TOKENS = 2048


class Silent:
    """A listener that wants nothing."""

    wants_tokens = False

    def token(self, token: int) -> None:
        """Ignore it."""

    def ended(self, request: Request) -> None:
        """Ignore it."""


def main() -> None:
    """Print one line per case and queue length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, nargs="+", default=[0, 200, 2_000])
    parser.add_argument("--repeats", type=int, default=2_000)
    arguments = parser.parse_args()
    gc.disable()
    print(f"{'waiting':>8} {'plan':42} {'median':>8} {'p99':>8}  microseconds")
    for waiting in arguments.waiting:
        for name, case in CASES.items():
            times = sorted(case(waiting, arguments.repeats))
            p99 = times[min(len(times) - 1, round(0.99 * len(times)))]
            print(f"{waiting:8} {name:42} {statistics.median(times) * 1e6:8.1f} {p99 * 1e6:8.1f}", flush=True)


class Bench:
    """A scheduler with a queue that is filled up again, and running requests that stay as they are."""

    def __init__(self, waiting: int, free: int, beams: Sequence[int] = (1,)) -> None:
        self._random = random.Random(1)
        self._waiting = waiting
        self._beams = beams
        self.now = 0.0
        self.room = PoolSize(SLOTS, SLOTS * LONGEST, SLOTS * LONGEST, 0, LONGEST, LONGEST)
        self.scheduler = Scheduler(encode_tokens=ENCODE_TOKENS)
        self.running = [self.request(beams=1) for _ in range(SLOTS - free)]
        for request in self.running:
            request.status = RequestStatus.RUNNING
        self.refill()

    def request(self, beams: int | None = None) -> Request:
        """Return a request of random size and origin."""
        rng = self._random
        length = min(LONGEST, 1 + int(rng.lognormvariate(2.9, 0.7)))
        return Request(
            range(length),
            SearchOptions(min(LONGEST, 2 * length + 16), beams=beams or rng.choice(self._beams)),
            Silent(),
            Times(self.now),
            deadline=1e6 + rng.random(),
            caller=f"caller {rng.randrange(100)}",
            priority=rng.choice(list(Priority)),
        )

    def refill(self) -> int:
        """Let as many arrive as have left; returns how many that are."""
        missing = self._waiting - len(self.scheduler)
        self.scheduler.add([self.request() for _ in range(missing)])
        return missing

    def timed_plan(self) -> float:
        """Return the seconds of a plan."""
        start = time.perf_counter()
        self.scheduler.plan(self.running, self.room, self.now)
        return time.perf_counter() - start


def nothing_is_free(waiting: int, repeats: int) -> list[float]:
    """Plan with a full pool."""
    bench = Bench(waiting, free=0)
    return [bench.timed_plan() for _ in range(repeats)]


def some_are_free(free: int) -> Callable[[int, int], list[float]]:
    """Plan with so many free slots, again and again."""

    def case(waiting: int, repeats: int) -> list[float]:
        bench = Bench(waiting, free)
        times = []
        for _ in range(repeats):
            bench.refill()
            bench.now += 0.01
            times.append(bench.timed_plan())
        return times

    return case


def wide_ones_wait(waiting: int, repeats: int) -> list[float]:
    """Plan with three free slots while only a few of those who wait fit into them."""
    times = []
    for _ in range(min(repeats, 100)):
        bench = Bench(waiting, free=3, beams=[4] * 15 + [1])
        times += [bench.timed_plan() for _ in range(3)]
    return times


def one_was_cancelled(waiting: int, repeats: int) -> list[float]:
    """Plan after `touch`, with a full pool."""
    bench = Bench(waiting, free=0)
    times = []
    for _ in range(min(repeats, 500)):
        bench.scheduler.touch()
        times.append(bench.timed_plan())
    return times


def one_arrives(waiting: int, repeats: int) -> list[float]:
    """Queue a request."""
    bench = Bench(waiting, free=0)
    arrivals: Sequence[Request] = [bench.request() for _ in range(repeats)]
    times = []
    for request in arrivals:
        start = time.perf_counter()
        bench.scheduler.add([request])
        times.append(time.perf_counter() - start)
    return times


CASES: dict[str, Callable[[int, int], list[float]]] = {
    "64 rows running, no slot free": nothing_is_free,
    "62 rows running, 2 slots free": some_are_free(2),
    "56 rows running, 8 slots free": some_are_free(8),
    "61 rows running, 3 slots free, most need 4": wide_ones_wait,
    "idle, 64 slots free": some_are_free(SLOTS),
    "64 rows running, after a cancel": one_was_cancelled,
    "(a request arrives)": one_arrives,
}


if __name__ == "__main__":
    main()
