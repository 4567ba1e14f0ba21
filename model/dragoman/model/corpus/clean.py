"""Normalise text, split paragraphs into sentences, reject bad pairs.

Pure functions on strings. The rules are cautious in one direction: a good
pair may be lost, a bad pair should not pass, because a small model learns
noise as eagerly as language.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator

from dragoman.model.corpus.languages import ENGLISH_STOP_WORDS, Language

MAX_SOURCE_WORDS = 100
MAX_SOURCE_CHARS = 900
MAX_TARGET_CHARS = 1100
MIN_LETTER_SHARE = 0.6
# Shorter texts vary too much in length for a ratio to mean anything.
RATIO_MIN_CHARS = 20

_TAG = re.compile(r"</?[A-Za-z!][^<>]{0,200}>")
_SPACE = re.compile(r"\s+")
# Control characters other than white space, soft hyphens, zero-width marks.
_INVISIBLE = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u200b-\u200f\u2060\ufeff]")
_NUMBERING = re.compile(
    r"^(?:(?:Chapter|Figure|Table|Example|Kapitel|Abbildung|Tabelle|Beispiel|Chapitre|Tableau|"
    r"Exemple|Capítulo|Capitolo|Figura|Tabla|Tabella|Tabela|Ejemplo|Esempio|Exemplo|图|表|例|第)\s*)?"
    r"(?:[A-Z]\.)?\d+(?:\.\d+)*\.\s+"
)
_LEADING_MARK = re.compile(r"^[.,;:)]\s+")
_CODE = re.compile(r"[{};]$|^[#$>%]\s|^=\s?\w+\(|^[\w* ]*\w\([^()]*\)$|==|&&|\|\||->\w|\w\[\w*\]")
_NUMBER = re.compile(r"\d[\d.,\u00a0\u202f]*\d")
_PLACEHOLDER = re.compile(
    r"%\(\w+\)s|%(?:\d+\$)?[-+#0]*\d*(?:\.\d+)?(?:ll?|hh?|z)?[a-zA-Z]\b|%\d+|%[A-Z_]{4,}|"
    r"\$\{\w+\}|\$\(\w+\)|\$\w+|\{[\w.:]*\}"
)

_ABBREVIATIONS = (
    "bzw|usw|ca|vgl|evtl|ggf|Nr|Abb|Abs|Dr|Hr|Fr|St|etc|cf|vs|Mr|Mrs|Ms|Inc|Co|Ltd|"
    "Fig|No|ej|Sr|Sra|max|min|resp|incl|inkl|sog|engl|dt|Std|Min|Sek|Art|Pág|pág|núm|Núm|ecc|es"
)
_DOTTED = r"z\.\s?B|d\.\s?h|u\.\s?a|o\.\s?ä|i\.\s?d\.\s?R|e\.\s?g|i\.\s?e|p\.\s?ex"
# A full stop after one of these, an initial or a short number ends no sentence.
# A small letter may well end one (`the value of x.`), so `z. B.` with a space
# does split; the counts of the two sides then differ and the paragraph stays whole.
_NO_END = re.compile(rf"\b(?:{_DOTTED}|{_ABBREVIATIONS}|[A-Z]|\d{{1,2}})\.$")
_END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+(?=[\"'“„«»(\[]?[A-ZÄÖÜÀÂÉÈÊËÎÏÔÙÛÇÁÍÓÚÑÌÒÃÕ¿¡0-9])")
_END_CJK = re.compile(r"(?<=[。！？])")


def normalise(text: str) -> str:
    """Return text with markup, invisible characters and numbering removed.

    The result has no tab, line break or repeated space, so it can be a field
    of a tab-separated file.
    """
    text = unicodedata.normalize("NFC", html.unescape(text) if "&" in text else text)
    text = _INVISIBLE.sub("", _TAG.sub("", text))
    text = _SPACE.sub(" ", text).strip(" *•·")
    return _LEADING_MARK.sub("", _NUMBERING.sub("", text)).strip()


def match_key(text: str) -> str:
    """Return the lower-cased letters and digits of a text.

    Two texts with one key differ only in case, spacing or punctuation; split
    and duplicate removal treat them as the same text.
    """
    return "".join(c for c in text.casefold() if c.isalnum())


def count_words(text: str, *, is_cjk: bool = False) -> int:
    """Count words with a letter in them, or CJK letters if `is_cjk`."""
    if is_cjk:
        return sum(1 for c in text if c.isalpha() and ord(c) > 0x2E7F)
    return sum(1 for word in text.split() if any(c.isalpha() for c in word))


def split_sentences(text: str, *, is_cjk: bool = False) -> list[str]:
    """Split a paragraph at sentence ends, keeping abbreviations together.

    Closing quotes that follow a sentence end stay with that sentence.
    """
    if is_cjk:
        return [part.strip() for part in _END_CJK.split(text) if part.strip()]
    sentences: list[str] = []
    start = 0
    for end in _END.finditer(text):
        stop = end.start() + len(end[0].rstrip())
        if _NO_END.search(text[start : end.start()]):
            continue
        sentences.append(text[start:stop].strip())
        start = end.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def sentence_pairs(source: str, target: str, language: Language) -> Iterator[tuple[str, str]]:
    """Yield the sentence pairs of an aligned paragraph.

    Sentences are paired only if both sides have as many and each pair has
    about the length ratio of the whole; otherwise the paragraph is one pair,
    which is longer but right.
    """
    sources = split_sentences(source)
    targets = split_sentences(target, is_cjk=language.is_cjk)
    if len(sources) == len(targets) > 1:
        ratio = len(target) / len(source)
        if all(len(s) < 25 or 0.5 < len(t) / len(s) / ratio < 2.0 for s, t in zip(sources, targets, strict=True)):
            yield from zip(sources, targets, strict=True)
            return
    yield source, target


def rejection(source: str, target: str, language: Language) -> str | None:
    """Return why a normalised pair is unfit, or None if it is fit."""
    if not source or not target:
        return "empty"
    if source.casefold() == target.casefold():
        return "identical"
    if "\ufffd" in source + target:
        return "broken_encoding"
    if _CODE.search(source):
        return "code"
    # Years, sizes and versions survive translation: a difference means that
    # the two sides are not a translation of each other.
    if _numbers(source) != _numbers(target):
        return "numbers_differ"
    if not (_mostly_letters(source) and _mostly_letters(target)):
        return "few_letters"
    source_words = count_words(source)
    target_words = count_words(target, is_cjk=language.is_cjk)
    if source_words < 1 or target_words < 1:
        return "empty"
    if source_words > MAX_SOURCE_WORDS or len(source) > MAX_SOURCE_CHARS or len(target) > MAX_TARGET_CHARS:
        return "too_long"
    if len(_PLACEHOLDER.findall(source)) > max(1, source_words // 3):
        return "placeholders"
    if _length_is_odd(source, target, language):
        return "length_ratio"
    if target_words >= 6 and _is_english(target, language):
        return "untranslated"
    return None


def _numbers(text: str) -> set[str]:
    return {re.sub(r"\D", "", number) for number in _NUMBER.findall(text)}


def _mostly_letters(text: str) -> bool:
    dense = _PLACEHOLDER.sub("", text).replace(" ", "")
    return bool(dense) and sum(c.isalpha() for c in dense) >= MIN_LETTER_SHARE * len(dense)


def _length_is_odd(source: str, target: str, language: Language) -> bool:
    if len(source) <= RATIO_MIN_CHARS:
        return len(target) > 4 * RATIO_MIN_CHARS
    low, high = (0.1, 1.2) if language.is_cjk else (0.45, 2.4)
    return not low <= len(target) / len(source) <= high


def _is_english(target: str, language: Language) -> bool:
    if language.is_cjk:
        return False  # count_words already asked for CJK letters
    tokens = [token.strip(".,;:!?()\"'").lower() for token in target.split()]
    english = sum(token in ENGLISH_STOP_WORDS for token in tokens)
    own = sum(token in language.stop_words for token in tokens)
    return english >= 2 and english > own
