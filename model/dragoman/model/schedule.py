"""Learning-rate schedules as pure functions. Standard library only.

Each rises linearly to the peak during warm-up. The first two never end; the others fall to zero at
the end of the run, which gives the better model where the length of the run is known.
"""

from __future__ import annotations

import math


def learning_rate(schedule: str, step: int, *, warmup_steps: int, done: float, d_model: int) -> float:
    """Return the rate of one update as a factor of the configured peak.

    Args:
        schedule: Name of `TrainConfig.schedule`.
        step: Number of the update, from 1.
        warmup_steps: Step at which the peak is reached.
        done: Share of the run that lies behind, in [0, 1].
        d_model: E, for "noam".

    Raises:
        ValueError: No such schedule.
    """
    warm = min(1.0, step / warmup_steps)
    left = 1.0 - min(1.0, done)
    match schedule:
        case "inverse_square_root":
            return min(warm, math.sqrt(warmup_steps / step))
        case "noam":  # equation 3 of the paper; the configured rate is a factor before it, not its peak
            return min(1.0 / math.sqrt(step), step / math.sqrt(warmup_steps**3)) / math.sqrt(d_model)
        case "cosine":
            return warm * 0.5 * (1.0 - math.cos(math.pi * left))
        case "linear":
            return warm * left
        case "constant":
            return warm
    raise ValueError(f"no schedule is called {schedule!r}")
