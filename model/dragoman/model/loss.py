"""Label-smoothed cross entropy (paper, 5.4)."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy


def label_smoothed_loss(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return the mean over tokens, in nats.

    Args:
        logits: [N, V] float.
        labels: [N] int64, padding already removed.
        smoothing: Mass spread evenly over all V classes.
    """
    return cross_entropy(logits, labels, label_smoothing=smoothing)
