"""Describe a built corpus in `manifest.json` and check it later.

The manifest is written last: a folder with a manifest whose digests match is
a complete corpus, anything else is not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FORMAT_VERSION = 1
# Raise when the same packages would give other pairs.
BUILDER_VERSION = 1
MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """Record what one source gave.

    Attributes:
        role: `train`, `supplement` (training without validation) or `test`.
        licence: Licence of its text.
        packages: Version by package name; digest by index name for descriptions.
        left_out: Optional packages that the archives do not have.
        paragraphs: Aligned paragraphs read.
        pairs: Pairs left after cleaning and removal of duplicates.
        source_words: English words of those pairs.
        pairs_5_words: Those pairs with at least five English words.
        duplicates: Pairs dropped as repeated or near-repeated.
        rejected: Pairs dropped by each cleaning rule.
    """

    role: str
    licence: str
    packages: dict[str, str]
    left_out: list[str]
    paragraphs: int
    pairs: int
    source_words: int
    pairs_5_words: int
    duplicates: int
    rejected: dict[str, int]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Record one output file.

    Attributes:
        pairs: Lines of the file.
        source_words: English words.
        pairs_5_words: Pairs with at least five English words.
        leaked: Pairs left out because their source occurs on the other side: for
            a test set in training, for training (of supplements) in a held-out set.
        sha256: Digest of the file.
    """

    pairs: int
    source_words: int
    pairs_5_words: int
    leaked: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Describe a corpus: versions, pair, sources and files."""

    format_version: int
    builder_version: int
    pair: str
    sources: dict[str, SourceEntry]
    files: dict[str, FileEntry]

    def write(self, path: Path) -> None:
        """Write the manifest as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n", "utf-8")


def read_complete(folder: Path, pair: str, sources: Sequence[str]) -> Manifest | None:
    """Return the manifest of a folder if it already holds exactly this corpus.

    A manifest of another version, pair or set of sources, a missing or a
    changed file all give None: the corpus is then built anew.
    """
    try:
        manifest = _parse(json.loads((folder / MANIFEST_NAME).read_text("utf-8")))
        wanted = (FORMAT_VERSION, BUILDER_VERSION, pair, list(sources))
        found = (manifest.format_version, manifest.builder_version, manifest.pair, list(manifest.sources))
        if found != wanted:
            return None
        intact = all(file_digest(folder / name) == entry.sha256 for name, entry in manifest.files.items())
        return manifest if intact else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _parse(data: dict[str, Any]) -> Manifest:
    return Manifest(
        format_version=data["format_version"],
        builder_version=data["builder_version"],
        pair=data["pair"],
        sources={name: SourceEntry(**entry) for name, entry in data["sources"].items()},
        files={name: FileEntry(**entry) for name, entry in data["files"].items()},
    )
