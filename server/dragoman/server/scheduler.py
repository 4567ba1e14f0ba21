"""Whom to drop, whom to encode: pure policy over values. No clock, no thread, no ONNX.

The queue is served in order of arrival: the oldest waiting row is in every encode batch. Rows of
about its length may join it, so that little is padding, and the batch stays within a token budget, so
that the rows that are decoding never wait long for a burst of new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dragoman.server.request import Row, RowStatus


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the engine does next.

    Attributes:
        drop: Rows to end without a result, with their final status.
        encode: Waiting rows to encode together; each gets a slot.
    """

    drop: list[tuple[Row, RowStatus]]
    encode: list[Row]


def plan(
    waiting: Sequence[Row], running: Iterable[Row], *, free_slots: int, encode_tokens: int, now: float
) -> StepPlan:
    """Decide the next step.

    Args:
        waiting: Queue in order of arrival.
        running: Rows that own a slot.
        free_slots: Slots nobody owns.
        encode_tokens: Upper limit of rows x longest source in an encode batch; one longer row still
            gets a batch of its own.
        now: Monotonic seconds.
    """
    drop: list[tuple[Row, RowStatus]] = []
    for row in (*running, *waiting):
        reason = _reason_to_drop(row, now)
        if reason is not None:
            drop.append((row, reason))
    gone = {id(row) for row, _ in drop}
    freed = sum(row.status is RowStatus.RUNNING for row, _ in drop)
    candidates = [row for row in waiting if id(row) not in gone]
    return StepPlan(drop, _encode_batch(candidates, free_slots + freed, encode_tokens))


def bucket(length: int, smallest: int = 16) -> int:
    """Return the smallest power of two that holds `length`, at least `smallest`."""
    return max(smallest, 1 << (length - 1).bit_length())


def _encode_batch(candidates: Sequence[Row], free_slots: int, encode_tokens: int) -> list[Row]:
    if not candidates or not free_slots:
        return []
    size = bucket(len(candidates[0].source))
    batch: list[Row] = []
    longest = 0
    for row in candidates:
        grown = max(longest, len(row.source))
        if bucket(len(row.source)) != size or (batch and (len(batch) + 1) * grown > encode_tokens):
            continue
        batch.append(row)
        longest = grown
        if len(batch) == free_slots:
            break
    return batch


def _reason_to_drop(row: Row, now: float) -> RowStatus | None:
    if row.deadline is not None and now >= row.deadline:
        return RowStatus.DEADLINE
    if row.cancelled:
        return RowStatus.CANCELLED
    return None
