"""The same pairs in every format that training reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from xml.sax.saxutils import escape

import polib

from dragoman.model.readers import Pair

PAIRS = [
    Pair("Open the file.", "Öffnen Sie die Datei."),
    Pair('A "quoted" path: C:\\new & <b>bold</b>', "Ein „zitierter“ Pfad: C:\\neu & <b>fett</b>"),
    Pair("one two three", "eins zwei drei"),
    Pair("100 % of \U0001f600", "100 % von \U0001f600"),
]


def tsv(pairs: list[Pair]) -> bytes:
    return "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs).encode()


def jsonl(pairs: list[Pair]) -> bytes:
    return "".join(json.dumps({"source": p.source, "target": p.target, "id": 7}) + "\n" for p in pairs).encode()


def hugging_face(pairs: list[Pair]) -> bytes:
    return "".join(
        json.dumps({"id": "7", "translation": {"de": p.target, "en": p.source}}, ensure_ascii=False) + "\n"
        for p in pairs
    ).encode()


def catalog(pairs: list[Pair]) -> polib.POFile:
    file = polib.POFile()
    file.metadata = {"Content-Type": "text/plain; charset=UTF-8", "Language": "de"}
    file.extend([polib.POEntry(msgid=p.source, msgstr=p.target, occurrences=[("a.c", "1")]) for p in pairs])
    return file


def po(pairs: list[Pair]) -> bytes:
    return str(catalog(pairs)).encode()


def mo(pairs: list[Pair]) -> bytes:
    return catalog(pairs).to_binary()


def tmx(pairs: list[Pair]) -> bytes:
    units = "".join(
        f"<tu tuid='{i}'><prop type='x'>note</prop><tuv xml:lang='fr'><seg>non</seg></tuv>"
        f"<tuv xml:lang='de-DE'><seg>{escape(p.target)}</seg></tuv>\n"
        f"<tuv xml:lang='EN-US'><seg>{escape(p.source)}</seg></tuv></tu>\n"
        for i, p in enumerate(pairs)
    )
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n'
        f'<tmx version="1.4"><header srclang="en"/><body>\n{units}</body></tmx>'
    ).encode()


def xliff1(pairs: list[Pair]) -> bytes:
    units = "".join(
        f"<trans-unit id='{i}'><source>{escape(p.source)}</source><target>{escape(p.target)}</target>"
        "<alt-trans><source>no</source><target>nein</target></alt-trans></trans-unit>\n"
        for i, p in enumerate(pairs)
    )
    return (
        '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">'
        '<file original="a.c" source-language="en-US" target-language="de"><header/>'
        f"<body><group>{units}</group></body></file></xliff>"
    ).encode()


def xliff2(pairs: list[Pair]) -> bytes:
    units = "".join(
        f"<unit id='{i}'><segment state='translated'><source>{escape(p.source)}</source>"
        f"<target>{escape(p.target)}</target></segment><ignorable><source> </source></ignorable></unit>\n"
        for i, p in enumerate(pairs)
    )
    return (
        '<xliff version="2.0" srcLang="en" trgLang="de-AT" xmlns="urn:oasis:names:tc:xliff:document:2.0">'
        f"<file id='f'>{units}</file></xliff>"
    ).encode()


WRITERS: dict[str, Callable[[list[Pair]], bytes]] = {
    "a.tsv": tsv, "a.jsonl": jsonl, "hf.jsonl": hugging_face, "a.po": po, "a.pot": po, "a.mo": mo, "a.tmx": tmx,
    "a.xlf": xliff1, "a.xliff": xliff2,
}  # fmt: skip
"""File name and writer; a .mo file has its entries sorted."""
