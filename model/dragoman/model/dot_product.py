"""Equation 1 of "Attention Is All You Need", on its own so that every attention path shares it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def attention_weights(
    query: Tensor, key: Tensor, mask: Tensor | None = None, *, bias: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Return softmax(Q K^T * scale + bias), masked; each row sums to 1.

    Args:
        query: [B, H, Q, D].
        key: [B, H, K, D], or [B, H_kv, K, D] where H is a multiple of H_kv (grouped-query attention).
        mask: Broadcasts to [B, H, Q, K]. Bool: True means attend, and every query needs one True key.
            Float: added to the scores.
        bias: Added to the scores, broadcasts to [B, H, Q, K].
        scale: None means 1 / sqrt(D).

    Returns:
        [B, H, Q, K].
    """
    factor = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = query @ share_heads(key, query.size(1)).transpose(-2, -1) * factor
    if bias is not None:
        scores = scores + bias
    if mask is not None and mask.dtype is torch.bool:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    elif mask is not None:
        scores = scores + mask
    return scores.softmax(dim=-1)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: nn.Module | None = None,
    *,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return softmax(Q K^T / sqrt(d_k)) V (equation 1) and the weights.

    Args:
        query: [B, H, Q, D].
        key: [B, H_kv, K, D].
        value: [B, H_kv, K, D].
        mask: As in `attention_weights`.
        dropout: Applied to the attention weights before the product with V.
        bias: As in `attention_weights`.
        scale: As in `attention_weights`.

    Returns:
        [B, H, Q, D], and the weights [B, H, Q, K] without dropout.
    """
    weights = attention_weights(query, key, mask, bias=bias, scale=scale)
    used = weights if dropout is None else dropout(weights)
    return used @ share_heads(value, query.size(1)), weights


def share_heads(tensor: Tensor, heads: int) -> Tensor:
    """Repeat each of the H_kv heads of [B, H_kv, K, D] for its group of queries; returns [B, H, K, D]."""
    group = heads // tensor.size(1)
    return tensor if group == 1 else tensor.repeat_interleave(group, dim=1)
