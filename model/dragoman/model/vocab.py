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
        eos: Ends every source and every target. Some imported models begin the target with it, too.
        suppressed: More ids that have no place in a text: language codes, masks, unused entries.
    """

    pad: int = 0
    unk: int = 1
    start: int = 2
    eos: int = 3
    suppressed: tuple[int, ...] = ()

    @property
    def never_generated(self) -> tuple[int, ...]:
        """Ids that a search must not choose, in ascending order."""
        return tuple(sorted({self.pad, self.unk, self.start, *self.suppressed} - {self.eos}))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        values = asdict(self)
        if not self.suppressed:  # servers from before there was such a thing refuse fields that they do not know
            del values["suppressed"]
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> SpecialIds:
        """Read what `to_dict` wrote."""
        ids = {name: int(value) for name, value in values.items() if name != "suppressed"}
        return cls(**ids, suppressed=tuple(int(value) for value in values.get("suppressed", ())))


SPECIAL_IDS = SpecialIds()
