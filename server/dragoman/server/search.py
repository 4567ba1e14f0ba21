"""Greedy search: what one decode step's tokens mean for each row. Arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Sequence
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
        forced: [n] bool, the token was not chosen but given, and is no part of the text.
    """

    tokens: Int64s
    eos: Bools
    faulty: Bools
    length: Bools
    forced: Bools

    @property
    def is_text(self) -> Bools:
        """[n] bool, the token belongs to the text."""
        is_text: NDArray[Any] = ~(self.eos | self.faulty | self.forced)
        return is_text

    @property
    def ended(self) -> Bools:
        """[n] bool, the row leaves its slot."""
        ended: NDArray[Any] = self.eos | self.faulty | self.length
        return ended


def greedy(
    next_ids: Int64s, generated: Int64s, max_new_tokens: Int64s, special: SpecialIds, forced: Int64s | None = None
) -> Verdict:
    """Judge the most probable tokens.

    Args:
        next_ids: [n] int64 from the graph; ids that must not be generated are masked there.
        generated: [n] int64, tokens of each row with this one.
        max_new_tokens: [n] int64.
        special: Ids with a meaning.
        forced: [n] int64, the token that a row has to take instead, or -1; None if no row has to.
    """
    given = np.zeros(next_ids.shape, np.bool_) if forced is None else forced >= 0
    tokens = next_ids if forced is None else np.where(given, forced, next_ids)
    is_eos = ~given & (tokens == special.eos)
    faulty = ~given & np.isin(tokens, special.never_generated)
    length = ~(is_eos | faulty | given) & (generated >= max_new_tokens)
    return Verdict(tokens, is_eos, faulty, length, given)


def forced(first_targets: Sequence[Sequence[int]], generated: Int64s) -> Int64s | None:
    """Return the token that each row has to take next, or -1.

    Args:
        first_targets: Per row, the tokens that its target begins with.
        generated: [n] int64, tokens of each row so far.

    Returns:
        [n] int64; None if no row has any such token.
    """
    if not any(first_targets):
        return None
    pairs = zip(first_targets, generated.tolist(), strict=True)
    return np.array([first[count] if count < len(first) else -1 for first, count in pairs], np.int64)
