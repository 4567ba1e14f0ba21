"""Alternating runs: every side once per round, in changing order, and what may be said of the numbers.

A ratio compares two neighbours in time, so that a machine that becomes slower or faster during the benchmark
changes both sides of it; the median over the rounds is what counts. Spreads are half the distance of the quartiles.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# Workers of OpenMP go on spinning for up to 0.2 s after their last piece of work; the next side must not pay for it.
SETTLE_S = 0.25


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and half the distance of the quartiles."""

    median: float
    half_iqr: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise some values.

        Raises:
            ValueError: There are none.
        """
        if not values:
            raise ValueError("no values to summarise")
        if len(values) == 1:
            return cls(values[0], 0.0)
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, (high - low) / 2)


def ratios(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return one / other of each round that both have."""
    return [a / b for a, b in zip(one, other, strict=False)]


def alternate(
    runs: Mapping[str, Callable[[], float]], rounds: int, *, only: Mapping[str, int] | None = None
) -> dict[str, list[float]]:
    """Call every run once per round and collect what they return.

    Args:
        runs: By title; each measures itself and returns a number.
        rounds: How many.
        only: Slow runs that take part in this many rounds at most.

    Returns:
        The numbers by title, in the order of the rounds.
    """
    titles = list(runs)
    found: dict[str, list[float]] = {title: [] for title in titles}
    for number in range(rounds):
        turn = number % len(titles)
        for title in (*titles[turn:], *titles[:turn]):
            if only is None or number < only.get(title, rounds):
                time.sleep(SETTLE_S)
                found[title].append(runs[title]())
    return found


def repeated(
    work: Callable[[], float], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> Callable[[], float]:
    """Return a run that repeats `work` for about so many seconds and returns amount per second.

    Args:
        work: Does something once and returns how much it did.
        seconds: It stops at the first end of `work` behind this time.
        clock: Seconds that count.
    """

    def run() -> float:
        amount, start = 0.0, clock()
        while True:
            amount += work()
            passed = clock() - start
            if passed >= seconds:
                return amount / passed

    return run
