"""What cannot be read: the message says file, place and reason, and never a text."""

from __future__ import annotations

import gzip
import random
import re
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest

from dragoman.model.errors import DataError
from dragoman.model.readers import Pair, read_pairs
from dragoman.model.readers.record import MAX_RECORD_BYTES
from tests.fakes.parallel_texts import PAIRS, WRITERS, mo, tmx, xliff1, xliff2

LANGUAGES = ("en", "de")
HUGE = b"x" * (MAX_RECORD_BYTES + 1)


@dataclass(frozen=True)
class Bad:
    """A file that cannot be read.

    Attributes:
        name: Of the file.
        content: Of the file.
        message: Pattern of what the error says after the file's name.
        second: Content of a second file, whose name has a 2 behind.
        languages: Given to the reader.
    """

    name: str
    content: bytes
    message: str
    second: bytes | None = None
    languages: tuple[str, str] | None = LANGUAGES


def read(path: Path, second: Path | None = None, languages: tuple[str, str] | None = LANGUAGES) -> list[Pair]:
    return list(read_pairs(path, second=second, languages=languages))


def gz(content: bytes, cut: int = 0) -> bytes:
    packed = gzip.compress(content, mtime=0)
    return packed[: len(packed) - cut]


def damaged(content: bytes) -> bytes:
    packed = bytearray(gz(content))
    packed[-6] ^= 1  # the checksum
    return bytes(packed)


def line(number: int | str, reason: str) -> str:
    return rf": line {number}: {reason}"


NO_PAIRS = ": has no pairs"
CUT = r"the compressed data ends too early \(truncated gzip\); copy or compress the file again"
NO_GZIP = r"no gzip data, although the name ends in \.gz"
TOO_LONG = "1,048,577 bytes; at most 1,048,576 are allowed"

LINES = "".join(f"source {i}\ttarget {i}\n" for i in range(3)).encode()
TSV = [
    Bad("empty.tsv", b"", ": has no pairs; it is empty"),
    Bad("mark.tsv", b"\xef\xbb\xbf", line(1, r"1 column\(s\)")),
    Bad("one.tsv", b"a\tb\nno tab\n", line(2, r"1 column\(s\)\. Each line must be source<TAB>target")),
    Bad("four.tsv", b"a\tb\tc\td\n", line(1, r"4 column\(s\)")),
    Bad("source.tsv", b"\tb\n", line(1, r"empty side \(source\)")),
    Bad("target.tsv", b"a\t \xc2\xa0 \torigin\n", line(1, r"empty side \(target\)")),
    Bad("blank.tsv", b"a\tb\n\nc\td\n", line(2, r"1 column\(s\)")),
    Bad("latin1.tsv", b"a\tb\nc\t\xe4\n", line(2, "not UTF-8: byte 0xe4 at offset 6 of the file")),
    Bad("half.tsv", b"a\tb\nc\t\xe2\x82", line(2, "not UTF-8: byte 0xe2 at offset 6")),
    Bad("utf16.tsv", "a\tb\n".encode("utf-16"), ": UTF-16 text; convert it to UTF-8"),
    Bad("utf16le.tsv", "a\tb\n".encode("utf-16-le"), line(1, "holds a zero byte")),
    Bad("huge.tsv", b"a\tb\n" + HUGE * 2 + b"\nc\n", line(2, r"2,097,154 bytes; at most .*line 3: 1 col")),
    Bad("end.tsv", b"a\tb\n" + HUGE, line(2, TOO_LONG)),
    Bad("hidden.tsv", gz(b"a\tb\n"), ": gzip data; let the file's name end in .gz"),
    Bad("table.tsv", b"PK\x03\x04...", ": a zip archive or a spreadsheet; unpack it"),
    Bad("cut.tsv.gz", gz(LINES, cut=8), line(4, CUT)),
    Bad("head.tsv.gz", gz(LINES)[:5], line(1, CUT)),
    Bad("plain.tsv.gz", LINES, line(1, NO_GZIP)),
    Bad("checksum.tsv.gz", damaged(LINES), line(4, "the compressed data is damaged .*; copy or compress")),
    Bad("empty.tsv.gz", gz(b""), ": has no pairs; it is empty"),
    Bad("huge.tsv.gz", gz(HUGE + b"\n"), line(1, TOO_LONG)),
    Bad("both.tsv.gz", gz(b"bad\n" + LINES, cut=4), line(1, r"1 column\(s\); line 5: the compressed data ends")),
]

OBJECT = b'{"source": "a", "target": "b"}\n'
HF = b'{"translation": {"en": "a", "de": "b"}}\n'
JSONL = [
    Bad("empty.jsonl", b"", NO_PAIRS),
    Bad("comma.jsonl", OBJECT + b'{"source": "a" "target": "b"}\n', line(2, "not JSON: Expecting .* at column 16")),
    Bad("open.jsonl", b'{"source": "a", "target": "b', line(1, "not JSON: Unterminated string.* at column 27")),
    Bad("blank.jsonl", OBJECT + b"\n" + OBJECT, line(2, "not JSON: Expecting value at column 1")),
    Bad("array.jsonl", b'["a", "b"]\n', line(1, "an array instead of an object. Each line must be")),
    Bad("text.jsonl", b'"a"\n', line(1, "a text instead of an object")),
    Bad("null.jsonl", b"null\n", line(1, "null instead of an object")),
    Bad("target.jsonl", b'{"source": "a"}\n', line(1, "lacks target")),
    Bad("neither.jsonl", b'{"src": "a"}\n', line(1, "lacks source and target")),
    Bad("number.jsonl", b'{"source": 1, "target": "b"}\n', line(1, '"source" is a number instead of a text')),
    Bad("bool.jsonl", b'{"source": "a", "target": true}\n', line(1, '"target" is true or false instead')),
    Bad("origin.jsonl", OBJECT.replace(b"}", b', "origin": ["c"]}'), line(1, '"origin" is an array instead')),
    Bad("side.jsonl", OBJECT.replace(b"b", b"\\n"), line(1, r"empty side \(target\)")),
    Bad("half.jsonl", b'{"source": "\\ud800", "target": "b"}', line(1, '"source" holds .*half a surrogate pair')),
    Bad("zero.jsonl", OBJECT.replace(b"b", b"\\u0000"), line(1, '"target" holds an escaped zero byte')),
    Bad("digits.jsonl", b'{"source": ' + b"1" * 5000 + b', "target": "b"}\n', line(1, '"source" is a number')),
    Bad("deep.jsonl", b"[" * 100_000 + b"\n", line(1, "not usable JSON: too many brackets")),
    Bad("latin1.jsonl", OBJECT + b'{"source": "\xe4"}\n', line(2, "not UTF-8: byte 0xe4 at offset 43")),
    Bad("huge.jsonl", OBJECT + HUGE, line(2, TOO_LONG)),
    Bad("hf.jsonl", HF * 9, line(1, r"holds texts by language; say which .*--source-language en"), languages=None),
    Bad("hffr.jsonl", HF.replace(b"de", b"fr"), line(1, '"translation" lacks en or de')),
    Bad("hflist.jsonl", b'{"translation": ["a", "b"]}\n', line(1, '"translation" is an array instead')),
    Bad("hftype.jsonl", HF.replace(b'"b"', b"null"), line(1, '"de" is null instead of a text')),
    Bad("cut.jsonl.gz", gz(OBJECT, cut=8), line(2, CUT)),
    Bad("plain.jsonl.gz", OBJECT, line(1, NO_GZIP)),
]

ALIGNED = "empty line. Line i of one file must be the translation"
TWO_FILES = [
    Bad("empty.en", b"", NO_PAIRS, b""),
    Bad("short.en", b"a\n", r": has 1 line\(s\), but \S+en2 has 3; both must have as many$", b"a\nb\nc\n"),
    Bad("long.en", b"a\nb\nc", r": has 3 line\(s\), but \S+en2 has 1", b"a\n"),
    Bad("none.en", b"a\n", r": has 1 line\(s\), but \S+en2 has 0", b""),
    Bad("blank.en", b"a\n\nc\n", line(2, ALIGNED), b"a\nb\nc\n"),
    Bad("blank2.en", b"a\nb\n", "2" + line(2, ALIGNED), b"a\n \n"),
    Bad("blanks.en", b"a\n\n", r": line 2: empty line; \S+en2: line 2: empty line", b"a\n\n"),
    Bad("latin1.en", b"a\n\xe4\n", line(2, "not UTF-8: byte 0xe4 at offset 2"), b"a\nb\n"),
    Bad("latin2.en", b"a\nb\n", "2" + line(2, "not UTF-8: byte 0xe4 at offset 2"), b"a\n\xe4\n"),
    Bad("huge.en", b"a\n" + HUGE, line(2, TOO_LONG), b"a\nb\n"),
    Bad("huge2.en", b"a\nb\n", "2" + line(2, TOO_LONG), b"a\n" + HUGE),
    Bad("utf16.en", b"a\n", "2: UTF-16 text", "a\n".encode("utf-16")),
    Bad("cut.en.gz", gz(b"a\nb\n", cut=8), line(3, CUT), b"a\nb\nc\n"),
    Bad("plain.en.gz", b"a\n", line(1, NO_GZIP), b"a\n"),
    Bad(
        "many.en",
        b"\n" * 9 + b"a\n",
        ": line 1: .*; and 4 more; has 10 .*, but .* has 9; both must have as many. Line",
        b"a\n" * 9,
    ),
    Bad("file.tsv", b"a\tb\n", r": a \.tsv file holds both sides; give it alone, or two text files", b"a\n"),
    Bad("file.po.gz", b"a\tb\n", r": a \.po file holds both sides", b"a\n"),
]

ENTRY = b'msgid "a"\nmsgstr "b"\n'
HEADER = b'msgid ""\nmsgstr "Content-Type: text/plain; charset=%s\\n"\n\n'
TEMPLATE = HEADER % b"CHARSET" + b'msgid "a"\nmsgstr ""\n\n#, fuzzy\nmsgid "b"\nmsgstr "c"\n'
SYNTAX = 'neither a comment nor a keyword with one text in "quotes". An entry is msgid'
GETTEXT_PO = [
    Bad("empty.po", b"", ": has no pairs; it is empty"),
    Bad("header.po", HEADER % b"UTF-8", NO_PAIRS),
    Bad("template.pot", TEMPLATE, ": has no pairs; its entries are 1 untranslated, 1 fuzzy"),
    Bad("prose.po", ENTRY + b"hello\n", line(3, SYNTAX)),
    Bad("open.po", b'msgid "a\nmsgstr "b"\n', line(1, SYNTAX)),
    Bad("close.po", b'msgid a"\nmsgstr "b"\n', line(1, SYNTAX)),
    Bad("inner.po", b'msgid "a"b"\nmsgstr "b"\n', line(1, SYNTAX)),
    Bad("escape.po", b'msgid "a\\"\nmsgstr "b"\n', line(1, SYNTAX)),
    Bad("keyword.po", ENTRY + b'msgtxt "a"\n', line(3, SYNTAX)),
    Bad("plural.po", b'msgid "a"\nmsgid_plural "c"\nmsgstr[x] "b"\n', line(3, "neither a comment")),
    Bad("obsolete.po", ENTRY + b'#~ msgid "a\n', line(3, SYNTAX)),
    Bad("order.po", b'msgstr "b"\nmsgid "a"\nmsgstr "c"\n', line(1, "out of order; an entry is msgctxt")),
    Bad("twice.po", b'msgid "a"\nmsgid "b"\nmsgstr "c"\n', line(2, "out of order")),
    Bad("loose.po", b'"a"\n', line(1, "out of order")),
    Bad("end.po", ENTRY + b'\nmsgid "c"\n', line(4, "the file ends in the middle of an entry, msgstr is missing")),
    Bad("latin1.po", b'msgid "a"\nmsgstr "\xe4"\n', line(2, "not UTF-8: byte 0xe4 at offset 18")),
    Bad("ascii.po", HEADER % b"US-ASCII" + b'msgid "a"\nmsgstr "\xe4"\n', line(5, "not US-ASCII: byte 0xe4")),
    Bad("charset.po", HEADER % b"KLINGON" + ENTRY, ": declares the charset 'KLINGON', which no text has"),
    Bad("codec.po", HEADER % b"hex" + ENTRY, ": declares the charset 'hex', which no text has"),
    Bad("zero.po", b'msgid "a\0"\nmsgstr "b"\n', line(1, "holds a zero byte")),
    Bad("huge.po", ENTRY + b'msgid "' + HUGE + b'"\n', line(3, "1,048,585 bytes; at most 1,048,576")),
    Bad("binary.po", mo(PAIRS), line(1, "not UTF-8: byte 0xde at offset 0")),
    Bad("cut.po.gz", gz(ENTRY, cut=8), line(3, CUT)),
    Bad("plain.po.gz", ENTRY, line(1, NO_GZIP)),
]

MO = mo(PAIRS)
MSGIDS, MSGSTRS = struct.unpack_from("<2I", MO, 12)
UMLAUT = MO.index("Ö".encode())


def patched(position: int, number: int) -> bytes:
    """Return a .mo file with another number of 4 bytes at a position."""
    return MO[:position] + struct.pack("<I", number) + MO[position + 4 :]


SHORT_TEXT = r"truncated: a text ends at byte \d+, the file at \d+"
GETTEXT_MO = [
    Bad("empty.mo", b"", ": has no pairs; it is empty"),
    Bad("magic.mo", b"\x7fELF" + MO[4:], ": starts with 7f454c46; a .mo file starts with de120495 or 950412de"),
    Bad("text.mo", ENTRY, ": starts with 6d736769; a .mo file"),
    Bad("tiny.mo", MO[:3], ": starts with de1204; a .mo file"),
    Bad("head.mo", MO[:20], ": truncated: 20 bytes, the header alone has 28"),
    Bad("tables.mo", MO[:40], r": truncated: 5 entries need \d+ bytes for their tables, it has 40"),
    Bad("texts.mo", MO[: MSGSTRS + 40], f": entry 1: {SHORT_TEXT}; entry 2: .*; entry 5"),
    Bad("last.mo", MO[:-9], rf": entry 5: {SHORT_TEXT}\. Make the file again"),
    Bad("revision.mo", patched(4, 7 << 16), ": format revision 7; 0 and 1 are known"),
    Bad("count.mo", patched(8, 1 << 31), ": truncated: 2147483648 entries need"),
    Bad("offset.mo", patched(12, 1 << 31), ": truncated: 5 entries need 2,147,483,688 bytes"),
    Bad("length.mo", patched(MSGIDS + 8, 1 << 19), ": entry 2: truncated: a text ends at byte"),
    Bad("long.mo", patched(MSGIDS + 8, 1 << 30), ": entry 2: a text of 1,073,741,824 bytes; at most 1,048,576"),
    Bad("bytes.mo", MO.replace("Ö".encode(), b"\xff."), rf": entry \d: not UTF-8: byte 0xff at offset {UMLAUT} of"),
    Bad("charset.mo", MO.replace(b"UTF-8", b"UTF-9"), ": declares the charset 'UTF-9', which no text has"),
    Bad("header.mo", mo([]), NO_PAIRS),
    Bad("blank.mo", mo([Pair("a", " ")]), ": has no pairs; its entries are 1 untranslated"),
    Bad("cut.mo.gz", gz(MO, cut=8), f": {CUT}"),
    Bad("plain.mo.gz", MO, f": {NO_GZIP}"),
]

DECLARES = line(1, r"its <!DOCTYPE ... \[...\]> declares entities or the like, which are not read: they can grow")
NOT_XML = r": line \d+: no well-formed XML:"
FEW = '<!ENTITY a "&b;"><!ENTITY b "&a;">'
# A billion "lol" from a kilobyte.
MANY = '<!ENTITY lol0 "lol">' + "".join(f'<!ENTITY lol{i + 1} "{f"&lol{i};" * 10}">' for i in range(9))
LONG_UNIT = rf": unit 1 \(line \d+\): longer than {MAX_RECORD_BYTES:,} bytes"


def xml_cases(root: str, good: bytes, suffix: str) -> list[Bad]:
    """Return what is wrong with XML of any kind.

    Args:
        root: The outermost element.
        good: A document; its first unit has the letter Ö.
        suffix: Of the files.
    """
    umlaut = "Ö".encode()
    at = good.index(umlaut)
    number = good[:at].count(b"\n") + 1
    body, end = good[good.index(f"<{root} ".encode()) :], f"</{root}>".encode()

    def declared(declarations: str, text: str = "") -> bytes:
        return f"<!DOCTYPE {root} [{declarations}]>\n<{root}>{text}</{root}>".encode()

    def encoded(name: str) -> bytes:
        return f'<?xml version="1.0" encoding="{name}"?>'.encode() + body

    external = f'<!DOCTYPE {root} SYSTEM "secret.txt">'.encode() + body.replace(umlaut, b"&Ouml;")
    files = {
        "empty": (b"", ": has no pairs; it is empty"),
        "blank": (b"\n\n", line(3, "no well-formed XML: no element found")),
        "prose": (b"hello\n", line(1, "no well-formed XML: syntax error at column 1")),
        "open": (good[: good.index(end)], line(r"\d+", f"the file ends before </{root}>; copy the file again")),
        "middle": (good[: at + 2], line(number, "the file ends before </(seg|target)>")),
        "mismatch": (good.replace(end, b"</wrong>"), rf"{NOT_XML} mismatched tag at column \d+"),
        "after": (good + b"<x/>", f"{NOT_XML} junk after document element"),
        "root": (b"<html><body/></html>", line(1, f"the outermost element is <html>; <{root}> is expected")),
        "ampersand": (good.replace(umlaut, b"& "), f"{NOT_XML} not well-formed"),
        "latin1": (
            good.replace(umlaut, b"\xd6"),
            line(number, f"not in the declared encoding: byte 0xd6 at offset {at} of the file"),
        ),
        "control": (good.replace(umlaut, b"\x01"), f"{NOT_XML} not well-formed"),
        "klingon": (encoded("klingon"), line(1, "unknown encoding: klingon; convert the file to UTF-8")),
        "gbk": (encoded("gbk"), line(1, "multi-byte encodings are not supported; convert")),
        "bomb": (declared(MANY, "&lol9;"), DECLARES),
        "attribute": (declared(MANY, '<x a="&lol9;"/>'), DECLARES),
        "loop": (declared(FEW, "&a;"), DECLARES),
        "file": (declared('<!ENTITY a SYSTEM "secret.txt">', "&a;"), DECLARES),
        "parameter": (declared('<!ENTITY % a SYSTEM "secret.txt"> %a;'), DECLARES),
        "default": (declared('<!ATTLIST x a CDATA "long">', "<x/>"), DECLARES),
        "external": (external, line(r"\d+", "&Ouml; is no entity of XML itself; write the character")),
        "undeclared": (body.replace(umlaut, b"&Ouml;"), f"{NOT_XML} undefined entity"),
        "huge": (good.replace(umlaut, HUGE), LONG_UNIT),
        "comment": (good.replace(umlaut, b"<!--" + HUGE), LONG_UNIT),
        "tag": (good.replace(end, b"<x a='" + HUGE), line(r"\d+", "longer than 1,048,576 bytes")),
        "deep": (good.replace(end, b"<x>" * 999), line(r"\d+", "more than 100 elements inside each other")),
        "none": (f"<{root} version='1.2'><body/></{root}>".encode(), NO_PAIRS),
    }
    packed = {
        f"cut.{suffix}.gz": (gz(good, cut=8), line(r"\d+", CUT)),
        f"plain.{suffix}.gz": (good, line(1, NO_GZIP)),
    }
    named = {f"{name}.{suffix}": file for name, file in files.items()} | packed
    return [Bad(name, content, message) for name, (content, message) in named.items()]


def tu(*variants: str) -> bytes:
    return f"<tmx><body>\n<tu>{''.join(variants)}</tu></body></tmx>".encode()


EN, DE = '<tuv xml:lang="en"><seg>a</seg></tuv>', '<tuv xml:lang="de"><seg>b</seg></tuv>'
NO_LANG = r"a <tuv> without xml:lang"
TMX = [
    *xml_cases("tmx", tmx(PAIRS), "tmx"),
    Bad("any.tmx", tmx(PAIRS), r": holds texts by language; say which .*--source-language en", languages=None),
    Bad("french.tmx", tu(EN, DE.replace("de", "fr")), r": has no pairs; .* 1 without en or de \(with en, fr\)"),
    Bad("alone.tmx", tu(EN), ": has no pairs; its entries are 1 without en or de"),
    Bad("bare.tmx", tu(), r": has no pairs; .* \(with no language\)"),
    Bad("lang.tmx", tu(EN, "<tuv><seg>b</seg></tuv>"), rf": unit 1 \(line 2\): {NO_LANG}. A unit is <tu> with"),
    Bad("seg.tmx", tu(EN, '<tuv xml:lang="de">b</tuv>'), r": unit 1 \(line 2\): the <tuv> of de has no <seg>"),
    Bad("spaces.tmx", tu(EN, DE.replace("b<", " <")), ": has no pairs; its entries are 1 untranslated"),
    Bad(
        "many.tmx", tu("<tuv/>" + "</tu><tu><tuv/>" * 6), rf": unit 1 .*; unit 5 \(line 2\): {NO_LANG}; and 2 more\. A"
    ),
]


def xliff(version: str, content: str, attributes: str = "") -> bytes:
    return f'<xliff version="{version}" {attributes}><file>\n{content}</file></xliff>'.encode()


SEGMENT = "<source>a</source><target>b</target>"
TARGET, SOURCE = "<target>b</target>", "<source>a</source>"
FRENCH = '<file source-language="en" target-language="fr"><trans-unit/></file>'
UNTRANSLATED = ": has no pairs; its entries are 1 untranslated"
XLIFF = [
    *xml_cases("xliff", xliff1(PAIRS), "xlf"),
    *xml_cases("xliff", xliff2(PAIRS), "xliff"),
    Bad(
        "source1.xlf",
        xliff("1.2", f"<trans-unit>{TARGET}</trans-unit>"),
        r": unit 1 \(line 2\): <trans-unit> without <source>. A unit has a <source>, and",
    ),
    Bad(
        "source2.xlf",
        xliff("2.1", f"<unit><segment>{TARGET}</segment></unit>"),
        r": unit 1 \(line 2\): <segment> without <source>",
    ),
    Bad("version.xlf", xliff("3.0", f"<unit>{SEGMENT}</unit>"), r": unit 1 .*: <unit> in XLIFF version '3.0'; 1.x"),
    Bad("mixed.xlf", xliff("1.2", f"<unit>{SEGMENT}</unit>"), ": unit 1 .*: <unit> in XLIFF version '1.2'"),
    Bad("versionless.xlf", b"<xliff><trans-unit/></xliff>", ": unit 1 .*: <trans-unit> in XLIFF version ''"),
    Bad("untranslated1.xlf", xliff("1.2", f"<trans-unit>{SOURCE}</trans-unit>"), UNTRANSLATED),
    Bad("untranslated2.xlf", xliff("2.0", f"<unit><segment>{SOURCE}</segment></unit>"), UNTRANSLATED),
    Bad("french1.xlf", xliff("1.2", FRENCH), r": unit 1 \(line 2\): is en to fr, but en to de is wanted"),
    Bad("french2.xlf", xliff("2.0", "<unit/>", 'srcLang="de" trgLang="en"'), ": unit 1 .*: is de to en, but en to de"),
]

OTHER = [
    Bad("a.csv", b"a,b\n", r": unknown format \.csv; allowed are \.tsv, \.jsonl, \.po, .*\.gz.*two text files"),
    Bad("a.json", OBJECT, r": unknown format \.json; allowed are"),
    Bad("corpus", b"a\tb\n", r": unknown format \(no suffix\); allowed are"),
    Bad("a.gz", gz(b"a\tb\n"), r": unknown format \(no suffix\); allowed are"),
    Bad("a.tsv.bz2", b"", r": unknown format \.bz2; allowed are"),
]


@pytest.mark.parametrize(
    "bad", TSV + JSONL + TWO_FILES + GETTEXT_PO + GETTEXT_MO + TMX + XLIFF + OTHER, ids=lambda bad: bad.name
)
def test_what_cannot_be_read_is_named(bad: Bad, tmp_path: Path) -> None:
    """The message holds the file, the place in it and the reason."""
    (tmp_path / "secret.txt").write_text("SECRET")
    path, second = tmp_path / bad.name, None
    path.write_bytes(bad.content)
    if bad.second is not None:
        second = tmp_path / f"{bad.name}2"
        second.write_bytes(bad.second)
    with pytest.raises(DataError) as error:
        read(path, second, bad.languages)

    message = str(error.value)
    assert re.search(re.escape(str(path)) + bad.message, message), message
    assert len(message.replace(str(tmp_path), "")) < 500
    assert "SECRET" not in message


@pytest.mark.parametrize("cases", [TSV, JSONL, TWO_FILES, GETTEXT_PO, GETTEXT_MO, TMX, XLIFF])
def test_there_are_many_bad_files_of_each_format(cases: list[Bad]) -> None:
    """Names are unique, so none hides another."""
    assert len({case.name for case in cases}) == len(cases) >= 10


def test_messages_quote_no_text(tmp_path: Path) -> None:
    """What somebody wants translated may be confidential."""
    texts = {
        "a.tsv": "PRIVATE\n",
        "a.jsonl": '{"source": "PRIVATE", "target": "PRIVATE" PRIVATE\n',
        "a.po": 'msgid "PRIVATE"\nmsgid "PRIVATE"\nPRIVATE\n',
        "a.tmx": "<tmx><tu>PRIVATE</tmx>",
        "a.xlf": "<xliff>PRIVATE & PRIVATE</xliff>",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError) as error:
            read(tmp_path / name)
        assert "PRIVATE" not in str(error.value)


@pytest.mark.parametrize("name", WRITERS)
def test_damage_of_any_kind_is_a_data_error(name: str, tmp_path: Path) -> None:
    """Files with random bytes changed or cut off are read or refused, and nothing else happens."""
    generator = random.Random(name)
    content = WRITERS[name](PAIRS)
    for i in range(60):
        changed = bytearray(content)
        for _ in range(generator.randint(0, 3)):
            changed[generator.randrange(len(changed))] = generator.choice([0, 10, 34, 38, 60, generator.randrange(256)])
        if i % 3 == 0:
            del changed[generator.randrange(len(changed)) :]
        path = tmp_path / (f"{i}{name}.gz" if i % 4 == 0 else f"{i}{name}")
        path.write_bytes(gz(bytes(changed)) if i % 4 == 0 else bytes(changed))
        try:
            pairs = read(path)
        except DataError:
            continue
        assert pairs
