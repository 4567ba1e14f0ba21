"""Cleaning rules, sentence splitting and pairing of sentences."""

from __future__ import annotations

import pytest

from dragoman.model.corpus.clean import (
    count_words,
    match_key,
    normalise,
    rejection,
    sentence_pairs,
    split_sentences,
)
from dragoman.model.corpus.errors import UnknownPairError
from dragoman.model.corpus.languages import PAIRS, target_language

GERMAN = target_language("en-de")
CHINESE = target_language("en-zh-CN")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("Press <b>Enter</b> &amp; wait", "Press Enter & wait"),
        ("  one\ttwo\n three ", "one two three"),
        ("soft\u00adhyphen and\u200b zero width", "softhyphen and zero width"),
        ("bell\x07 and escape\x1b", "bell and escape"),
        ("3.1. Getting started", "Getting started"),
        ("Abbildung 2.4. Das Fenster", "Das Fenster"),
        ("* an item", "an item"),
        ("u\u0308ber", "über"),
    ],
)
def test_normalise_removes_what_is_not_text(raw: str, expected: str) -> None:
    """Markup, control characters, numbering and repeated space are removed."""
    assert normalise(raw) == expected


def test_normalised_text_fits_a_tab_separated_file() -> None:
    """No tab or line separator of any kind survives, or lines would break."""
    text = normalise("a\tb\nc\rd\x0be\x0cf\x1cg\x85h\u2028i\u2029j")

    assert text == "a b c d e f g h i j"


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("Open the file.", "Öffnen Sie die Datei.", None),
        ("", "Leer", "empty"),
        ("Backup", "backup", "identical"),
        ("A broken word", "Ein kaputtes\ufffd Wort", "broken_encoding"),
        ("int main(void) {", "int main(void) { /* deutsch */", "code"),
        ("# apt install foo", "# apt installieren foo", "code"),
        ("Added in Linux 2.6.12", "Seit Linux 2.6.21", "numbers_differ"),
        ("-- 1 2 ++ x", "-- 1 2 ++ y", "few_letters"),
        ("word " * 101, "Wort " * 101, "too_long"),
        ("Set {a} to {b} or {c} now", "Setze {a} auf {b} oder jetzt {c} dort", "placeholders"),
        ("This text is about thirty long", "Kurz", "length_ratio"),
        ("The size of the cache is shown here.", "The size of the Cache is shown for you.", "untranslated"),
    ],
)
def test_rejection_names_the_rule(source: str, target: str, reason: str | None) -> None:
    """Each cleaning rule rejects its own kind of bad pair and passes a good one."""
    assert rejection(source, target, GERMAN) == reason


def test_numbers_may_be_written_differently() -> None:
    """Digit grouping is a matter of language, not a difference in numbers."""
    assert rejection("At most 10,000 files are kept.", "Höchstens 10.000 Dateien bleiben.", GERMAN) is None


def test_chinese_target_needs_chinese_characters() -> None:
    """A target in Latin letters is no Chinese translation."""
    assert rejection("Open the file", "Open the File now", CHINESE) == "empty"
    assert rejection("Open the file", "打开文件", CHINESE) is None


def test_split_sentences_at_sentence_ends() -> None:
    """A sentence ends at final punctuation before a capital; quotes stay with it."""
    text = 'It said "Stop." Then it stopped! Why? Version 2.0 is better.'

    assert split_sentences(text) == ['It said "Stop."', "Then it stopped!", "Why?", "Version 2.0 is better."]


@pytest.mark.parametrize(
    "text", ["Use e.g. Debian for it.", "Das ist z.B. Debian usw. Wort.", "Siehe Nr. 5 von J. Doe."]
)
def test_abbreviations_end_no_sentence(text: str) -> None:
    """A full stop of an abbreviation or initial does not split."""
    assert split_sentences(text) == [text]


def test_split_chinese_without_spaces() -> None:
    """Chinese sentences are split at their own punctuation."""
    assert split_sentences("打开文件。关闭文件。", is_cjk=True) == ["打开文件。", "关闭文件。"]


def test_sentence_pairs_need_equal_counts() -> None:
    """Sentences are paired only if both sides have as many; else the paragraph stays whole."""
    equal = list(sentence_pairs("Go on. Stop.", "Weiter so. Halt.", GERMAN))
    unequal = list(sentence_pairs("Go on. Stop.", "Weiter so und dann halt.", GERMAN))

    assert equal == [("Go on.", "Weiter so."), ("Stop.", "Halt.")]
    assert unequal == [("Go on. Stop.", "Weiter so und dann halt.")]


def test_sentence_pairs_need_similar_lengths() -> None:
    """Equal counts with crossed lengths mean that the sentences do not correspond."""
    source = "This first sentence is a good deal longer than the other. This one here is shorter."
    target = "Dieser hier ist kürzer. Dieser erste Satz ist hier auf jeden Fall ein gutes Stück länger als der andere."

    assert list(sentence_pairs(source, target, GERMAN)) == [(source, target)]


def test_match_key_ignores_case_spacing_and_punctuation() -> None:
    """Near-duplicates share a key, different words do not."""
    assert match_key("Open the file!") == match_key("open  the FILE") == "openthefile"
    assert match_key("Open the files") != match_key("Open the file")


def test_count_words_counts_letters_only() -> None:
    """Numbers and marks are not words; Chinese counts characters."""
    assert count_words("Add 2 apples - now") == 3
    assert count_words("打开 GIMP", is_cjk=True) == 2


def test_unknown_pair_lists_the_allowed_ones() -> None:
    """The message names every supported pair."""
    with pytest.raises(UnknownPairError, match="en-xx") as error:
        target_language("en-xx")

    assert all(pair in str(error.value) for pair in PAIRS)
