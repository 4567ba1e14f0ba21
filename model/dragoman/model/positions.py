"""How a model knows the order of its tokens: four ways, and none.

Sinusoidal and learned positions are added to the embedded tokens (`InputPositions`); rotary ones
turn queries and keys (`rotate`); relative ones are a bias on attention scores (`RelativeBias`).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from dragoman.model.config import ModelConfig

Layout = Literal["sinusoidal", "sinusoidal-half", "sinusoidal-half-paper"]


def sinusoidal_positions(size: int, d_model: int, layout: Layout = "sinusoidal", first: int = 0) -> Tensor:
    """Return the table [size, d_model] float32 of the positions from `first` on (paper, 3.5).

    Interleaved, as in the paper: PE(pos, 2i) = sin(pos / 10000^(2i / E)), PE(pos, 2i + 1) = cos of the
    same angle. "sinusoidal-half-paper" has the same columns in another order, sin(pos / 10000^(2i / E)) in
    column i and the cosine in column E/2 + i. "sinusoidal-half", of tensor2tensor, Marian and fairseq, has that
    order and 10000^(i / (E/2 - 1)).
    """
    pairs = d_model // 2
    exponents = torch.arange(pairs, dtype=torch.float64) / (max(pairs - 1, 1) if layout == "sinusoidal-half" else pairs)
    # In double precision: the 1000th position would else be wrong in the fifth digit.
    angles = torch.arange(first, first + size)[:, None] * torch.exp(exponents * -math.log(10000.0))  # [size, E / 2]
    sine, cosine = angles.sin().float(), angles.cos().float()
    if layout == "sinusoidal":
        return torch.stack((sine, cosine), dim=-1).flatten(1)
    return torch.cat((sine, cosine), dim=1)


class InputPositions(nn.Module):
    """A vector per position, added to the embedded tokens; nothing for the other kinds."""

    table: Tensor

    def __init__(self, config: ModelConfig, size: int) -> None:
        """Create the table [size, E]: a formula or a weight."""
        super().__init__()
        self.kind = config.positions
        if self.kind == "learned":
            self.learned = nn.Embedding(size, config.d_model)
        elif self.kind in ("sinusoidal", "sinusoidal-half", "sinusoidal-half-paper"):
            table = sinusoidal_positions(size, config.d_model, self.kind, config.first_position)
            # Not persistent: a formula, so it has no place in a checkpoint.
            self.register_buffer("table", table, persistent=False)

    def forward(self, states: Tensor, offsets: Tensor | None = None) -> Tensor:
        """Add the positions to [B, T, E]; `offsets` [B] int64 is the position of each row's first token."""
        if self.kind in ("rotary", "relative", "none"):
            return states
        positions = token_positions(states.size(1), offsets, states.device)
        table = self.learned.weight if self.kind == "learned" else self.table
        return states + table[positions]


def token_positions(count: int, offsets: Tensor | None, device: torch.device) -> Tensor:
    """Return the positions of `count` new tokens: [T], or [B, T] with `offsets` [B]."""
    positions = torch.arange(count, device=device)
    return positions if offsets is None else offsets[:, None] + positions


def rotate(states: Tensor, positions: Tensor) -> Tensor:
    """Turn each pair of columns (i, i + D/2) by position * 10000^(-2i / D) (RoFormer, 3.4.2).

    The product of a rotated query and a rotated key depends on the distance of their positions alone.

    Args:
        states: [B, H, T, D] queries or keys, D even.
        positions: [T] or [B, T] int64.

    Returns:
        [B, H, T, D].
    """
    half = states.size(-1) // 2
    rates = torch.exp(torch.arange(half, device=states.device) * (-math.log(10000.0) / half))
    angles = (positions[..., None] * rates).unsqueeze(-3)  # [1 or B, 1, T, D / 2], or [1, T, D / 2]
    sine, cosine = angles.sin().to(states.dtype), angles.cos().to(states.dtype)
    first, second = states[..., :half], states[..., half:]
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class RelativeBias(nn.Module):
    """A learned number per head and bucket of distances, added to attention scores (T5, 2.1)."""

    def __init__(self, config: ModelConfig, *, causal: bool) -> None:
        """Create the table [buckets, H]; one serves all layers of a stack.

        Args:
            config: Number of buckets and heads.
            causal: Only distances to earlier keys have buckets of their own.
        """
        super().__init__()
        self.weights = nn.Embedding(config.relative_buckets, config.num_heads)
        self.max_distance = config.relative_max_distance
        self.causal = causal

    def forward(self, query_positions: Tensor, keys: int) -> Tensor:
        """Return the bias of keys 0 to `keys` - 1.

        Args:
            query_positions: [Q] or [B, Q] int64.
            keys: K.

        Returns:
            [1, H, Q, K] or [B, H, Q, K].
        """
        distances = torch.arange(keys, device=query_positions.device) - query_positions[..., None]
        buckets = relative_bucket(
            distances, causal=self.causal, buckets=self.weights.num_embeddings, max_distance=self.max_distance
        )
        bias: Tensor = self.weights(buckets).movedim(-1, -3)
        return bias if bias.dim() == 4 else bias[None]


def relative_bucket(distances: Tensor, *, causal: bool, buckets: int, max_distance: int) -> Tensor:
    """Return T5's bucket of each distance (key position minus query position).

    Half of the buckets are exact, the others grow logarithmically up to `max_distance`. Without
    `causal`, later keys have their own half of all buckets; with it, they share bucket 0.
    """
    offset = torch.zeros_like(distances)
    if causal:
        back = (-distances).clamp(min=0)
    else:
        buckets //= 2
        offset = (distances > 0) * buckets
        back = distances.abs()
    exact = buckets // 2
    growth = torch.log(back.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
    return offset + torch.where(back < exact, back, far)
