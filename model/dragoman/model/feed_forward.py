"""The position-wise feed-forward layer (paper, 3.3) and its gated form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from dragoman.model.config import ModelConfig
from dragoman.model.dropout import Dropout

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu-tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}


class FeedForward(nn.Module):
    """activation(x W_1 + b_1) W_2 + b_2 (equation 2); gated: (activation(x W_1) * x V) W_2 (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        """Create the projections."""
        super().__init__()
        self.expand = nn.Linear(config.d_model, config.d_ff, bias=config.bias)
        self.gate = nn.Linear(config.d_model, config.d_ff, bias=config.bias) if config.gated else None
        self.contract = nn.Linear(config.d_ff, config.d_model, bias=config.bias)
        rate = config.dropout if config.feed_forward_dropout is None else config.feed_forward_dropout
        self.dropout = Dropout(rate)
        self.activation = _ACTIVATIONS[config.activation]

    def forward(self, states: Tensor) -> Tensor:
        """[B, T, E] -> [B, T, E]."""
        hidden = self.activation(self.expand(states))
        if self.gate is not None:
            hidden = hidden * self.gate(states)
        contracted: Tensor = self.contract(self.dropout(hidden))
        return contracted
