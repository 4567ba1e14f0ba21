"""What an evaluation needs of a system that translates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dragoman.model.samples import Output


@dataclass(frozen=True, slots=True)
class System:
    """Something that translates.

    Attributes:
        name: Kind, place and version, for the report.
        translate: Sources to outputs, one to one; a source that is not accepted is marked as refused.
        languages: BCP-47 tags of what it translates and into what, for data that holds several languages; None
            if it does not say.
    """

    name: str
    translate: Callable[[Sequence[str]], list[Output]]
    languages: tuple[str, str] | None = None
