"""What an evaluation is about: a source, its reference, and what some system made of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Ending(enum.Enum):
    """Why a translation ends where it does."""

    EOS = "eos"  # the model ended it
    LIMIT = "limit"  # the limit on new tokens cut it
    REFUSED = "refused"  # there is none: the system does not take this source
    UNKNOWN = "unknown"  # a file of translations does not say


@dataclass(frozen=True, slots=True)
class Output:
    """What a system made of one source.

    Attributes:
        text: Empty if refused.
        ending: Why the text ends there.
        reason: Why the source was refused, in words; else empty.
    """

    text: str
    ending: Ending
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """One scored sentence.

    Attributes:
        number: Of the pair in the data, counted from 1: the line of a .tsv file.
        source: To be translated.
        reference: A right translation.
        origin: Where the pair comes from; may be empty.
        output: The system's.
    """

    number: int
    source: str
    reference: str
    origin: str
    output: Output
