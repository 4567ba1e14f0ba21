"""What a model translates: what the user says, what the folder says, and what is then known of it."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import dataclass

from dragoman.model.errors import ImportFailed
from dragoman.model.importers.hf.folder import Folder
from dragoman.model.importers.language_tags import is_tag, listing
from dragoman.model.languages import Languages
from dragoman.model.tokenizers.base import Tokenizer


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a folder says of its ids.

    Attributes:
        tokenizer: Theirs.
        languages: Of a model that wants tokens for them; None for one pair without.
        source: Tag of the only or the usual source language, or "".
        target: Tag of the only or the usual target language, or "".
    """

    tokenizer: Tokenizer
    languages: Languages | None
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user says, or leaves to the folder.

    Attributes:
        source: Tag of the source language, or "".
        target: Tag of the target language, or "".
        prefix: In front of every source of a T5; None for what the folder names.
    """

    source: str = ""
    target: str = ""
    prefix: str | None = None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Wanted:
        """Read the command's arguments.

        Raises:
            ImportFailed: A language is no tag.
        """
        source, target = arguments.source_language or "", arguments.target_language or ""
        for name, tag in (("source", source), ("target", target)):
            if tag and not is_tag(tag):
                raise ImportFailed(f"--{name}-language is {tag!r}; give a tag such as en or pt-BR")
        return cls(source, target, arguments.prefix)

    def pair(self, folder: Folder, source: str = "", target: str = "") -> tuple[str, str]:
        """Return both languages of a model of one pair, if need be those that its folder names.

        Raises:
            ImportFailed: Nobody names one.
        """
        found = self.source or source, self.target or target
        missing = [name for name, tag in zip(("source", "target"), found, strict=True) if not tag]
        if missing:
            options = " and ".join(f"--{name}-language" for name in missing)
            raise ImportFailed(f"{folder.path}: does not say what it translates; give {options}")
        return found

    def usual(self, folder: Folder, languages: Languages, source: str = "", target: str = "") -> tuple[str, str]:
        """Return the languages that callers get who name none: those asked for, else the folder's, else the only ones.

        Raises:
            ImportFailed: One that is asked for is not the model's.
        """
        for name, tag, tags in (
            ("source", self.source, languages.sources),
            ("target", self.target, languages.targets),
        ):
            if tag and tag not in tags:
                raise ImportFailed(f"{folder.path}: --{name}-language is {tag!r}; the model has {listing(tags)}")
        return self.source or source or only(languages.sources), self.target or target or only(languages.targets)


def only(tags: Collection[str]) -> str:
    """Return the only tag, or "" if there is none or are several."""
    return next(iter(tags)) if len(tags) == 1 else ""
