"""Which languages a model translates, and the tokens that tell it so. Standard library only.

A model of one pair needs no such tokens. One of many reads a token that names the source language,
or the target language, or both, and some are made to begin the target with one. All of them are
ids of the model's vocabulary; users write BCP-47 tags and never see them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class LanguageTokens:
    """What choosing a language adds to a row.

    Attributes:
        before_source: In front of the source's own tokens.
        after_source: Behind its EOS.
        first_target: The target begins with them, behind the start token; they are no part of the text.
    """

    before_source: tuple[int, ...] = ()
    after_source: tuple[int, ...] = ()
    first_target: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, list[int]]:
        """Return a JSON-ready mapping without what is empty."""
        return {name: list(ids) for name in self.__slots__ if (ids := getattr(self, name))}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> LanguageTokens:
        """Read what `to_dict` wrote."""
        return cls(**{name: tuple(int(i) for i in ids) for name, ids in values.items()})


@dataclass(frozen=True, slots=True)
class Languages:
    """The languages of a model by BCP-47 tag: any source goes with any target.

    Attributes:
        sources: Tokens of each source language.
        targets: Tokens of each target language.
    """

    sources: dict[str, LanguageTokens] = field(default_factory=dict)
    targets: dict[str, LanguageTokens] = field(default_factory=dict)

    @classmethod
    def pair(cls, source: str, target: str) -> Languages:
        """Return those of a model of one pair, without tokens."""
        return cls({source: LanguageTokens()}, {target: LanguageTokens()})

    def frame(self, ids: list[int], source: str, target: str) -> list[int]:
        """Return source ids, EOS last, with the tokens of both languages around them.

        Raises:
            KeyError: A language is not the model's.
        """
        one, other = self.sources[source], self.targets[target]
        return [*other.before_source, *one.before_source, *ids, *one.after_source, *other.after_source]

    def first_target(self, target: str) -> tuple[int, ...]:
        """Return the tokens that a text of language `target` begins with.

        Raises:
            KeyError: The language is not the model's.
        """
        return self.targets[target].first_target

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield source and target of every pair of two different languages, or of the only pair there is."""
        for source in self.sources:
            for target in self.targets:
                if source != target or len(self.targets) == 1:
                    yield source, target

    @property
    def longest_frame(self) -> int:
        """Most tokens that `frame` adds."""
        added = [
            max((len(one.before_source) + len(one.after_source) for one in side.values()), default=0)
            for side in (self.sources, self.targets)
        ]
        return sum(added)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return {
            "sources": {tag: tokens.to_dict() for tag, tokens in self.sources.items()},
            "targets": {tag: tokens.to_dict() for tag, tokens in self.targets.items()},
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Languages:
        """Read what `to_dict` wrote."""
        sources, targets = (
            {tag: LanguageTokens.from_dict(tokens) for tag, tokens in values[side].items()}
            for side in ("sources", "targets")
        )
        return cls(sources, targets)
