"""Sinusoidal position encoding (paper, 3.5)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sinusoidal_positions(size: int, d_model: int) -> Tensor:
    """Return [size, d_model] float32 with sines in the even columns and cosines in the odd ones.

    PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos of the same angle.
    """
    rates = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))  # [E / 2]
    angles = torch.arange(size)[:, None] * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
