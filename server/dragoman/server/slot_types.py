"""What the numbers in a slot are, as the decoder's inputs say: one type for each kind of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dragoman.export.bundle import Shape

_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class SlotTypes:
    """Types of a bundle's slots; those of an fp32 bundle unless something else is said.

    Attributes:
        cross: Of keys and values of the source.
        states: Of what the decoder layers know of the generated tokens.
        cross_last: Whether a row has its last source position besides, as float32 whatever the others are.
    """

    cross: np.dtype[Any] = _FLOAT32
    states: np.dtype[Any] = _FLOAT32
    cross_last: bool = False


def last_size(shape: Shape) -> tuple[int, int]:
    """Return the size of a row's last source position: 2L keys and values, each of H * D float32."""
    return 2 * shape.num_decoder_layers, shape.num_heads * shape.head_dim
