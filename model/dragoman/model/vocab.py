"""Special token ids and what they mean. Standard library only.

Every Dragoman tokenizer puts the four special tokens first, in this order. Imported checkpoints
bring their own ids, so code outside training reads them from a `SpecialIds`, never from a constant.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Ids with a meaning of their own.

    Attributes:
        pad: Fills the unused end of a row; never attended to, never generated.
        unk: A piece outside the vocabulary. Byte fallback makes it rare; never generated.
        start: What the decoder reads at position 0 (its "begin of sentence"); never generated.
        eos: Ends every source and every target.
    """

    pad: int = 0
    unk: int = 1
    start: int = 2
    eos: int = 3

    @property
    def never_generated(self) -> tuple[int, ...]:
        """Ids that a search must not choose, in ascending order."""
        return tuple(sorted({self.pad, self.unk, self.start}))

    def to_dict(self) -> dict[str, int]:
        """Return a JSON-ready mapping."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> SpecialIds:
        """Read what `to_dict` wrote."""
        return cls(**{name: int(value) for name, value in values.items()})


SPECIAL_IDS = SpecialIds()
