"""The rows that need scores of the whole vocabulary: adjusted, normalised, and the best of them found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dragoman.server.search.adjust import Adjustments, Edits
from dragoman.server.search.best import best, log_normalizer
from dragoman.server.step import Floats, Int64s, StepOutputs


@dataclass(slots=True)
class Found:
    """What a step's logits say.

    Attributes:
        scores: [n, V] float32, adjusted logits until `restore`.
        ids: [n, count], the best, best first.
        values: [n, count], their adjusted logits; NaN in rows that have no best.
        normalizer: [n], what makes log-probabilities of them; None if nobody needs it.
    """

    scores: Floats
    ids: Int64s
    values: Floats
    normalizer: NDArray[np.float64] | None
    edits: Edits | None

    def restore(self) -> None:
        """Make the logits what they were."""
        if self.edits is not None:
            self.edits.undo()


class LogitRows:
    """Rows that need logits, as long as no row comes or goes.

    Attributes:
        rows: [n] int64, their slots, ascending.
        place: [live] int64, where a slot is among them.
    """

    def __init__(self, rows: Int64s, live: int, *, count: int, normalized: bool, adjustments: Adjustments) -> None:
        """Prepare.

        Args:
            rows: Their slots, ascending.
            live: Rows of a step.
            count: How many of the best any of them needs.
            normalized: Whether any needs log-probabilities.
            adjustments: Of these rows.
        """
        self.rows = rows
        self.place = np.zeros(live, np.int64)
        self.place[rows] = np.arange(len(rows))
        self._all = len(rows) == live
        self._count = count
        self._normalized = normalized
        self._adjustments = adjustments

    def read(self, outputs: StepOutputs) -> Found:
        """Adjust and look for the best."""
        given = outputs.logits
        if given is None:
            raise AssertionError("a step returned no logits although they were wanted")
        # A vocabulary times all rows is much to copy; adjusted in place, it is put back afterwards.
        in_place = self._all and given.dtype == np.float32 and given.flags.writeable
        logits = given if in_place else given[self.rows].astype(np.float32, copy=False)
        normalizer = None
        if self._normalized:
            normalizer = normalizer_of(outputs, self.rows, logits)
        edits = self._adjustments.apply(logits, normalizer)
        ids, values = best(logits, min(self._count, logits.shape[1]))
        return Found(logits, ids, values, normalizer, edits if in_place else None)


def normalizer_of(outputs: StepOutputs, rows: Int64s, logits: Floats) -> NDArray[np.float64]:
    """Return what makes log-probabilities of the logits of `rows`: the graph's, or one computed from them."""
    if outputs.log_normalizer is not None:
        return outputs.log_normalizer[rows].astype(np.float64)
    return log_normalizer(logits)
