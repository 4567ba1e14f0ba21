"""The pair: a text and its translation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pair:
    """A text and its translation.

    Attributes:
        source: The text.
        target: Its translation.
        origin: Where the pair comes from, if the file says so.
    """

    source: str
    target: str
    origin: str = ""
