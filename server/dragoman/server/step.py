"""What a decode step returns, and what can be asked of it: the contract of runtime and search."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]


class Wanted(enum.Flag):
    """What a step has to return besides the best ids."""

    NOTHING = 0
    CANDIDATES = enum.auto()
    LOGITS = enum.auto()
    ALIGNMENT = enum.auto()


@dataclass(slots=True)
class StepOutputs:
    """Per live row, in slot order; valid until the next step. None where it was not wanted.

    Attributes:
        next_ids: [n] int64, the best id; ids that must not be generated are masked.
        candidate_ids: [n, K] int64, the best ids, best first. With CANDIDATES.
        candidate_scores: [n, K] float32, their log-probabilities. With CANDIDATES.
        log_normalizer: [n] float32, log of the sum of exp(logit) over the whole vocabulary, masked ids included.
            With CANDIDATES.
        logits: [n, V] float32; those of masked ids are -inf. With LOGITS, and on the CPU always. The search may change
            them while it decides, and puts them back.
        alignment: [n, S] float32, attention to the source; 0 behind a row's source. With ALIGNMENT.
    """

    next_ids: Int64s
    candidate_ids: Int64s | None = None
    candidate_scores: Floats | None = None
    log_normalizer: Floats | None = None
    logits: NDArray[Any] | None = None
    alignment: Floats | None = None
