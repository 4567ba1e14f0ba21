"""What a bundle of each precision has to prove. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

# Share of the texts that may hang on a tie. A model that hardly prefers one token to another has not shown
# that a bundle computes what it does.
MAX_TIES = 0.1


@dataclass(frozen=True, slots=True)
class Requirement:
    """What is asked of a precision. Whatever it is, logits are finite and ids that must not be generated are masked.

    Attributes:
        logit_tolerance: Largest difference of a logit from PyTorch's in units of the logits' standard deviation, or
            of 1 where that is smaller; None if it need only be finite.
        same_texts: Texts are PyTorch's, but for ties.
        max_chrf_drop: Points of chrF that texts may lose against PyTorch's, where there are references.
        tie: Two tokens, or two hypotheses, may change places between two correct computations if their
            log-probabilities differ by less.
        needs_references: The loss of quality must be measured before a bundle may be written.
    """

    logit_tolerance: float | None
    same_texts: bool
    max_chrf_drop: float
    tie: float
    needs_references: bool


REQUIREMENTS = {
    "fp32": Requirement(1e-3, same_texts=True, max_chrf_drop=0.5, tie=1e-4, needs_references=False),
    "fp16": Requirement(5e-2, same_texts=False, max_chrf_drop=0.5, tie=2e-2, needs_references=False),
}
# Precisions that change the numbers on purpose, whatever they are called.
QUALITY = Requirement(None, same_texts=False, max_chrf_drop=0.5, tie=1e-3, needs_references=True)


def requirement(precision: str) -> Requirement:
    """Return what is asked of a precision."""
    return REQUIREMENTS.get(precision, QUALITY)
