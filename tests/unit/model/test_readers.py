"""Each format gives the same pairs, streams, and takes what is translated only."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import polib
import pytest

from dragoman.model.errors import DataError
from dragoman.model.readers import Pair, read_pairs, supported_formats
from dragoman.model.readers.language import choose_languages, find_language
from tests.fakes.parallel_texts import PAIRS, WRITERS, catalog, tmx, xliff1, xliff2

LANGUAGES = ("en", "de")
# White space that every reader must turn into single spaces; the third pair is written with it.
SPACED = [*PAIRS[:2], Pair("one \u2028 two\u00a0three ", " eins\u3000zwei \x85drei"), PAIRS[3]]


def read(path: Path, second: Path | None = None, languages: tuple[str, str] | None = LANGUAGES) -> list[Pair]:
    return list(read_pairs(path, second=second, languages=languages))


def in_order(pairs: list[Pair]) -> list[Pair]:
    return sorted(pairs, key=lambda pair: (pair.source, pair.target))


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("name", WRITERS)
def test_all_formats_give_the_same_pairs(name: str, packed: bool, tmp_path: Path) -> None:
    """Compressed or not, in upper case or not, with any kind of white space."""
    content = WRITERS[name](SPACED)
    path = tmp_path / (f"{name.upper()}.gz" if packed else name)
    path.write_bytes(gzip.compress(content) if packed else content)

    assert read(path) == (in_order(PAIRS) if name == "a.mo" else PAIRS)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_two_files_give_the_same_pairs(packed: bool, tmp_path: Path) -> None:
    """One of the files may be compressed and the other not; the last line needs no line feed."""
    source, target = tmp_path / "corpus.en", tmp_path / ("corpus.de.gz" if packed else "corpus.de")
    source.write_bytes("\n".join(pair.source for pair in SPACED).encode())
    content = "".join(f"{pair.target}\n" for pair in SPACED).encode()
    target.write_bytes(gzip.compress(content) if packed else content)

    assert read(source, target) == PAIRS


@pytest.mark.parametrize("name", [name for name in WRITERS if not name.endswith(".mo")])
def test_byte_order_mark_and_carriage_returns_are_tolerated(name: str, tmp_path: Path) -> None:
    """As Windows programs write them."""
    path = tmp_path / name
    path.write_bytes(b"\xef\xbb\xbf" + WRITERS[name](PAIRS).replace(b"\n", b"\r\n"))

    assert read(path) == PAIRS


def test_origin_is_kept(tmp_path: Path) -> None:
    """Where the format has a place for it."""
    (tmp_path / "a.tsv").write_text("a\tb\tmanual pages\nc\td\n", "utf-8")
    (tmp_path / "a.jsonl").write_text(
        '{"source": "a", "target": "b", "origin": "manual pages"}\n{"source": "c", "target": "d", "origin": null}\n'
    )

    assert read(tmp_path / "a.tsv") == read(tmp_path / "a.jsonl") == [Pair("a", "b", "manual pages"), Pair("c", "d")]


PO = r"""
# Translators without a space behind the sign
#Somebody
msgid ""
msgstr "Project-Id-Version: x\n"
"Content-Type: text/plain; charset=UTF-8\n"

#: a.c:1
#,fuzzy
msgid "fuzzy"
msgstr "unscharf"

msgid "untranslated"
msgstr ""

#. note
#:b.c:2
#, c-format
#| msgid "previous"
msgctxt "menu"
msgid ""
"two\t"
"lines\n"
msgstr "zwei\n"
"Zeilen\n"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d Datei"
msgstr[1] "%d Dateien"
msgstr[2] "%d Dateien!"

msgid "fish"
msgid_plural "fish"
msgstr[0] "Fisch"

msgid "half"
msgid_plural "halves"
msgstr[0] ""
msgstr[1] "Hälften"

#, fuzzy
#~ msgid "gone"
#~ msgstr "weg"
#~| msgid "older"
#~ msgid "gone too"
#~ msgstr "auch weg"

msgid "last"
msgstr "letzter"
# end
"""
PO_PAIRS = [
    Pair("two lines", "zwei Zeilen"), Pair("%d file", "%d Datei"), Pair("%d files", "%d Dateien!"),
    Pair("fish", "Fisch"), Pair("halves", "Hälften"), Pair("last", "letzter"),
]  # fmt: skip


def test_po_takes_translated_entries_only(tmp_path: Path) -> None:
    """Fuzzy, obsolete, untranslated and header entries are left out; a plural has the last form."""
    path = tmp_path / "de.po"
    path.write_text(PO, "utf-8")

    assert read(path) == PO_PAIRS


@pytest.mark.parametrize("order", ["<", ">"])
def test_mo_reads_what_polib_writes(order: str, tmp_path: Path) -> None:
    """In both byte orders; contexts and plural forms included."""
    path = tmp_path / "de.mo"
    content = polib.pofile(
        PO.replace("#Somebody", "").replace("#,fuzzy", "#, fuzzy").replace("#:b", "#: b")
    ).to_binary()
    path.write_bytes(swap(content) if order == ">" else content)

    # polib writes complete plurals only.
    assert read(path) == in_order([pair for pair in PO_PAIRS if pair.source != "halves"])


def swap(content: bytes) -> bytes:
    """Turn a little-endian .mo file into a big-endian one."""
    header = struct.unpack_from("<7I", content)
    count, tables = header[2], header[3:5]
    swapped = bytearray(content)
    struct.pack_into(">7I", swapped, 0, *header)
    for table in tables:
        struct.pack_into(f">{2 * count}I", swapped, table, *struct.unpack_from(f"<{2 * count}I", content, table))
    return bytes(swapped)


@pytest.mark.parametrize("name", ["de.po", "de.mo"])
def test_declared_charset_is_used(name: str, tmp_path: Path) -> None:
    """Old catalogues are in Latin-1."""
    file = catalog(PAIRS[:1])
    file.metadata["Content-Type"] = "text/plain; charset=ISO-8859-1"
    file.encoding = "iso-8859-1"
    (tmp_path / name).write_bytes(str(file).encode("iso-8859-1") if name == "de.po" else file.to_binary())

    assert read(tmp_path / name) == PAIRS[:1]


def test_a_po_file_that_is_the_name_of_a_file_is_no_open_door(tmp_path: Path) -> None:
    """What polib would take for a path is a syntax error."""
    secret = tmp_path / "secret.po"
    secret.write_bytes(WRITERS["a.po"](PAIRS))
    (tmp_path / "a.po").write_text(str(secret))
    with pytest.raises(DataError, match="line 1: neither a comment nor"):
        read(tmp_path / "a.po")


def test_inline_elements_leave_their_text(tmp_path: Path) -> None:
    """Text inside markup stays, native code goes, placeholders stay, line breaks are spaces."""
    content = tmx([Pair("SOURCE", "TARGET")]).decode()
    inline = (
        r"Press <hi>the <bpt i='1'>{\b <sub>no</sub></bpt>red<ept i='1'>}</ept></hi> "
        "<ph>%s</ph><!-- c --> key<ph>&lt;br/></ph>s"
    )
    path = tmp_path / "a.tmx"
    path.write_text(content.replace("SOURCE", inline).replace("TARGET", "<![CDATA[a & b]]> c"), "utf-8")
    assert read(path) == [Pair("Press the red %s keys", "a & b c")]

    content = xliff1([Pair("SOURCE", "TARGET")]).decode()
    inline = 'one<x id="1" ctype="lb"/>two <g id="2">th<mrk mtype="x">re</mrk>e</g><bx id="3"/>'
    path = tmp_path / "a.xlf"
    path.write_text(content.replace("SOURCE", inline).replace("TARGET", "T"), "utf-8")
    assert read(path) == [Pair("one two three", "T")]

    content = xliff2([Pair("SOURCE", "TARGET")]).decode()
    inline = 'one <pc id="1">two</pc><ph id="2" subType="xlf:lb"/>three<cp hex="001F"/><sc id="3"/>'
    path = tmp_path / "a.xliff"
    path.write_text(content.replace("SOURCE", inline).replace("TARGET", "T"), "utf-8")
    assert read(path) == [Pair("one two three", "T")]


XLIFF1_UNITS = """
<trans-unit id="1"><source>none</source></trans-unit>
<trans-unit id="2"><source>empty</source><target> </target></trans-unit>
<trans-unit id="3"><source>new</source><target state="new">new</target></trans-unit>
<trans-unit id="4"><source>later</source><target state="needs-translation">later</target></trans-unit>
<trans-unit id="5" translate="no"><source>v1</source><target>v1</target></trans-unit>
<group translate="no"><trans-unit id="6"><source>v2</source><target>v2</target></trans-unit>
<trans-unit id="7" translate="yes"><source>yes</source><target>ja</target></trans-unit></group>
<bin-unit id="8" mime-type="x"><bin-source/></bin-unit>
<trans-unit id="9"><source>done</source><target state="final">fertig</target></trans-unit>
"""
XLIFF2_UNITS = """
<unit id="1"><segment><source>none</source></segment></unit>
<unit id="2"><segment state="initial"><source>first</source><target>erst</target></segment></unit>
<unit id="3" translate="no"><segment><source>v1</source><target>v1</target></segment></unit>
<unit id="4"><segment><source>yes</source><target>ja</target></segment>
<ignorable><source> </source><target> </target></ignorable>
<segment state="reviewed"><source>done</source><target>fertig</target></segment></unit>
"""


@pytest.mark.parametrize(("writer", "units"), [(xliff1, XLIFF1_UNITS), (xliff2, XLIFF2_UNITS)], ids=["1.2", "2.0"])
def test_xliff_takes_translated_units_only(writer: Callable[[list[Pair]], bytes], units: str, tmp_path: Path) -> None:
    """Missing, empty, unfinished and untranslatable targets are left out, without an error."""
    empty = writer([]).decode()
    end = empty.rindex("</group>" if "</group>" in empty else "</file>")
    (tmp_path / "a.xlf").write_text(empty[:end] + units + empty[end:], "utf-8")

    assert read(tmp_path / "a.xlf", languages=None) == [Pair("yes", "ja"), Pair("done", "fertig")]


def test_languages_match_by_prefix() -> None:
    """The same tag first, then a more special one, then a more general one, and never a sister."""
    assert find_language("en", ["en-GB", "EN"]) == "EN"
    assert find_language("en", ["eng", "de", "en_US", "en-GB"]) == "en_US"
    assert find_language("pt-BR", ["pt-PT", "pt"]) == "pt"
    assert find_language("pt-BR", ["pt-PT", ""]) is None
    assert choose_languages(("en", "en-GB"), ["en-GB", "de"]) is None


def test_supported_formats_names_every_suffix() -> None:
    """For --help texts."""
    assert all(f".{name.split('.')[1]}" in supported_formats() for name in WRITERS)
    assert ".gz" in supported_formats()
    assert "two text files" in supported_formats()


# --- problems, whatever the format


def test_files_that_are_not_there(tmp_path: Path) -> None:
    """At once, before anything is iterated."""
    (tmp_path / "a.de").write_text("a\n")
    with pytest.raises(DataError, match=r"gone\.tsv: does not exist"):
        read_pairs(tmp_path / "gone.tsv")
    with pytest.raises(DataError, match=r"gone\.en: does not exist"):
        read_pairs(tmp_path / "a.de", second=tmp_path / "gone.en")
    with pytest.raises(DataError, match=r"is a folder; give a file: \.tsv"):
        read_pairs(tmp_path)
    with pytest.raises(DataError, match="is given as source and as target"):
        read_pairs(tmp_path / "a.de", second=tmp_path / "a.de")


def test_a_file_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the system is passed on in its words."""
    (tmp_path / "a.tsv").write_text("a\tb\n")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match=r"a\.tsv: line 1: cannot be read: Permission denied"):
        read(tmp_path / "a.tsv")


def test_bad_lines_are_reported_together(tmp_path: Path) -> None:
    """Five of them, and how many more there are."""
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\n" + "bad\n" * 8)
    with pytest.raises(DataError, match=r"a\.tsv: line 2: 1 .*; line 6: 1 column\(s\); and 3 more\. Each line"):
        read(path)


def test_no_pair_follows_a_bad_line(tmp_path: Path) -> None:
    """Pairs before it have been given out, none after it is."""
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\nbad\nc\td\n")
    pairs = read_pairs(path)
    assert next(pairs) == Pair("a", "b")
    with pytest.raises(DataError, match="line 2"):
        next(pairs)
    assert list(pairs) == []


# --- streaming


def rows(name: str, count: int) -> bytes:
    """Return a file of many pairs, far larger than what a reader may hold."""
    return WRITERS[name]([Pair(f"source text number {i} " * 5, f"target text number {i} " * 5) for i in range(count)])


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl", "hf.jsonl", "a.tmx", "a.xlf", "a.xliff"])
def test_memory_does_not_grow_with_the_file(name: str, tmp_path: Path) -> None:
    """A compressed file passes through less memory than it has bytes; most of it belongs to expat and zlib."""
    path = tmp_path / f"{name}.gz"
    content = rows(name, 3_000)
    path.write_bytes(gzip.compress(content, compresslevel=1))
    assert len(content) > 700_000
    tracemalloc.start()
    count = sum(1 for _ in read_pairs(path, languages=LANGUAGES))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert count == 3_000
    assert peak < 400_000


def test_the_first_pair_needs_the_first_lines_only(tmp_path: Path) -> None:
    """The end of the file is damaged, and nobody notices before it is reached."""
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(rows("a.tsv", 5_000))[:-8])
    pairs = read_pairs(path)

    assert next(pairs).source.startswith("source text number 0")
    with pytest.raises(DataError, match="line 5001: the compressed data ends too early"):
        list(pairs)


def test_a_huge_line_is_not_held_in_memory(tmp_path: Path) -> None:
    """32 MiB in one line, from 32 KiB on disk, are counted and thrown away."""
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(b"x" * (32 << 20), compresslevel=1))
    tracemalloc.start()
    with pytest.raises(DataError, match="line 1: 33,554,432 bytes; at most 1,048,576 are allowed"):
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 8 << 20


def test_reading_tables_needs_no_other_library() -> None:
    """An environment for export has no polib, and nothing here needs torch."""
    code = "import sys, dragoman.model.readers; print({'polib', 'torch', 'lxml'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install."""
    (tmp_path / "a.po").write_text('msgid "a"\nmsgstr "b"\n')
    monkeypatch.delitem(sys.modules, "dragoman.model.readers.po", raising=False)
    monkeypatch.setitem(sys.modules, "polib", None)
    with pytest.raises(DataError, match=r"a\.po: reading \.po files needs polib; install 'dragoman\[train\]'"):
        read_pairs(tmp_path / "a.po")
