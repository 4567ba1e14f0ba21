"""Dropout that is cheap on the CPU.

torch draws one number of a Mersenne Twister per element, on one thread: a fifth of a training step
of the default model. Here eight elements share one 64-bit draw. The price is a probability in
steps of 1/256; the scale is that of the probability used, so the expectation stays exact.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_LEVELS = 256


class Dropout(nn.Module):
    """Zero a share of the elements in training and scale the others up; nothing in evaluation."""

    def __init__(self, probability: float) -> None:
        """Take the share of zeroed elements, in [0, 1)."""
        super().__init__()
        self.probability = probability
        self.threshold = min(max(round(probability * _LEVELS), 1), _LEVELS - 1)

    def forward(self, states: Tensor) -> Tensor:
        """Return a tensor of the same shape and dtype."""
        if not self.training or not self.probability:
            return states
        if states.device.type != "cpu" or torch.compiler.is_compiling():  # a compiler fuses torch's own
            return functional.dropout(states, self.probability)
        count = states.numel()
        words = torch.empty(-(-count // 8), dtype=torch.int64).random_(-(2**63), None)
        keep = words.view(torch.uint8)[:count].view(states.shape) >= self.threshold
        return states * keep * (_LEVELS / (_LEVELS - self.threshold))

    def extra_repr(self) -> str:
        """Show the probability in the model's printed form."""
        return f"{self.probability}"
