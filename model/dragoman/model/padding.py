"""Rows of token ids as one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pad_rows(rows: Sequence[Sequence[int]], pad: int) -> Tensor:
    """Return [B, T] int64 with each row at the left and `pad` behind it; T is the longest row's length."""
    size = max(len(row) for row in rows)
    return torch.tensor([[*row, *[pad] * (size - len(row))] for row in rows])
