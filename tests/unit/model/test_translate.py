"""Batches of texts: limits, tokens of languages around them, and which languages are meant."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dragoman.model.errors import ConfigError
from dragoman.model.languages import Languages, LanguageTokens
from dragoman.model.samples import Ending
from dragoman.model.translate import choose_languages, translate_all
from tests.fakes.bundles import tiny_tokenizer

MANY = Languages(
    {tag: LanguageTokens(before_source=(number,)) for number, tag in enumerate(("en", "de", "pt-BR"), 320)},
    {tag: LanguageTokens(after_source=(number,)) for number, tag in enumerate(("en", "de", "zh"), 325)},
)


def test_tokens_of_languages_stand_around_every_source() -> None:
    """They count for the limit of the model, not for the limit on new tokens, and not in the message."""
    tokenizer, seen = tiny_tokenizer(), {}

    def search(sources: Sequence[Sequence[int]], limits: Sequence[int]) -> list[list[int]]:
        seen.update({tuple(source): limit for source, limit in zip(sources, limits, strict=True)})
        return [list(source[1:-1]) for source in sources]

    fitting, long = "one two", "one two three four five six"
    ids = tokenizer.encode(fitting)
    outputs = translate_all(
        search,
        tokenizer,
        [fitting, long, ""],
        max_source_tokens=len(ids) + 2,
        max_new_tokens=lambda tokens: 100 + tokens,
        frame=lambda source: MANY.frame(source, "de", "zh"),
    )

    assert seen == {(321, *ids, 327): 100 + len(ids)}
    assert [output.ending for output in outputs] == [Ending.EOS, Ending.REFUSED, Ending.EOS]
    assert outputs[0].text == fitting
    assert outputs[1].reason == f"{len(tokenizer.encode(long)) - 1} tokens, the limit is {len(ids) - 1}"


@pytest.mark.parametrize(
    ("default", "given", "chosen"),
    [
        (("en", "de"), ("", ""), ("en", "de")),
        (("en", "de"), ("de", "en"), ("de", "en")),
        (("", ""), ("EN-gb", "zh-Hans-CN"), ("en", "zh")),
        (("", "zh"), ("pt-br", ""), ("pt-BR", "zh")),
    ],
)
def test_languages_are_chosen_as_the_server_does(
    default: tuple[str, str], given: tuple[str, str], chosen: tuple[str, str]
) -> None:
    """Whatever the case; a narrower tag is fine, none is the default."""
    assert choose_languages(MANY, default, *given) == chosen


def test_a_pair_need_not_be_chosen() -> None:
    """Also where it has no names."""
    assert choose_languages(Languages.pair("en", "de"), ("en", "de"), "", "") == ("en", "de")
    assert choose_languages(Languages.pair("", ""), ("", ""), "", "") == ("", "")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("", "de"), "the model has no default source language; give --source-language with one of its own: de, en"),
        (("en", "pt"), "'pt' is not a target language of the model; give --target-language with .*: de, en, zh$"),
        (("pt", "en"), "'pt' is not a source language of the model"),  # only a narrower tag is translated
    ],
)
def test_a_language_that_cannot_be_chosen_is_refused(given: tuple[str, str], message: str) -> None:
    """With what the model has."""
    with pytest.raises(ConfigError, match=message):
        choose_languages(MANY, ("", ""), *given)
