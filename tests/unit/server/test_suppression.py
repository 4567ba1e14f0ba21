"""Words that may not appear become the tokens that write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.export import bundle
from dragoman.model.tokenizers import SymbolSide, SymbolTokenizer, Tokenizer
from dragoman.model.vocab import SpecialIds
from dragoman.server.suppression import Suppressor, target_ids

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return bundle.load_tokenizer(DATA / "tiny-v1", bundle.load_manifest(DATA / "tiny-v1"))


def written(tokenizer: Tokenizer, sequence: tuple[int, ...]) -> str:
    return b"".join(map(tokenizer.piece_bytes, sequence)).decode()


@pytest.mark.parametrize("text", ["hundert", "zwei", "ein hundert", "ü", "日本", "👩‍👧", "."])
def test_a_text_is_found_at_the_start_of_a_word_and_inside_one(tokenizer: Tokenizer, text: str) -> None:
    """Every sequence writes exactly the text, with or without the space in front; both ways are there."""
    sequences = Suppressor(tokenizer).sequences([text])

    assert {written(tokenizer, sequence) for sequence in sequences} == {text, f" {text}"}
    assert len(set(sequences)) == len(sequences)


@pytest.mark.parametrize("context", ["{}", "ein {}", "(.{}", "ein .{}"])
def test_what_the_tokenizer_makes_of_a_word_in_a_text_is_suppressed(tokenizer: Tokenizer, context: str) -> None:
    """At the beginning, behind a space, behind a sign."""
    ids = target_ids(tokenizer, context.format("hundert"))

    assert any(
        tuple(ids[start : start + len(sequence)]) == sequence
        for sequence in Suppressor(tokenizer).sequences(["hundert"])
        for start in range(len(ids))
    )


def test_blank_and_unwritable_texts_suppress_nothing(tokenizer: Tokenizer) -> None:
    """No tokens write them; EOS and special ids are never among what is suppressed."""
    manifest = bundle.load_manifest(DATA / "tiny-v2")
    without_bytes = bundle.load_tokenizer(DATA / "tiny-v2", manifest)

    assert Suppressor(tokenizer).sequences([]) == ()
    assert Suppressor(without_bytes).sequences(["\U0001f600"]) == ()
    special = {*tokenizer.special.never_generated, tokenizer.special.eos}
    texts = ["</s>", "<pad>", "\u2581", " ", "\n"]
    assert not any(special & set(sequence) for sequence in Suppressor(tokenizer).sequences(texts))


def test_words_without_spaces_of_their_own_have_one_way() -> None:
    """Where the tokenizer puts the spaces, a word is the same everywhere."""
    side = SymbolSide(("<pad>", "<unk>", "<s>", "</s>", "eins", "zwei"), "words", unk=1)

    assert Suppressor(SymbolTokenizer(side, SpecialIds())).sequences(["zwei", "zwei eins"]) == ((5,), (5, 4))


def test_target_ids_are_those_of_the_text_alone(tokenizer: Tokenizer) -> None:
    """What frames a target is neither suppressed nor a prefix."""
    framed = SymbolSide(("<pad>", "<unk>", "<s>", "</s>", "a"), "characters", unk=1, before=(2,), after=(3,))

    assert target_ids(SymbolTokenizer(framed, SpecialIds()), "aa") == [4, 4]
    assert target_ids(tokenizer, "zwei") == tokenizer.encode("zwei")[:-1]
    assert target_ids(tokenizer, "") == []
