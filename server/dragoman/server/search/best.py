"""The best few of many scores, of many rows at once.

A partition of a whole vocabulary per row is slow. The ids are dealt out to blocks like cards, so that the maxima of all
blocks are a few maxima of long vectors; the m best ids are in the m blocks with the best maxima.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.server.step import Floats, Int64s

_SMALL = 1024  # ids; below, blocks do not pay
_BLOCK_SIZES = (16, 64)


def best(scores: Floats, count: int) -> tuple[Int64s, Floats]:
    """Find the best ids of each row, best first, of equal ones the smallest first.

    Args:
        scores: [n, V] float32. A row with NaN or +inf has no best ids.
        count: How many, at most V.

    Returns:
        ids [n, count] and their scores [n, count]; NaN in rows that have none.
    """
    if count == 1:
        ids = scores.argmax(axis=1)[:, None]
        values = np.take_along_axis(scores, ids, axis=1)
        return ids, np.where(values < np.inf, values, np.float32(np.nan))
    rows, size = scores.shape
    unclear = np.zeros(rows, np.bool_)
    if count == size:
        most = scores.max(axis=1)
        unclear[:] = True
        ids, values = np.zeros((rows, size), np.int64), np.empty((rows, size), np.float32)
    else:
        if size < _SMALL:
            pool, inside, most = np.broadcast_to(np.arange(size), (rows, size)), scores, scores.max(axis=1)
        else:
            pool, inside, most = _pool(scores, count, unclear)
        chosen = _largest(inside, count, unclear)
        ids, values = np.take_along_axis(pool, chosen, axis=1), np.take_along_axis(inside, chosen, axis=1)
        order = np.lexsort((ids, -values))
        ids, values = np.take_along_axis(ids, order, axis=1), np.take_along_axis(values, order, axis=1)
    fine = most < np.inf
    for row in (unclear & fine).nonzero()[0].tolist():
        ids[row] = _in_order(scores[row])[:count]
        values[row] = scores[row, ids[row]]
    values[~fine] = np.nan
    return ids, values


def log_normalizer(logits: Floats) -> NDArray[np.float64]:
    """Return the log of the sum of exp(logit) of each row [n, V], as float64 [n]."""
    most = logits.max(axis=1)
    total = np.exp(logits - most[:, None]).sum(axis=1, dtype=np.float64)
    normalizer: NDArray[np.float64] = most + np.log(total)
    return normalizer


def _pool(scores: Floats, count: int, unclear: NDArray[np.bool_]) -> tuple[Int64s, Floats, Floats]:
    """Return ids and scores [n, P] among which the `count` best are, and the largest score of each row."""
    rows, size = scores.shape
    height = int(np.clip((size / count) ** 0.5, *_BLOCK_SIZES))
    width = size // height
    dealt = scores[:, : height * width].reshape(rows, height, width)
    maxima = dealt.max(axis=1)
    block = _largest(maxima, min(count, width), unclear)
    pool = (block[:, None, :] + np.arange(height)[:, None] * width).reshape(rows, -1)
    inside = np.take_along_axis(scores, pool, axis=1)
    rest = scores[:, height * width :]
    rest_ids = np.broadcast_to(np.arange(height * width, size), rest.shape)
    most = np.maximum(maxima.max(axis=1), rest.max(axis=1, initial=-np.inf))
    return np.concatenate((pool, rest_ids), axis=1), np.concatenate((inside, rest), axis=1), most


def _largest(values: NDArray[Any], count: int, unclear: NDArray[np.bool_]) -> Int64s:
    """Return where the `count` largest of each row are, in any order; of equal ones any, which is marked `unclear`."""
    size = values.shape[1]
    found = np.argpartition(values, size - count, axis=1)[:, size - count :]
    least = np.take_along_axis(values, found[:, :1], axis=1)  # where the partition was made
    unclear |= np.count_nonzero(values >= least, axis=1) != count
    return found


def _in_order(scores: Floats) -> Int64s:
    """Return all ids of a row [V], best first, of equal ones the smallest first."""
    # Floats, sign flipped, and ids as one integer: sorting those is several times as fast as a stable argsort.
    bits = (scores + np.float32(0)).view(np.uint32)  # -0 becomes 0
    keys = np.where(bits >> np.uint32(31), bits, ~bits & np.uint32(0x7FFFFFFF)).astype(np.uint64) << np.uint64(32)
    keys |= np.arange(len(scores), dtype=np.uint64)
    keys.sort()
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
