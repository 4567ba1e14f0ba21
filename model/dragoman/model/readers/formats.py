"""The formats: which suffix is read by what, and what becomes of a file with problems.

`Problem`s come together here, so that each reader only has to say what it sees.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dragoman.model.errors import DataError
from dragoman.model.readers.jsonl import read_jsonl
from dragoman.model.readers.mo import read_mo
from dragoman.model.readers.pair import Pair
from dragoman.model.readers.record import LANGUAGES_NEEDED, Languages, Problem, Record, Skip
from dragoman.model.readers.tmx import read_tmx
from dragoman.model.readers.tsv import read_tsv
from dragoman.model.readers.two_files import read_two_files
from dragoman.model.readers.xliff import read_xliff

MAX_REPORTED = 5
"""Problems that an error message spells out; it gives the number of the others."""


@dataclass(frozen=True, slots=True)
class _Format:
    read: Callable[[Path, Languages | None], Iterator[Record]]
    expected: str  # what a file must look like; ends an error message


def supported_formats() -> str:
    """Return the formats in words, for help texts and error messages."""
    return f"{', '.join(_FORMATS)} (each also with .gz behind), or two text files with the same number of lines"


def read_pairs(path: Path, *, second: Path | None = None, languages: Languages | None = None) -> Iterator[Pair]:
    """Yield the pairs of a file in its order, without holding them all in memory.

    White space within a text becomes one space. The first problem ends the pairs: the rest of the file is
    only searched for more problems, and one error names them together. So until the iterator has ended, a
    problem may still lie ahead.

    Args:
        path: A file of one of `supported_formats`, or the text file with the sources.
        second: The text file with the targets.
        languages: BCP-47 tags of source and target; needed for files that hold several languages.

    Raises:
        DataError: A file is missing or of no known format (raised at once), or has problems or no pair
            (raised by the iterator); names file, line and reason.
    """
    _check_files(path, second)
    suffix = _suffix(path)
    if second is not None:
        return _pairs(read_two_files(path, second), path, _EXPECTED_OF_TWO)
    if suffix not in _FORMATS:
        raise DataError(f"{path}: unknown format {suffix or '(no suffix)'}; allowed are {supported_formats()}")
    return _pairs(_FORMATS[suffix].read(path, languages), path, _FORMATS[suffix].expected)


def _check_files(path: Path, second: Path | None) -> None:
    files = [path] if second is None else [path, second]
    for file in files:
        if os.path.isdir(file):
            raise DataError(f"{file}: is a folder; give a file: {supported_formats()}")
        if not os.path.exists(file):
            raise DataError(f"{file}: does not exist")
        if second is not None and _suffix(file) in _FORMATS:
            raise DataError(f"{file}: a {_suffix(file)} file holds both sides; give it alone, or two text files")
    if second is not None and os.path.samefile(path, second):
        raise DataError(f"{path}: is given as source and as target; give two different files")


def _suffix(path: Path) -> str:
    """Return the suffix in small letters, .gz left out."""
    return Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()


def _read_po(path: Path, _: Languages | None) -> Iterator[Record]:
    """Import polib only now: an environment that just exports or evaluates has no need of it."""
    try:
        from dragoman.model.readers.po import read_po
    except ModuleNotFoundError as error:
        raise DataError(f"{path}: reading .po files needs {error.name}; install 'dragoman[train]'") from error
    return read_po(path)


def _read_tmx(path: Path, languages: Languages | None) -> Iterator[Record]:
    if languages is None:
        raise DataError(f"{path}: {LANGUAGES_NEEDED}")
    return read_tmx(path, languages)


_PO = _Format(_read_po, 'An entry is msgid "..." and msgstr "..."; msgfmt --check names such errors too')
_XLIFF = _Format(read_xliff, "A unit has a <source>, and a <target> once it is translated; fix or remove these units")
_FORMATS = {
    ".tsv": _Format(
        lambda path, _: read_tsv(path),
        "Each line must be source<TAB>target or source<TAB>target<TAB>origin; fix or remove these lines",
    ),
    ".jsonl": _Format(
        read_jsonl,
        'Each line must be {"source": "...", "target": "..."}, optionally with "origin", or '
        '{"translation": {"en": "...", "de": "..."}}; fix or remove these lines',
    ),
    ".po": _PO,
    ".pot": _PO,
    ".mo": _Format(
        lambda path, _: read_mo(path), "Make the file again from its .po file with msgfmt, or read that one"
    ),
    ".tmx": _Format(
        _read_tmx,
        'A unit is <tu> with <tuv xml:lang="..."><seg>...</seg></tuv> for each language; fix or remove these units',
    ),
    ".xlf": _XLIFF,
    ".xliff": _XLIFF,
}
_EXPECTED_OF_TWO = "Line i of one file must be the translation of line i of the other; fix or remove the lines in both"


def _pairs(records: Iterator[Record], path: Path, expected: str) -> Iterator[Pair]:
    """Yield the pairs, up to the first problem.

    Raises:
        DataError: There are problems, or no pairs.
    """
    found = False
    skipped: Counter[str] = Counter()
    for record in records:
        if isinstance(record, Pair):
            found = True
            yield record
        elif isinstance(record, Skip):
            # Reasons can name what a file declares, and so be as many as its entries.
            skipped[record.reason if len(skipped) < MAX_REPORTED or record.reason in skipped else "others"] += 1
        else:
            raise DataError(_report(record, records, expected))
    if not found:
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
        raise DataError(f"{path}: has no pairs; {f'its entries are {reasons}' if reasons else 'it is empty'}")


def _report(first: Problem, rest: Iterator[Record], expected: str) -> str:
    """Return one message for the first problem and all that follow."""
    shown, more = [first], 0
    for record in rest:
        if not isinstance(record, Problem):
            continue
        # What ended the reading matters more than how many bad lines there were before.
        if len(shown) < MAX_REPORTED or record.final:
            shown.append(record)
        else:
            more += 1
    parts, path = [], None
    for problem in shown:
        text = f"{problem.where}: {problem.reason}" if problem.where else problem.reason
        parts.append(text if problem.path == path else f"{problem.path}: {text}")
        path = problem.path
    if more:
        parts.insert(MAX_REPORTED, f"and {more} more")
    return "; ".join(parts) + (f". {expected}" if not all(problem.final for problem in shown) else "")
