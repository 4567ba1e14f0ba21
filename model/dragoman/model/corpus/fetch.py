"""Fetch everything a set of sources needs, and note the versions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from dragoman.model.corpus.debian import Archive
from dragoman.model.corpus.errors import FetchError
from dragoman.model.corpus.languages import Language
from dragoman.model.corpus.sources import Source, Unpacked

logger = logging.getLogger(__name__)

_Item = TypeVar("_Item")


class Progress(Protocol):
    """Show how far an iteration is; the caller of the builder decides how."""

    def __call__(self, items: Iterable[_Item], label: str, total: int | None = None) -> Iterable[_Item]:
        """Return the items unchanged, reporting as they are taken."""


def no_progress(items: Iterable[_Item], label: str, total: int | None = None) -> Iterable[_Item]:  # noqa: ARG001 (Progress)
    """Show nothing."""
    return items


@dataclass(frozen=True, slots=True)
class Fetched:
    """Hold what was fetched.

    Attributes:
        unpacked: Where the readers find it.
        versions: Package versions by source.
        left_out: Optional packages missing from the archives, by source.
    """

    unpacked: Unpacked
    versions: dict[str, dict[str, str]]
    left_out: dict[str, list[str]]


class Fetch(Protocol):
    """Fetch what sources need; tests put their own in place of the archives."""

    def __call__(self, work: Path, language: Language, sources: Sequence[Source], progress: Progress) -> Fetched:
        """Return what was fetched into `work`."""


def fetch_debian(work: Path, language: Language, sources: Sequence[Source], progress: Progress) -> Fetched:
    """Fetch from the package archives configured on this machine.

    Raises:
        ToolMissingError: A packaging tool is not installed.
        FetchError: A download failed or a needed package is not in the archives.
    """
    archive = Archive(work, language.locale)
    # The generator makes the one long step visible before it starts.
    for step in progress([archive.update], "index lists", 1):
        step()
    known = archive.package_names()
    roots: dict[str, Path] = {}
    versions: dict[str, dict[str, str]] = {}
    left_out: dict[str, list[str]] = {}
    for source in sources:
        needed = source.packages(language)
        absent = [name for name in needed if name not in known]
        if absent:
            raise FetchError(
                f"source {source.name} needs {', '.join(absent)}, which the configured archives do not have; "
                f"use the `main` archive of Debian 12, or leave {source.name} out with --sources"
            )
        left_out[source.name] = [name for name in source.optional if name not in known]
        names = [*needed, *(name for name in source.optional if name in known)]
        versions[source.name] = {} if names else archive.description_digests()
        for package in progress(archive.unpack(names, source.wanted), f"fetch {source.name}", len(names)):
            roots[package.name] = package.root
            versions[source.name][package.name] = package.version
        if left_out[source.name]:
            logger.warning("packages left out source=%s packages=%s", source.name, left_out[source.name])
    return Fetched(Unpacked(roots, archive.descriptions), versions, left_out)
