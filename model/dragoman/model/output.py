"""The projection onto the vocabulary: what is its own, while its matrix is often an embedding's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.model.config import ModelConfig


class Output(nn.Module):
    """Bias and scale of the logits, and the matrix if no embedding lends it."""

    def __init__(self, config: ModelConfig, *, own_weight: bool) -> None:
        """Create them.

        Args:
            config: Widths, bias and scale.
            own_weight: The matrix is not that of an embedding.
        """
        super().__init__()
        self.weight: nn.Parameter | None = None
        if own_weight:
            self.weight = nn.Parameter(torch.empty(config.vocab_size, config.d_model))
            nn.init.normal_(self.weight, std=config.d_model**-0.5)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.output_bias else None
        self.factor = config.d_model**-0.5 if config.scale_output else 1.0

    def scale(self, states: Tensor) -> Tensor:
        """Return the states as the matrix takes them."""
        return states if self.factor == 1.0 else states * self.factor

    def project(self, states: Tensor, weight: Tensor) -> Tensor:
        """Return logits [..., V] of states [..., E] with `weight` [V, E]."""
        logits = self.scale(states) @ weight.T
        return logits if self.bias is None else logits + self.bias
