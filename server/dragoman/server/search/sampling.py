"""Draw tokens: temperature, then top-k, then top-p, as Hugging Face's warpers do; reproducible whatever the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.server.search.best import best
from dragoman.server.step import Floats, Int64s

LEAST_TEMPERATURE = 1e-30  # colder, all weight is on the best token anyway, and numbers overflow
LISTED = 256  # a draw from all ids mostly falls among so many best ones; sorting them all is slow
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seeds: Int64s, positions: Int64s) -> NDArray[np.float64]:
    """Return a number in [0, 1) that depends on seed and position alone.

    A counter goes through the finaliser of SplitMix64 (Steele et al. 2014, "Fast splittable pseudorandom number
    generators", figure 15), so there is no state to keep per row.
    """
    counter = _mixed(seeds.astype(np.uint64)) + _GOLDEN * (positions.astype(np.uint64) + np.uint64(1))
    return (_mixed(counter) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def draw(
    scores: Floats,
    numbers: NDArray[np.float64],
    temperature: NDArray[np.float64],
    top_k: Int64s,
    top_p: NDArray[np.float64],
) -> Int64s:
    """Draw from the best tokens by the inverse of their cumulative distribution.

    Args:
        scores: [n, C], best first: log-probabilities or logits. Where the first is no number, so is the result.
        numbers: [n] in [0, 1).
        temperature: [n], more than 0.
        top_k: [n], 1 to C.
        top_p: [n], more than 0.

    Returns:
        [n], which of the C tokens.
    """
    weights = _weights(scores, scores[:, :1], temperature[:, None])
    weights[np.arange(scores.shape[1]) >= top_k[:, None]] = 0
    sums = weights.cumsum(axis=1)
    # A token stays if the better ones together have less than top_p.
    stay = np.count_nonzero(sums - weights < top_p[:, None] * sums[:, -1:], axis=1)
    last = np.maximum(stay, 1) - 1
    mass = numbers * sums[np.arange(len(sums)), last]
    which: Int64s = np.minimum(np.count_nonzero(sums <= mass[:, None], axis=1), last)
    return which


def draw_from_all(
    scores: Floats,
    listed: tuple[Int64s, Floats],
    number: float,
    temperature: float,
    top_k: int,
    top_p: float,
) -> int:
    """Draw a token from all of a row, or from more than are listed.

    Args:
        scores: [V], logits.
        listed: The `LISTED` best ids and their scores, best first.
        number: In [0, 1).
        temperature: More than 0.
        top_k: From how many; 0 means all.
        top_p: More than 0.
    """
    count = min(top_k or len(scores), len(scores))
    if count == len(scores):
        ids, values = listed
        # Of so many, 32 bits each are enough.
        total = np.exp((scores - values[0]) / np.float32(temperature)).sum(dtype=np.float64)
        sums = _weights(values, values[0], temperature).cumsum()
        last = int(np.searchsorted(sums, top_p * total)) if top_p < 1 else len(sums)
        mass = sums[last] if last < len(sums) else total
        found = int(np.searchsorted(sums, number * mass, side="right"))
        if found < len(sums) and (top_p == 1 or last < len(sums)):
            return int(ids[found])
    every, sorted_scores = best(scores[None], count)
    found = draw(
        sorted_scores, np.array([number]), np.array([temperature]), np.array([count]), np.array([top_p])
    ).item()
    return int(every[0, found])


def _weights(scores: NDArray[Any], most: Any, temperature: Any) -> NDArray[np.float64]:
    """Return probabilities up to a factor; the largest is 1, so that nothing overflows."""
    weights: NDArray[np.float64] = np.exp((scores.astype(np.float64) - most) / temperature)
    return weights
