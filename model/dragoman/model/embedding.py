"""From token ids to vectors."""

from __future__ import annotations

import math

from torch import Tensor, nn

from dragoman.model.config import ModelConfig


class TokenEmbedding(nn.Module):
    """A learned vector per token, times sqrt(E) if so configured (paper, 3.4)."""

    def __init__(self, vocab_size: int, config: ModelConfig) -> None:
        """Create the matrix [V, E]."""
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, config.d_model)
        self.scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        # Unit variance behind the scale, on that of the position encoding.
        nn.init.normal_(self.tokens.weight, std=1.0 / math.sqrt(config.d_model))

    def forward(self, input_ids: Tensor) -> Tensor:
        """[B, T] int64 -> [B, T, E]."""
        embedded: Tensor = self.tokens(input_ids) * self.scale
        return embedded
