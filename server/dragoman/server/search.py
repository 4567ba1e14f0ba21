"""Greedy search: what one decode step's tokens mean for each row. Arrays in, arrays out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Per row, in slot order.

    Attributes:
        tokens: [n] int64, the chosen token.
        eos: [n] bool, the text ended with this token, which is not part of it.
        length: [n] bool, the token is part of the text and the last one allowed.
    """

    tokens: Int64s
    eos: Bools
    length: Bools

    @property
    def ended(self) -> Bools:
        """[n] bool, the row leaves its slot."""
        ended: NDArray[Any] = self.eos | self.length
        return ended


def greedy(next_ids: Int64s, generated: Int64s, max_new_tokens: Int64s, eos: int) -> Verdict:
    """Judge the most probable tokens.

    Args:
        next_ids: [n] int64 from the graph; ids that must not be generated are masked there.
        generated: [n] int64, tokens of each row with this one.
        max_new_tokens: [n] int64.
        eos: Id that ends a text.
    """
    is_eos = next_ids == eos
    return Verdict(next_ids, is_eos, ~is_eos & (generated >= max_new_tokens))
