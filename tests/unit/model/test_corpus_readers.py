"""Readers of package descriptions, help pages and the dictionary."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.model.corpus.ddtp import read_ddtp
from dragoman.model.corpus.ding import read_ding, read_words
from dragoman.model.corpus.gnomehelp import page_blocks, read_gnomehelp
from dragoman.model.corpus.lohelp import paragraphs, read_lohelp

ENGLISH_INDEX = """\
Package: tool
Description-md5: aaa1
Description-en: small tool
 It does one thing.  It does
 it well.
 .
 Features:
  * fast
  * small and
    simple

Package: other
Description-md5: bbb2
Description-en: other tool
 One paragraph.
 .
 Another paragraph.
"""
GERMAN_INDEX = """\
Package: tool
Description-md5: aaa1
Description-de: kleines Werkzeug
 Es kann genau eine Sache. Die kann
 es gut.
 .
 Merkmale:
  * schnell
  * klein und einfach

Package: other
Description-md5: bbb2
Description-de: anderes Werkzeug
 Nur ein Absatz.

Package: gone
Description-md5: ccc3
Description-de: ohne Original
 Text.
"""


def test_ddtp_joins_descriptions_by_checksum() -> None:
    """Titles always pair; paragraphs and list items pair if both sides have as many."""
    pairs = [(" ".join(s.split()), " ".join(t.split())) for s, t in read_ddtp([ENGLISH_INDEX], [GERMAN_INDEX], "de")]

    assert pairs == [
        ("small tool", "kleines Werkzeug"),
        ("It does one thing. It does it well.", "Es kann genau eine Sache. Die kann es gut."),
        ("Features:", "Merkmale:"),
        ("fast", "schnell"),
        ("small and simple", "klein und einfach"),
        ("other tool", "anderes Werkzeug"),
    ]


def test_lohelp_joins_paragraphs_by_id(tmp_path: Path) -> None:
    """Order does not matter, ids do; a page without translation is skipped."""
    english, german = tmp_path / "en", tmp_path / "de"
    english.mkdir()
    german.mkdir()
    (english / "a.html").write_text('<p id="p1">Open.</p><p id="p2">Close <b>it</b>.</p><p id="p3">New</p>', "utf-8")
    (german / "a.html").write_text('<p id="p2">Schließen.</p><p id="p1">Öffnen.</p>', "utf-8")
    (english / "b.html").write_text('<p id="p1">Lonely</p>', "utf-8")

    assert list(read_lohelp(english, german)) == [("Open.", "Öffnen."), ("Close it.", "Schließen.")]


def test_lohelp_skips_code_navigation_and_variants() -> None:
    """Only text a reader of the page sees as prose is taken; nested blocks are apart."""
    page = """<nav><p id="n">Menu</p></nav><pre id="c">code</pre>
        <span class="MAC"><p id="m">Command key</p></span>
        <ul><li id="l">Item<br>two<p id="p">inner</p></li></ul><p>no id</p>"""

    assert paragraphs(page) == {("li", "l"): ["Item two"], ("p", "p"): ["inner"]}


def test_gnomehelp_aligns_elements(tmp_path: Path) -> None:
    """Titles and paragraphs pair in document order, credits and code are skipped."""
    page = """<page xmlns="urn:x"><info><credit><title>{0}</title></credit><desc>{1}</desc></info>
        <title>{2}</title><screen><p>ls</p></screen><p>{3} <gui>X</gui></p></page>"""
    for folder, texts in (("C", ("me", "About", "Files", "Press")), ("de", ("ich", "Über", "Dateien", "Drücken"))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.page").write_text(page.format(*texts), "utf-8")

    pairs = list(read_gnomehelp(tmp_path / "C", tmp_path / "de"))

    assert pairs == [("About", "Über"), ("Files", "Dateien"), ("Press X", "Drücken X")]


def test_gnomehelp_survives_a_broken_page() -> None:
    """A page that is not well-formed gives no blocks instead of an error."""
    assert page_blocks(b"<page><p>open") == []


def test_ding_takes_full_sentences_only() -> None:
    """Dictionary entries and lines in shorthand are no test sentences."""
    lines = [
        "# comment :: comment\n",
        "Haus {n} | Das Haus ist sehr alt. :: house | The house is very old.\n",
        "jdm. etw. geben | Er hat etw. verloren heute. :: to give sth. to sb. | He has lost sth. today.\n",
        "Wir gehen [ugs.] jetzt nach Hause.; Wir gehen heim. :: We are going home now.; Home we go.\n",
        "Das geht/ginge so nicht. :: That will not do.\n",
        "eins | zwei :: one\n",
        "Komm schnell her! :: Come here!\n",
    ]

    assert list(read_ding(lines)) == [
        ("The house is very old.", "Das Haus ist sehr alt."),
        ("We are going home now.", "Wir gehen jetzt nach Hause."),
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # Annotations and abbreviations of either side.
        (
            "Tunesien {n} /TN/ [geogr.] | essen {vt} (zu Mittag) :: Tunisia | to eat {ate; eaten} [Br.]",
            [("Tunisia", "Tunesien"), ("to eat", "essen")],
        ),
        ("Regierung {f} [pol.] :: government /Gov.; Govt./; administration [Am.]", [("government", "Regierung")]),
        # As many synonyms on both sides pair up; otherwise only the first do.
        ("Lieferant {m}; Bote {m} :: supplier; messenger", [("supplier", "Lieferant"), ("messenger", "Bote")]),
        ("Ahle {f}; Pfriem {m} :: awl; stitching awl; bodkin", [("awl", "Ahle")]),
        # Items belong together only if there are as many.
        ("Rosenknospe {f} | Rosenknospen {pl} :: rosebud", []),
        # A plain object goes from both sides, other shorthand takes the phrase along.
        ("etw. einsammeln {vt} :: to collect sth.", [("to collect", "einsammeln")]),
        ("jdn./etw. streicheln :: to stroke sb./sth.", [("to stroke", "streicheln")]),
        ("jdm. etw. geben | bei jdm. auflegen :: to give sth. to sb. | to hang up on sb.", []),
        ("Handels… | das ~ | Tor/Tür | Mühle(n) | K9-Hund :: trade | the ~ | gate | mill | canine", []),
        ("daß [alt] :: that", []),
        ("ein sehr langes Wort von vielen hier :: a word", []),
        # Sentences belong to the test set; a short call is a phrase.
        ("Das Haus ist alt. | Das Haus ist sehr alt. :: The house is old. | The house is very old.", []),
        ("Guten Morgen! | Guten Tag! :: Good morning! | How do you do?", [("Good morning!", "Guten Morgen!")]),
        ("Hand {f} :: hand", [("hand", "Hand")]),
        ("# Version :: devel", []),
    ],
)
def test_ding_words_are_bare_pairs(line: str, expected: list[tuple[str, str]]) -> None:
    """Only what is a word or short phrase on both sides is taken, without notes."""
    assert list(read_words([line + "\n"])) == expected


def test_ding_words_have_one_translation_each() -> None:
    """The translation that goes with the source most often stays, of equals the first."""
    lines = [
        "Eisenbahnzug {m} :: train",
        "Zug {m}; Bahn {f} | ein langer Zug :: train; railway | a long train",
        "Strand {m} :: beach",
        "Ufer {n} :: beach",
        "Pferd {n} :: horse",
        "Gaul {m} [ugs.] :: horse",
    ]

    words = list(read_words(lines))

    assert words == list(dict(words).items())
    assert {word: dict(words)[word] for word in ("train", "beach", "horse")} == {
        "train": "Zug",
        "beach": "Strand",
        "horse": "Pferd",
    }


def test_ding_words_and_sentences_do_not_meet() -> None:
    """One line may hold both, and no pair is in both readings."""
    lines = ["Haus {n} | Das Haus ist sehr alt. :: house | The house is very old."]

    assert list(read_words(lines)) == [("house", "Haus")]
    assert list(read_ding(lines)) == [("The house is very old.", "Das Haus ist sehr alt.")]
