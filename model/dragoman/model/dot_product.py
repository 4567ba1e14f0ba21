"""Equation 1 of "Attention Is All You Need", on its own so that every attention path shares it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: nn.Module | None = None
) -> Tensor:
    """Return softmax(Q K^T / sqrt(d_k)) V (equation 1).

    Args:
        query: [B, H, Q, D].
        key: [B, H, K, D].
        value: [B, H, K, D].
        mask: Bool, broadcasts to [B, H, Q, K]; True means attend. Every query needs one True key.
        dropout: Applied to the attention weights.

    Returns:
        [B, H, Q, D], same dtype as `query`.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))  # [B, H, Q, K]
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1)
    if dropout is not None:
        weights = dropout(weights)
    return weights @ value
