"""Encoder and decoder layers: sublayers, residual connections and norms (paper, 3.1 and 3.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from dragoman.model import cache_ops
from dragoman.model.attention import KeyValue, MultiHeadAttention
from dragoman.model.config import ModelConfig
from dragoman.model.masks import Mask


class Cache(NamedTuple):
    """Self-attention keys and values of earlier positions.

    Attributes:
        past: Buffers [B, H, T_max, D]; only the first `lengths` positions of a row are real.
        lengths: [B] int64.
    """

    past: KeyValue
    lengths: Tensor


class FeedForward(nn.Module):
    """max(0, x W_1 + b_1) W_2 + b_2 (equation 2)."""

    def __init__(self, config: ModelConfig) -> None:
        """Create the two projections."""
        super().__init__()
        self.expand = nn.Linear(config.d_model, config.d_ff)
        self.contract = nn.Linear(config.d_ff, config.d_model)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, states: Tensor) -> Tensor:
        """[B, T, E] -> [B, T, E]."""
        contracted: Tensor = self.contract(self.dropout(self.expand(states).relu()))
        return contracted


class Sublayer(nn.Module):
    """Residual connection and LayerNorm around a function.

    "post" computes LayerNorm(x + f(x)) as the paper does, "pre" computes x + f(LayerNorm(x)).
    """

    def __init__(self, config: ModelConfig) -> None:
        """Create the norm."""
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.pre = config.norm_position == "pre"

    def forward(self, states: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """[B, T, E] -> [B, T, E]."""
        result: Tensor
        if self.pre:
            result = states + self.dropout(function(self.norm(states)))
        else:
            result = self.norm(states + self.dropout(function(states)))
        return result


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        """Create the sublayers."""
        super().__init__()
        self.self_attention = MultiHeadAttention(config.d_model, config.num_heads, config.dropout)
        self.feed_forward = FeedForward(config)
        self.self_attention_sublayer = Sublayer(config)
        self.feed_forward_sublayer = Sublayer(config)

    def forward(self, states: Tensor, mask: Mask) -> Tensor:
        """[B, S, E] -> [B, S, E]; `mask` covers the source padding."""

        def attend(x: Tensor) -> Tensor:
            attended: Tensor = self.self_attention(x, self.self_attention.project_key_value(x), mask)
            return attended

        states = self.self_attention_sublayer(states, attend)
        result: Tensor = self.feed_forward_sublayer(states, self.feed_forward)
        return result


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention, feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        """Create the sublayers."""
        super().__init__()
        self.self_attention = MultiHeadAttention(config.d_model, config.num_heads, config.dropout)
        self.cross_attention = MultiHeadAttention(config.d_model, config.num_heads, config.dropout)
        self.feed_forward = FeedForward(config)
        self.self_attention_sublayer = Sublayer(config)
        self.cross_attention_sublayer = Sublayer(config)
        self.feed_forward_sublayer = Sublayer(config)

    def forward(
        self, states: Tensor, cross: KeyValue, self_mask: Mask, cross_mask: Mask, cache: Cache | None = None
    ) -> tuple[Tensor, KeyValue]:
        """Run the layer over all target positions, or over the newest ones with a cache.

        Args:
            states: [B, Q, E].
            cross: Keys and values of the encoder output, [B, H, S, D].
            self_mask: Causal mask; with a cache, valid lengths after the write.
            cross_mask: Covers the source padding.
            cache: None in a full pass; then keys and values of `states` alone are used.

        Returns:
            States [B, Q, E], and the self-attention keys and values (the updated cache, if any).
        """
        used: list[KeyValue] = []

        def attend_self(x: Tensor) -> Tensor:
            keys_values = self.self_attention.project_key_value(x)
            if cache is not None:
                keys_values = KeyValue(
                    cache_ops.cache_write(cache.past.key, keys_values.key, cache.lengths),
                    cache_ops.cache_write(cache.past.value, keys_values.value, cache.lengths),
                )
            used.append(keys_values)
            attended: Tensor = self.self_attention(x, keys_values, self_mask)
            return attended

        def attend_cross(x: Tensor) -> Tensor:
            attended: Tensor = self.cross_attention(x, cross, cross_mask)
            return attended

        states = self.self_attention_sublayer(states, attend_self)
        states = self.cross_attention_sublayer(states, attend_cross)
        result: Tensor = self.feed_forward_sublayer(states, self.feed_forward)
        return result, used[0]
