"""What the hypotheses of one text attend to: alignments that are asked for, and the coverage penalty."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman.server.options import SearchOptions
from dragoman.server.step import Floats, Int64s

_LEAST = 1e-30  # a source word that nothing attends to costs a lot, not everything


class Attention:
    """Attention of a text's hypotheses, in order of rank."""

    def __init__(self, options: SearchOptions, source_length: int) -> None:
        """Begin."""
        self._length = source_length
        self._keeps = options.with_alignment
        self._weight = options.coverage_penalty
        self._steps: list[Floats] = []
        self._parents: list[Int64s] = []
        self._covered = np.zeros((options.beams, source_length))

    def look(self, weights: Floats, *, free: bool) -> None:
        """Take a step's attention [beams, S] before the step's tokens are chosen.

        Args:
            weights: Per hypothesis.
            free: Whether the step chooses; forced tokens cover the source too, but are no part of the text.
        """
        own = weights[:, : self._length]
        self._covered += own
        if self._keeps and free:
            self._steps.append(np.array(own, np.float32))

    def follow(self, parents: Int64s) -> None:
        """Go on: hypothesis r continues the one that was `parents[r]`."""
        self._covered = self._covered[parents]
        if self._keeps:
            self._parents.append(parents.copy())

    def path(self, rank: int, tokens: int) -> list[Sequence[float]]:
        """Return the attention of the `tokens` first tokens of the hypothesis that now has this rank."""
        if not self._keeps:
            return []
        found: list[Sequence[float]] = []
        for step in range(len(self._steps) - 1, -1, -1):
            if step < len(self._parents):
                rank = int(self._parents[step][rank])
            found.append(self._steps[step][rank].tolist())
        return found[::-1][:tokens]

    def penalties(self) -> NDArray[np.float64]:
        """Return what is added to the score of each hypothesis: Wu et al. 2016, equation 14."""
        covered: NDArray[np.float64] = np.log(np.clip(self._covered, _LEAST, 1.0)).sum(axis=1)
        return covered * self._weight


def needs_attention(options: SearchOptions) -> bool:
    """Whether a text needs the decoder's attention: a penalty on a score that nobody sees or ranks by needs none."""
    ranked = options.beams > 1 or options.with_token_scores
    return options.with_alignment or (options.coverage_penalty > 0 and ranked)
