"""Encoder and decoder layers: sublayers, residual connections and norms (paper, 3.1 and 3.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from dragoman.model import cache_ops
from dragoman.model.attention import KeyValue, MultiHeadAttention
from dragoman.model.config import ModelConfig
from dragoman.model.dropout import Dropout
from dragoman.model.feed_forward import FeedForward
from dragoman.model.masks import Mask
from dragoman.model.norms import make_norm
from dragoman.model.ssru import SSRU


class Cell(NamedTuple):
    """State of a recurrent layer.

    Attributes:
        cell: [B, E].
    """

    cell: Tensor


LayerState = KeyValue | Cell
"""What a decoder layer remembers of earlier positions."""


class Where(NamedTuple):
    """Which positions a stack looks at, and from where: the same in all of its layers.

    Attributes:
        mask: Which keys each query sees in self-attention.
        positions: [Q] or [B, Q], of the new tokens.
        bias: Of relative positions, broadcasts to [B, H, Q, K]; None for other kinds.
        cache_lengths: [B] int64, positions that are in the state already; None in a full pass.
    """

    mask: Mask
    positions: Tensor
    bias: Tensor | None = None
    cache_lengths: Tensor | None = None


class Sublayer(nn.Module):
    """Residual connection and norm around a function.

    "post" computes Norm(x + f(x)) as the paper does, "pre" computes x + f(Norm(x)).
    """

    def __init__(self, config: ModelConfig) -> None:
        """Create the norm."""
        super().__init__()
        self.norm = make_norm(config)
        self.dropout = Dropout(config.dropout)
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
        self.self_attention = MultiHeadAttention(config, rotary=config.positions == "rotary")
        self.feed_forward = FeedForward(config)
        self.self_attention_sublayer = Sublayer(config)
        self.feed_forward_sublayer = Sublayer(config)

    def forward(self, states: Tensor, where: Where) -> Tensor:
        """[B, S, E] -> [B, S, E]; `where.mask` covers the source padding."""

        def attend(x: Tensor) -> Tensor:
            keys_values = self.self_attention.project_key_value(x, where.positions)
            attended: Tensor = self.self_attention(
                x, keys_values, where.mask, positions=where.positions, bias=where.bias
            )
            return attended

        states = self.self_attention_sublayer(states, attend)
        result: Tensor = self.feed_forward_sublayer(states, self.feed_forward)
        return result


class DecoderLayer(nn.Module):
    """Masked self-attention or a recurrent cell, cross-attention if there is a source, feed-forward."""

    def __init__(self, config: ModelConfig, *, cross: bool) -> None:
        """Create the sublayers.

        Args:
            config: Kind and widths.
            cross: Attend to a source.
        """
        super().__init__()
        self.ssru = SSRU(config) if config.decoder_layer == "ssru" else None
        if self.ssru is None:
            self.self_attention = MultiHeadAttention(config, rotary=config.positions == "rotary")
        self.self_attention_sublayer = Sublayer(config)
        if cross:
            self.cross_attention = MultiHeadAttention(config)
            self.cross_attention_sublayer = Sublayer(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_sublayer = Sublayer(config)

    def forward(
        self,
        states: Tensor,
        where: Where,
        cross: KeyValue | None = None,
        cross_mask: Mask | None = None,
        past: LayerState | None = None,
    ) -> tuple[Tensor, LayerState]:
        """Run the layer over all target positions, or over the newest ones with a state.

        Args:
            states: [B, Q, E].
            where: Positions and self-attention mask; with `past`, valid lengths after the write.
            cross: Keys and values of the encoder output, [B, H_kv, S, D]; None without a source.
            cross_mask: Covers the source padding.
            past: None in a full pass. Attention: buffers [B, H_kv, T_max, D], of which the first
                `where.cache_lengths` positions of a row are real. Recurrent: [B, E].

        Returns:
            States [B, Q, E], and the state behind the last position.
        """
        after: list[LayerState] = []

        def mix(x: Tensor) -> Tensor:
            mixed, state = self._mix_positions(x, where, past)
            after.append(state)
            return mixed

        def attend_cross(x: Tensor) -> Tensor:
            attended: Tensor = self.cross_attention(x, cross, cross_mask)
            return attended

        states = self.self_attention_sublayer(states, mix)
        if cross is not None:
            states = self.cross_attention_sublayer(states, attend_cross)
        result: Tensor = self.feed_forward_sublayer(states, self.feed_forward)
        return result, after[0]

    def _mix_positions(self, x: Tensor, where: Where, past: LayerState | None) -> tuple[Tensor, LayerState]:
        if self.ssru is not None:
            hidden, cell = self.ssru(x, past.cell if isinstance(past, Cell) else None)
            return hidden, Cell(cell)
        keys_values = self.self_attention.project_key_value(x, where.positions)
        if isinstance(past, KeyValue):
            keys_values = KeyValue(
                cache_ops.cache_write(past.key, keys_values.key, where.cache_lengths),
                cache_ops.cache_write(past.value, keys_values.value, where.cache_lengths),
            )
        attended = self.self_attention(x, keys_values, where.mask, positions=where.positions, bias=where.bias)
        return attended, keys_values
