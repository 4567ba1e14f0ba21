"""Codes of other libraries as BCP-47 tags."""

from __future__ import annotations

import pytest

from dragoman.model.importers.hf.fairseq_vocabulary import _M2M, _MBART
from dragoman.model.importers.language_tags import is_tag, language_tags, listing


@pytest.mark.parametrize(
    ("codes", "tags"),
    [
        (["eng_Latn", "deu_Latn", "zho_Hans", "zho_Hant"], ["en", "de", "zh-Hans", "zh-Hant"]),
        (["zho_Hans"], ["zh"]),
        (["kas_Arab", "kas_Deva", "ace_Latn", "ace_Arab"], ["ks-Arab", "ks-Deva", "ace-Latn", "ace-Arab"]),
        (["arb_Arab", "ary_Arab", "pes_Arab", "prs_Arab"], ["ar", "ary", "fa", "prs"]),
        (["de_DE", "en_XX", "pt_XX", "zh_CN"], ["de", "en", "pt", "zh"]),
        (["pt_BR", "pt_PT"], ["pt-BR", "pt-PT"]),
        (["por", "pt_br"], ["pt", "pt-BR"]),
        (["srp_Latn", "srp_Cyrl", "srp"], ["sr-Latn", "sr-Cyrl", "sr"]),
        (["fr", "fra"], ["fr", "fra"]),
        (["fra", "fr", "fr_FR"], ["fra", "fr", "fr-FR"]),
        (["ns", "ast", "gmw", "ceb"], ["nso", "ast", "gmw", "ceb"]),
    ],
)
def test_tags_say_what_is_needed_to_tell_languages_apart(codes: list[str], tags: list[str]) -> None:
    """Script and region only where the language alone would not do."""
    assert list(language_tags(codes).values()) == tags
    assert list(language_tags(codes)) == codes


@pytest.mark.parametrize("codes", [*_M2M.values(), *_MBART.values()])
def test_every_code_of_a_family_has_a_tag_of_its_own(codes: str) -> None:
    """As short as it can be."""
    tags = language_tags(codes.split())

    assert len(set(tags.values())) == len(codes.split())
    assert all(is_tag(tag) and len(tag) <= 3 for tag in tags.values())


def test_what_a_tag_is() -> None:
    """Letters and digits, joined by hyphens."""
    assert [is_tag(text) for text in ("en", "zh-Hans", "", "de_DE", "-", "a b")] == [True, True, *[False] * 4]


def test_a_listing_is_not_too_long() -> None:
    """Of 30 tags it shows 20."""
    assert listing(["b", "a"]) == "a, b"
    assert listing([f"x{i:02}" for i in range(30)]).endswith("x19 and 10 more")
