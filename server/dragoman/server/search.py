"""Greedy search: what one decode step's tokens mean for each row. Arrays in, arrays out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.model.vocab import SpecialIds

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Per row, in slot order.

    Attributes:
        tokens: [n] int64, the chosen token.
        eos: [n] bool, the text ended with this token, which is not part of it.
        faulty: [n] bool, the token is one that the graph masks: its logits were not numbers.
        length: [n] bool, the token is part of the text and the last one allowed.
    """

    tokens: Int64s
    eos: Bools
    faulty: Bools
    length: Bools

    @property
    def is_text(self) -> Bools:
        """[n] bool, the token belongs to the text."""
        is_text: NDArray[Any] = ~(self.eos | self.faulty)
        return is_text

    @property
    def ended(self) -> Bools:
        """[n] bool, the row leaves its slot."""
        ended: NDArray[Any] = self.eos | self.faulty | self.length
        return ended


def greedy(next_ids: Int64s, generated: Int64s, max_new_tokens: Int64s, special: SpecialIds) -> Verdict:
    """Judge the most probable tokens.

    Args:
        next_ids: [n] int64 from the graph; ids that must not be generated are masked there.
        generated: [n] int64, tokens of each row with this one.
        max_new_tokens: [n] int64.
        special: Ids with a meaning.
    """
    is_eos = next_ids == special.eos
    faulty = np.isin(next_ids, special.never_generated)
    return Verdict(next_ids, is_eos, faulty, ~(is_eos | faulty) & (generated >= max_new_tokens))
