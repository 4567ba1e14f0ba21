"""Manual pages: markup, blocks and pages of two languages."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dragoman.model.corpus.align import Block
from dragoman.model.corpus.man import align_pages, read_man
from dragoman.model.corpus.roff import page_blocks, plain_text

ENGLISH = r""".TH LS 1
.SH NAME
ls \- list files
.SH OPTIONS
.TP
.BR \-a ", " \-\-all
Show
.I all
files.
.PP
Exit \(lqcleanly\(rq.
"""
GERMAN = r""".TH LS 1
.SH BEZEICHNUNG
ls \- Dateien auflisten
.SH OPTIONEN
.TP
\fB\-a\fP, \fB\-\-all\fP
\fIAlle\fP Dateien zeigen.
.PP
\(FcSauber\(Fo beenden.
.SH \(:UBERSETZUNG
Von jemandem.
"""


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (r"\fBbold\fP \f(CWcode\fR \f[I]x\f[]", "bold code x"),
        (r"\-\-all", "--all"),
        (r"\(:Uber \[:a] \(ss", "Über ä ß"),
        (r"it\(aqs \(lqfine\(rq", 'it\'s "fine"'),
        (r"a\~b\ c", "a b c"),
        (r"C:\epath", r"C:\path"),
        (r"\&.profile", ".profile"),
    ],
)
def test_escapes_become_characters(raw: str, expected: str) -> None:
    """Fonts vanish, named characters and accents become text."""
    assert plain_text(raw) == expected


def test_page_becomes_blocks() -> None:
    """Headings, tags and bodies are told apart, whatever font macros are used."""
    assert page_blocks(ENGLISH) == [
        Block("SH", "NAME"),
        Block("P", "ls - list files"),
        Block("SH", "OPTIONS"),
        Block("T", "-a, --all"),
        Block("D", "Show all files."),
        Block("P", 'Exit "cleanly".'),
    ]


def test_examples_tables_and_definitions_are_dropped() -> None:
    """Code, tables and macro definitions leave at most a structural mark."""
    definitions = ".de XX\ntext of a macro\n..\n.if n \\{\\\n. mso x\n. am YY\ninner\n. .\n"
    page = definitions + ".SH A\n.nf\ncode\n.fi\n.TS\nl l.\na\tb\n.TE\nText.\n"

    assert page_blocks(page) == [Block("SH", "A"), Block("NF", ""), Block("TS", ""), Block("P", "Text.")]


def test_other_dialects_give_no_blocks() -> None:
    """A page in mdoc macros is not half-read."""
    assert page_blocks(".Dd May 1\n.Sh NAME\nText\n") == []


def test_pages_align_section_by_section() -> None:
    """A translators' section at the end of the translation has no counterpart."""
    assert list(align_pages(ENGLISH, GERMAN)) == [
        ("NAME", "BEZEICHNUNG"),
        ("ls - list files", "ls - Dateien auflisten"),
        ("OPTIONS", "OPTIONEN"),
        ("-a, --all", "-a, --all"),
        ("Show all files.", "Alle Dateien zeigen."),
        ('Exit "cleanly".', "»Sauber« beenden."),
    ]


def test_read_man_joins_packages_by_page_name(tmp_path: Path) -> None:
    """Originals and translations come from different packages; damaged files are skipped."""
    originals = tmp_path / "tool" / "usr/share/man/man1"
    translations = tmp_path / "manpages-de" / "usr/share/man/de/man1"
    originals.mkdir(parents=True)
    translations.mkdir(parents=True)
    (originals / "ls.1.gz").write_bytes(gzip.compress(ENGLISH.encode()))
    (translations / "ls.1.gz").write_bytes(gzip.compress(GERMAN.encode()))
    (originals / "bad.1.gz").write_bytes(b"not gzip")
    (translations / "bad.1.gz").write_bytes(gzip.compress(GERMAN.encode()))
    (translations / "alone.1.gz").write_bytes(gzip.compress(GERMAN.encode()))

    pairs = list(read_man([tmp_path / "tool", tmp_path / "manpages-de"], "de"))

    assert len(pairs) == 6
    assert pairs[1] == ("ls - list files", "ls - Dateien auflisten")
