"""Build a corpus: fetch, read, clean, remove duplicates, split, write.

Output appears all at once at the end: files are written into a staging
folder and renamed, the manifest last. An interrupted build leaves either the
earlier corpus or no manifest, never a mixture that claims to be complete.
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.model.corpus.clean import count_words, normalise, rejection, sentence_pairs
from dragoman.model.corpus.errors import EmptyCorpusError, UnknownSourceError
from dragoman.model.corpus.fetch import Fetch, Fetched, Progress, fetch_debian, no_progress
from dragoman.model.corpus.languages import Language, target_language
from dragoman.model.corpus.lock import locked
from dragoman.model.corpus.manifest import (
    BUILDER_VERSION,
    FORMAT_VERSION,
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    SourceEntry,
    file_digest,
    read_complete,
)
from dragoman.model.corpus.sources import Role, Source, select_sources
from dragoman.model.corpus.split import Record, Split, deduplicate, split

logger = logging.getLogger(__name__)

LONG_PAIR_WORDS = 5

TRAIN_FILE = "train.tsv"
VALID_FILE = "valid.tsv"
TEST_FILES = "test.{origin}.tsv"

_STAGING = ".staging"


@dataclass(frozen=True, slots=True)
class BuildResult:
    """Hold the outcome of a build.

    Attributes:
        manifest: Description of the corpus now in the folder.
        is_new: False if the folder already held it and nothing was done.
    """

    manifest: Manifest
    is_new: bool


@dataclass(slots=True)
class _Reading:
    """Hold the cleaned pairs of one source and what happened on the way."""

    records: list[Record]
    paragraphs: int
    accepted: int
    rejected: Counter[str]


def build_corpus(
    pair: str,
    out: Path,
    *,
    work: Path | None = None,
    source_names: Sequence[str] | None = None,
    progress: Progress = no_progress,
    fetch: Fetch = fetch_debian,
) -> BuildResult:
    """Build the corpus of a language pair into a folder.

    Args:
        pair: Language pair, e.g. `en-de`.
        out: Folder for the corpus.
        work: Folder for downloads, kept for later runs; `out/work` by default.
        source_names: Sources to use; all the pair has by default.
        progress: Shows progress.
        fetch: Fetches the packages.

    Raises:
        CorpusError: The request is wrong or the build failed; the message says
            what to do.
    """
    language = target_language(pair)
    sources = select_sources(language, source_names)
    if not any(source.role is Role.TRAIN for source in sources):
        raise UnknownSourceError("the chosen sources leave nothing to validate on; add one of ddtp, lohelp, man")
    work = work or out / "work"
    with locked(out, ".build.lock"), locked(work):
        manifest = read_complete(out, pair, [source.name for source in sources])
        if manifest:
            return BuildResult(manifest, is_new=False)
        fetched = fetch(work, language, sources, progress)
        readings = {source.name: _read(source, fetched, language, progress) for source in sources}
        parts = _split(sources, readings)
        entries = {source.name: _source_entry(source, fetched, readings[source.name]) for source in sources}
        return BuildResult(_write(out, pair, entries, parts), is_new=True)


def _read(source: Source, fetched: Fetched, language: Language, progress: Progress) -> _Reading:
    """Read and clean one source; near-repeated pairs within it are dropped."""
    rejected: Counter[str] = Counter()
    records: list[Record] = []
    paragraphs = 0
    for source_text, target_text in progress(source.read(fetched.unpacked, language), f"read {source.name}"):
        paragraphs += 1
        for english, translation in sentence_pairs(normalise(source_text), normalise(target_text), language):
            reason = rejection(english, translation, language)
            if reason and not (reason == "identical" and source.keeps_identical):
                rejected[reason] += 1
            else:
                records.append(Record(english, translation, source.name))
    if not records:
        raise EmptyCorpusError(
            f"source {source.name} gave no pairs of {paragraphs} paragraphs; its packages may have another "
            "layout than Debian 12's, leave it out with --sources"
        )
    return _Reading(deduplicate(records), paragraphs, len(records), rejected)


def _split(sources: Sequence[Source], readings: dict[str, _Reading]) -> Split:
    """Split the pairs, leaving in each reading those that stay after duplicates."""
    names = {role: [source.name for source in sources if source.role is role] for role in Role}
    # Supplements come last, so that a pair of both counts as one for validation too.
    in_order = [*names[Role.TRAIN], *names[Role.SUPPLEMENT]]
    unique = deduplicate(record for name in in_order for record in readings[name].records)
    for name in in_order:
        readings[name].records = [record for record in unique if record.origin == name]
    training = [record for record in unique if record.origin in names[Role.TRAIN]]
    supplement = [record for record in unique if record.origin in names[Role.SUPPLEMENT]]
    return split(training, {name: readings[name].records for name in names[Role.TEST]}, supplement)


def _source_entry(source: Source, fetched: Fetched, reading: _Reading) -> SourceEntry:
    pairs, source_words, long_pairs = _counts(reading.records)
    return SourceEntry(
        role=source.role.value,
        licence=source.licence,
        packages=fetched.versions[source.name],
        left_out=fetched.left_out[source.name],
        paragraphs=reading.paragraphs,
        pairs=pairs,
        source_words=source_words,
        pairs_5_words=long_pairs,
        duplicates=reading.accepted - pairs,
        rejected=dict(sorted(reading.rejected.items())),
    )


def _write(out: Path, pair: str, sources: dict[str, SourceEntry], parts: Split) -> Manifest:
    """Write all files under temporary names, then move them into place."""
    contents = {TRAIN_FILE: parts.train, VALID_FILE: parts.valid}
    contents |= {TEST_FILES.format(origin=origin): records for origin, records in parts.tests.items()}
    leaked = {TEST_FILES.format(origin=origin): count for origin, count in parts.leaked.items()}
    leaked[TRAIN_FILE] = parts.withheld
    staging = out / _STAGING
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        files = {name: _write_file(staging / name, records, leaked.get(name, 0)) for name, records in contents.items()}
        manifest = Manifest(FORMAT_VERSION, BUILDER_VERSION, pair, sources, files)
        manifest.write(staging / MANIFEST_NAME)
        # From here to the last rename the folder has no manifest, so a crash
        # between two renames is seen as an incomplete corpus.
        (out / MANIFEST_NAME).unlink(missing_ok=True)
        for stale in out.glob(TEST_FILES.format(origin="*")):
            stale.unlink()
        for name in (*contents, MANIFEST_NAME):
            (staging / name).replace(out / name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return manifest


def _write_file(path: Path, records: Sequence[Record], leaked: int) -> FileEntry:
    with path.open("w", encoding="utf-8", newline="\n") as handle:
        handle.writelines("\t".join(record) + "\n" for record in records)
    pairs, source_words, long_pairs = _counts(records)
    return FileEntry(pairs, source_words, long_pairs, leaked, file_digest(path))


def _counts(records: Sequence[Record]) -> tuple[int, int, int]:
    """Return the number of pairs, of English words, and of long pairs."""
    lengths = [count_words(record.source) for record in records]
    return len(lengths), sum(lengths), sum(length >= LONG_PAIR_WORDS for length in lengths)
