"""Learning-rate schedule as a pure function. Standard library only."""

from __future__ import annotations

import math


def inverse_square_root(step: int, *, peak: float, warmup_steps: int) -> float:
    """Rise linearly to `peak` at `warmup_steps`, then fall with 1 / sqrt(step).

    Equation 3 of the paper, with its factor d_model^-0.5 expressed through the peak.

    Args:
        step: Number of the update, from 1.
        peak: Highest learning rate.
        warmup_steps: Step at which it is reached.
    """
    return peak * min(step / warmup_steps, math.sqrt(warmup_steps / step))
