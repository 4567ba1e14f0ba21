"""Attention masks. True means "attend", everywhere in Dragoman.

A mask is a tensor that broadcasts to [B, H, Q, K] (boolean, or float and added to the scores), or
`ValidLengths`, the form the inference kernels take: how many leading keys of each row are real.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ValidLengths:
    """Keys at or behind a row's length are not attended to.

    Attributes:
        lengths: [B] int64, valid keys in each row.
        causal: The Q queries are the last Q valid positions; query i sees keys up to
            lengths - Q + i.
    """

    lengths: Tensor
    causal: bool = False


Mask = Tensor | ValidLengths


def padding_mask(lengths: Tensor, size: int) -> Tensor:
    """Return [B, 1, 1, size] bool, True where a key is real.

    Args:
        lengths: [B] int64, real tokens in each row.
        size: K, padded length.
    """
    positions = torch.arange(size, device=lengths.device)
    return (positions < lengths[:, None])[:, None, None, :]


def causal_mask(size: int, device: torch.device | None = None) -> Tensor:
    """Return [1, 1, size, size] bool, True where key position <= query position (paper, 3.2.3)."""
    return torch.ones(size, size, dtype=torch.bool, device=device).tril()[None, None]


def valid_mask(valid: ValidLengths, queries: int, keys: int) -> Tensor:
    """Return the boolean form of `valid`, [B, 1, queries, keys]."""
    mask = padding_mask(valid.lengths, keys)
    if not valid.causal:
        return mask.expand(-1, -1, queries, -1)
    last = valid.lengths[:, None] - queries + torch.arange(queries, device=valid.lengths.device)  # [B, Q]
    positions = torch.arange(keys, device=valid.lengths.device)
    return mask & (positions <= last[:, :, None])[:, None]
