"""How long the two sides of a pair may be, and how many pairs are left out because of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class Sided(Protocol):
    """Anything with a tokenized source and target."""

    @property
    def source(self) -> Sequence[int]:
        """Ids, EOS last."""

    @property
    def target(self) -> Sequence[int]:
        """Ids, EOS last."""


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """The longest source and target that are trained on, in pieces, EOS included."""

    source: int
    target: int

    def at_most(self, pieces: int) -> LengthLimits:
        """Return limits of which none is above `pieces`."""
        return LengthLimits(min(self.source, pieces), min(self.target, pieces))

    def admit(self, example: Sided) -> bool:
        """Whether both sides are short enough."""
        return len(example.source) <= self.source and len(example.target) <= self.target

    def __str__(self) -> str:
        """Name both in a message."""
        return f"{self.source} pieces of source, {self.target} of target, the end included"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """How many pairs are too long.

    Attributes:
        limits: What they were compared with.
        pairs: How many were compared.
        too_long: How many of them are left out.
        complete: Whether these were all the pairs there are.
    """

    limits: LengthLimits
    pairs: int
    too_long: int
    complete: bool

    def sentence(self, what: str, reason: str) -> str:
        """Say it.

        Args:
            what: The kind of pairs, for example "training".
            reason: Whose limits these are, for example "the model covers".
        """
        which = "the" if self.complete else "the first"
        return (
            f"{self.too_long} of {which} {self.pairs} {what} pairs are left out: longer than {reason} ({self.limits})"
        )
