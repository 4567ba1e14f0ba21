"""May two correct computations find different texts here? A fault has large margins, rounding has small ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.model.beam import BeamRow, BeamSettings

Array = NDArray[Any]
# Log-probabilities [n, V] of what follows each of n targets, given without start and first tokens.
NextLogProbs = Callable[[Sequence[Sequence[int]]], Array]

# A search that hangs on one tie goes either way half of the time.
_TRIALS = 16


def margin(next_log_probs: NextLogProbs, expected: Sequence[int], found: Sequence[int]) -> float:
    """Return by how much the expected token is more probable than the other one where two texts part.

    Args:
        next_log_probs: Of the model that found `expected`.
        expected: Tokens of a text.
        found: Tokens of another one.

    Returns:
        Difference of log-probabilities, which is that of logits; negative where a beam search preferred the
        less probable token for the sake of what follows.
    """
    at = next((i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), None)
    if at is None:  # one of them is empty, or ended early without EOS
        return float("inf")
    log_probs = next_log_probs([expected[:at]])[0]
    return float(log_probs[expected[at]] - log_probs[found[at]])


def is_beam_tie(
    next_log_probs: NextLogProbs,
    settings: BeamSettings,
    found: Sequence[int],
    *,
    limit: int,
    eos: int,
    forced: int,
    noise: float,
) -> bool:
    """Whether rounding errors of size `noise` can make a beam search find another text.

    It is repeated with such errors. Comparing the scores of both texts would not do: a hypothesis that was
    dropped early for a tie may have become much better or worse than the others.

    Args:
        next_log_probs: Of the model that finds another text.
        settings: Of the search.
        found: Tokens of the text.
        limit: Most new tokens.
        eos: Id that ends a hypothesis.
        forced: Number of first tokens.
        noise: Largest error of a log-probability.
    """
    generator = np.random.default_rng(0)
    for _ in range(_TRIALS):
        row = BeamRow(settings, limit=limit, eos=eos, forced=forced)
        while not row.done:
            log_probs = next_log_probs([live.tokens for live in row.live])
            count = min(settings.candidates, log_probs.shape[-1])
            noisy = log_probs + generator.uniform(-noise, noise, log_probs.shape)
            ids = np.argpartition(-noisy, count - 1, axis=-1)[:, :count]
            row.advance(ids.tolist(), np.take_along_axis(noisy, ids, axis=-1).tolist())
        if row.hypotheses and row.hypotheses[0].tokens == list(found):
            return True
    return False
