"""Where a run stands, and how fast it goes."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """Where a run stands: everything besides weights that decides the next update.

    Attributes:
        step: Updates done.
        stage: Of the length curriculum.
        epoch: Pass over the data.
        chunk: Within the epoch.
        batch: Within the chunk.
        seconds: Time spent training.
        stage_seconds: Of these, in the current stage.
        best: Best validation score, higher is better.
        misses: Validations since then.
        measure: What `best` counts, see `Validation.measure_name`; empty in checkpoints of older versions.
    """

    step: int = 0
    stage: int = 0
    epoch: int = 0
    chunk: int = 0
    batch: int = 0
    seconds: float = 0.0
    stage_seconds: float = 0.0
    best: float = -math.inf
    misses: int = 0
    measure: str = ""

    def count_by(self, measure: str) -> str:
        """Begin to look for the best anew if validation measures something else than before.

        Args:
            measure: What it measures now.

        Returns:
            What it measured before if that was another thing, else an empty text.
        """
        before = self.measure
        if not before and math.isfinite(self.best):  # older versions compared a chrF, or a loss below zero
            kind = "chrF" if self.best >= 0 else "loss"
            before = measure if measure.startswith(kind) else kind
        differs = before != measure and (math.isfinite(self.best) or self.misses > 0)
        if differs:
            self.best, self.misses = -math.inf, 0
        self.measure = measure
        return before if differs else ""


class Meter:
    """Loss, gradient norm and speed since the last log entry."""

    def __init__(self) -> None:
        """Begin."""
        self.reset()

    def reset(self) -> None:
        """Begin to count anew."""
        self.tokens = self.updates = 0
        self.seconds = self._loss_sum = self._norm_sum = 0.0

    def add(self, loss: float, norm: float, tokens: int) -> None:
        """Count one update."""
        self.tokens += tokens
        self.updates += 1
        self._loss_sum += loss * tokens
        self._norm_sum += norm

    @property
    def loss(self) -> float:
        """Mean loss per target token, in nats."""
        return self._loss_sum / self.tokens if self.tokens else math.nan

    @property
    def rate(self) -> float:
        """Target tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def values(self) -> dict[str, float]:
        """Return what the log gets; nothing before the first update."""
        if not self.updates:
            return {}
        return {
            "train_loss": round(self.loss, 4),
            "gradient_norm": round(self._norm_sum / self.updates, 4),
            "target_tokens_per_second": round(self.rate),
        }

    def __str__(self) -> str:
        """Show both in the progress bar."""
        return f"loss {self.loss:.3f} {self.rate:.0f} tok/s"
