"""Keys and values in 8 bits: one constant scale per layer, key or value, and channel of each head.

    number = round(value / scale)  (int8),  scale = max |value| of the calibration texts / 127

Attention is bound by how many bytes of keys and values it reads, and the pool of rows by how many it keeps. Channels
of one head may differ widely, and what all of them had in common would round the small ones to nothing. What is larger
than anything in calibration is cut off, as in activations. The scales are constants of the graphs, so that a row does
not depend on its batch.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dragoman.export.rewriting import Array

LIMIT = 127
_SMALLEST = 1e-6  # of a channel that was zero in calibration

CacheScales = Mapping[str, Array]
"""Scales [H, D] float32 by the name of the tensor, such as cross_key.0; what has none stays as it is."""


def largest_by_channel(values: Array, lengths: Array) -> Array:
    """Return the largest magnitude of each channel, [H, D].

    Args:
        values: Keys or values [B, H, K, D].
        lengths: [B], positions of each row that count; padding behind them is never read.
    """
    real = np.arange(values.shape[2]) < lengths[:, None]  # [B, K]
    found: Array = np.abs(values).max(axis=(0, 2), where=real[:, None, :, None], initial=0.0)
    return found


def scales_of(largest: Mapping[str, Array]) -> dict[str, Array]:
    """Return the scale of each channel by its largest magnitude."""
    return {name: np.maximum(channels, _SMALLEST).astype(np.float32) / LIMIT for name, channels in largest.items()}
