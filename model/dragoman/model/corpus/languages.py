"""Supported language pairs and how Debian spells them.

One language has up to three spellings: `pt-br` in package names, `pt_BR` in
locale folders and `pt-BR` in help folders. They are kept here so that no
reader builds a name by string surgery.
"""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.model.corpus.errors import UnknownPairError

_ENGLISH = "the of and to is with for this that you are be from not in it"
ENGLISH_STOP_WORDS = frozenset(_ENGLISH.split())


@dataclass(frozen=True, slots=True)
class Language:
    """Describe a target language.

    Attributes:
        code: Language tag as used in pair names and help folders, e.g. `pt-BR`.
        locale: Spelling of locale folders and description fields, e.g. `pt_BR`.
        package_suffix: Spelling inside package names, e.g. `pt-br`.
        manual_packages: Packages with translated manual pages.
        stop_words: Frequent words, used to notice text left in English. Empty
            where words are not separated by spaces.
        is_cjk: Whether text is written without spaces between words.
    """

    code: str
    locale: str
    package_suffix: str
    manual_packages: tuple[str, ...]
    stop_words: frozenset[str]
    is_cjk: bool = False


def _spaced(code: str, locale: str, stop_words: str) -> Language:
    suffix = code.lower()
    return Language(
        code=code,
        locale=locale,
        package_suffix=suffix,
        manual_packages=(f"manpages-{suffix}", f"manpages-{suffix}-dev"),
        stop_words=frozenset(stop_words.split()),
    )


_LANGUAGES = (
    _spaced("de", "de", "der die das und ist nicht mit für ein eine den dem des zu von auf werden wird sie"),
    _spaced("fr", "fr", "le la les des de et est pas pour un une du que dans avec sur sont vous"),
    _spaced("es", "es", "el la los las de y es no para un una del que en con por son se"),
    _spaced("it", "it", "il la le i di e è non per un una del che in con sono si"),
    _spaced("pt-BR", "pt_BR", "o a os as de e é não para um uma do que em com por são se"),
    Language("zh-CN", "zh_CN", "zh-cn", ("manpages-zh",), frozenset(), is_cjk=True),
)

PAIRS: dict[str, Language] = {f"en-{language.code}": language for language in _LANGUAGES}


def target_language(pair: str) -> Language:
    """Return the target language of a pair such as `en-de`.

    Raises:
        UnknownPairError: The pair is not one of `PAIRS`.
    """
    if pair not in PAIRS:
        raise UnknownPairError(f"unknown language pair {pair!r}; choose one of {', '.join(PAIRS)}")
    return PAIRS[pair]
