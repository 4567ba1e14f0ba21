"""Multi-head attention ("Attention Is All You Need", 3.2).

One implementation serves training (boolean masks), the oracle search and the exported decode step
(`ValidLengths` masks, keys and values from a cache): the three differ in where the keys come from
and in how the mask is written down, not in the arithmetic.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from dragoman.model import cache_ops
from dragoman.model.dot_product import scaled_dot_product_attention
from dragoman.model.masks import Mask, ValidLengths


class KeyValue(NamedTuple):
    """Projected keys and values of one attention layer, each [B, H, K, D]."""

    key: Tensor
    value: Tensor


class MultiHeadAttention(nn.Module):
    """Concat(head_1..head_h) W_O, with head_i = Attention(Q W_i, K W_i, V W_i) (3.2.2)."""

    def __init__(self, d_model: int, num_heads: int, dropout: float) -> None:
        """Create the four projections, each [E, E] with bias."""
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def project_key_value(self, states: Tensor) -> KeyValue:
        """Return keys and values [B, H, K, D] of `states` [B, K, E]."""
        return KeyValue(self._split(self.key(states)), self._split(self.value(states)))

    def forward(self, states: Tensor, keys_values: KeyValue, mask: Mask) -> Tensor:
        """Let `states` [B, Q, E] attend to `keys_values` [B, H, K, D]; returns [B, Q, E]."""
        query = self._split(self.query(states))
        if isinstance(mask, ValidLengths):
            heads = cache_ops.attend_valid(query, *keys_values, mask.lengths, mask.causal)
        else:
            heads = scaled_dot_product_attention(query, *keys_values, mask, self.dropout)
        merged: Tensor = self.output(heads.transpose(1, 2).flatten(2))  # [B, H, Q, D] -> [B, Q, E]
        return merged

    def _split(self, projected: Tensor) -> Tensor:
        """[B, K, E] -> [B, H, K, D]."""
        return torch.unflatten(projected, -1, (self.num_heads, -1)).transpose(1, 2)
