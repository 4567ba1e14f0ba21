"""Gettext .po and .pot files, parsed by polib.

polib 1.2 is lenient where a reader of training data must not be, and strict where gettext is not: it cuts
the last letter off a string whose quote is missing, breaks lines at U+2028, refuses comments without a
space behind the "#", and takes a text that happens to be the name of a file for that file. So lines are
checked here first, and what polib gets is free of comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import polib

from dragoman.model.readers.catalog import MAX_CATALOG_BYTES, charset_of, entry_pairs
from dragoman.model.readers.lines import read_lines
from dragoman.model.readers.record import Problem, Record, Skip
from dragoman.model.readers.stream import STREAM_ERRORS, open_stream

_HEADER_BYTES = 1 << 16
_STATEMENT = re.compile(r'(?:(?:msgctxt|msgid_plural|msgid|msgstr)\s+|msgstr\[\d\]\s*)?"(?:[^"\\]|\\.)*"')
_KEYWORD = re.compile(r"(?:#~ )?(msg[a-z_]+)")
# str.splitlines, which polib uses, ends a line at each of these; all are white space anyway.
_NO_LINE_END = dict.fromkeys(map(ord, "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), " ")


def read_po(path: Path) -> Iterator[Record]:
    """Yield the pairs of the translated entries; fuzzy, obsolete and untranslated ones are skipped."""
    lines: list[str] = []
    sound = True
    for line in _checked_lines(path):
        if isinstance(line, Problem):
            yield line
            sound = False
        else:
            lines.append(line)
    if not sound or not lines:
        return
    try:
        catalog = polib.pofile("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:  # polib's syntax error
        found = re.search(r"line (\d+)", str(error))
        reason = "out of order; an entry is msgctxt (optional), msgid, msgid_plural (optional), msgstr"
        yield Problem(path, f"line {found[1]}" if found else "", reason, final=True)
        return
    for entry in catalog:
        if entry.obsolete or entry.fuzzy:
            yield Skip("obsolete" if entry.obsolete else "fuzzy")
        else:
            forms = [entry.msgstr_plural[i] for i in sorted(entry.msgstr_plural)]
            yield from entry_pairs(entry.msgid, entry.msgid_plural, forms or [entry.msgstr])


def _checked_lines(path: Path) -> Iterator[str | Problem]:
    """Yield each line as polib wants it, or what is wrong with it."""
    try:
        charset = _declared_charset(path)
    except LookupError as error:
        reason = f"declares the charset {error.args[0]!r}, which no text has; convert it with msgconv -t UTF-8"
        yield Problem(path, "", reason, final=True)
        return
    size, number, keyword = 0, 0, ""
    for line in read_lines(path, charset):
        if isinstance(line, Problem):
            yield line
            continue
        number = line.number
        size += len(line.text)
        if size > MAX_CATALOG_BYTES:
            reason = f"more than {MAX_CATALOG_BYTES:,} characters so far; split the file"
            yield Problem(path, f"line {number}", reason, final=True)
            return
        statement = _statement(line.text.strip())
        if statement is None:
            yield Problem(path, f"line {number}", 'neither a comment nor a keyword with one text in "quotes"')
            continue
        if keywords := _KEYWORD.match(statement):
            keyword = keywords[1]
        yield statement.translate(_NO_LINE_END)
    if keyword.startswith(("msgid", "msgctxt")):
        reason = "the file ends in the middle of an entry, msgstr is missing; copy the file again"
        yield Problem(path, f"line {number}", reason, final=True)


def _declared_charset(path: Path) -> str:
    try:
        with open_stream(path) as stream:
            return charset_of(stream.read(_HEADER_BYTES))
    except STREAM_ERRORS:
        return "utf-8"  # reading the lines will fail again, and say where


def _statement(text: str) -> str | None:
    """Return a stripped line without comments but for flags; None if it is no line of a catalogue."""
    if text.startswith("#,"):
        flags = text[2:].strip()
        return f"#, {flags}" if flags else ""
    obsolete = "#~ " if text.startswith("#~") else ""
    if obsolete:
        text = text[2:].lstrip()
        if text.startswith("|"):
            return ""
    if not text or text.startswith("#"):
        return ""
    return obsolete + text if _STATEMENT.fullmatch(text) else None
