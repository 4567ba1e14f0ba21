"""May two correct computations find different texts here? A fault has large margins, rounding has small ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# Log-probabilities [V] of what follows a target, which is given without start and first tokens.
NextLogProbs = Callable[[Sequence[int]], Array]
# Changes the log-probabilities that a beam search sees.
Disturb = Callable[[Array], Array]
# Repeats a beam search for one source so many times, each with errors of its own; returns the texts.
Repeat = Callable[[int, Disturb], list[list[int]]]

# A search that hangs on one tie goes either way half of the time.
_TRIALS = 16
_AT_ONCE = 4


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
    log_probs = next_log_probs(expected[:at])
    return float(log_probs[expected[at]] - log_probs[found[at]])


def is_beam_tie(repeat: Repeat, found: Sequence[int], *, noise: float) -> bool:
    """Whether rounding errors of size `noise` can make a beam search find another text.

    It is repeated with such errors. Comparing the scores of both texts would not do: a hypothesis that was
    dropped early for a tie may have become much better or worse than the others.

    Args:
        repeat: The search, which finds another text without errors.
        found: Tokens of the text.
        noise: Largest error of a log-probability.
    """
    generator = np.random.default_rng(0)

    def disturb(log_probs: Array) -> Array:
        disturbed: Array = log_probs + generator.uniform(-noise, noise, log_probs.shape)
        return disturbed

    return any(list(found) in repeat(_AT_ONCE, disturb) for _ in range(_TRIALS // _AT_ONCE))
