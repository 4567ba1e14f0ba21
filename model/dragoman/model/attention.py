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
from dragoman.model.config import ModelConfig
from dragoman.model.dot_product import attention_weights, scaled_dot_product_attention
from dragoman.model.dropout import Dropout
from dragoman.model.masks import Mask, ValidLengths, valid_mask
from dragoman.model.positions import rotate


class KeyValue(NamedTuple):
    """Projected keys and values of one attention layer, each [B, H_kv, K, D]."""

    key: Tensor
    value: Tensor


class MultiHeadAttention(nn.Module):
    """Concat(head_1..head_h) W_O, with head_i = Attention(Q W_i, K W_i, V W_i) (3.2.2).

    With fewer heads of keys and values than of queries, a group of queries shares one (GQA, Ainslie
    et al. 2023).
    """

    def __init__(self, config: ModelConfig, *, rotary: bool = False) -> None:
        """Create the four projections.

        Args:
            config: Widths, heads, bias, scale and dropout.
            rotary: Turn queries and keys by their position; for self-attention only.
        """
        super().__init__()
        self.head_dim = config.head_dim
        self.rotary = rotary
        width, narrow = config.num_heads * config.head_dim, config.key_value_heads * config.head_dim
        self.query = nn.Linear(config.d_model, width, bias=config.bias)
        self.key = nn.Linear(config.d_model, narrow, bias=config.bias)
        self.value = nn.Linear(config.d_model, narrow, bias=config.bias)
        self.output = nn.Linear(width, config.d_model, bias=config.bias)
        self.dropout = Dropout(config.dropout if config.attention_dropout is None else config.attention_dropout)
        self.scale = config.head_dim**-0.5 if config.scale_attention else 1.0

    def project_key_value(self, states: Tensor, positions: Tensor | None = None) -> KeyValue:
        """Return keys and values [B, H_kv, K, D] of `states` [B, K, E] at `positions` [K] or [B, K]."""
        key, value = self._split(self.key(states)), self._split(self.value(states))
        return KeyValue(self._turn(key, positions), value)

    def forward(
        self,
        states: Tensor,
        keys_values: KeyValue,
        mask: Mask,
        *,
        positions: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Let `states` [B, Q, E] attend to `keys_values` [B, H_kv, K, D].

        Args:
            states: [B, Q, E].
            keys_values: What `project_key_value` returned.
            mask: Which keys each query sees.
            positions: [Q] or [B, Q], of the queries; needed with rotary positions.
            bias: Added to the scores, broadcasts to [B, H, Q, K].

        Returns:
            [B, Q, E].
        """
        query = self._turn(self._split(self.query(states)), positions)
        if isinstance(mask, ValidLengths):
            heads = cache_ops.attend_valid(query, *keys_values, mask.lengths, mask.causal, bias, self.scale)
        else:
            heads, _ = scaled_dot_product_attention(
                query, *keys_values, mask, self.dropout, bias=bias, scale=self.scale
            )
        merged: Tensor = self.output(heads.transpose(1, 2).flatten(2))  # [B, H, Q, D] -> [B, Q, E]
        return merged

    def weights(
        self,
        states: Tensor,
        keys_values: KeyValue,
        mask: Mask,
        *,
        positions: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Return the attention weights [B, H, Q, K] of the same arguments, for pictures and alignments."""
        query = self._turn(self._split(self.query(states)), positions)
        if isinstance(mask, ValidLengths):
            mask = valid_mask(mask, query.size(2), keys_values.key.size(2))
        return attention_weights(query, keys_values.key, mask, bias=bias, scale=self.scale)

    def _turn(self, heads: Tensor, positions: Tensor | None) -> Tensor:
        if not self.rotary:
            return heads
        if positions is None:
            positions = torch.arange(heads.size(2), device=heads.device)
        return rotate(heads, positions)

    def _split(self, projected: Tensor) -> Tensor:
        """[B, K, H * D] -> [B, H, K, D]."""
        return torch.unflatten(projected, -1, (-1, self.head_dim)).transpose(1, 2)
