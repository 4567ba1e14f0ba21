"""Tokens that tell a model of several languages which ones are meant."""

from __future__ import annotations

import json

import pytest

from dragoman.model.languages import Languages, LanguageTokens

MANY = Languages(
    {"en": LanguageTokens(before_source=(100,)), "de": LanguageTokens(after_source=(101,))},
    {"fr": LanguageTokens(first_target=(200,)), "de": LanguageTokens(before_source=(7, 8))},
)


def test_tokens_stand_around_the_source() -> None:
    """The target's in front of the source's, both around the text and its EOS."""
    assert MANY.frame([5, 6, 3], "en", "fr") == [100, 5, 6, 3]
    assert MANY.frame([5, 6, 3], "de", "de") == [7, 8, 5, 6, 3, 101]
    assert MANY.first_target("fr") == (200,)
    assert MANY.longest_frame == 3


def test_a_pair_adds_nothing() -> None:
    """What most models are."""
    pair = Languages.pair("en", "de")

    assert pair.frame([5, 3], "en", "de") == [5, 3]
    assert list(pair.pairs()) == [("en", "de")]


def test_pairs_leave_out_a_language_with_itself() -> None:
    """Any source goes with any target."""
    assert set(MANY.pairs()) == {("en", "fr"), ("en", "de"), ("de", "fr")}


def test_an_unknown_language_is_an_error() -> None:
    """The service checks before it asks."""
    with pytest.raises(KeyError):
        MANY.frame([3], "en", "it")


def test_json_and_back() -> None:
    """As a manifest holds it."""
    assert Languages.from_dict(json.loads(json.dumps(MANY.to_dict()))) == MANY
