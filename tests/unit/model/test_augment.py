"""Altered training pairs stay right translations, and come out the same for the same seed."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.model.augment import augment
from dragoman.model.config import ModelConfig
from dragoman.model.data import Example, TrainingData
from dragoman.model.errors import ConfigError, TrainingError
from dragoman.model.generated import examples
from dragoman.model.lengths import LengthLimits
from dragoman.model.readers import Pair
from dragoman.model.recipe import Augmentation, TrainConfig
from dragoman.model.tokenizers import SentencePieceTokenizer, Tokenizer, train_tokenizer

PAIR = Pair("Open the file on page 12 of GNOME's guide.", "Öffnen Sie die Datei auf Seite 12 der Anleitung.", "help")
PAIRS = [Pair(e.source, e.target, e.kind) for e in itertools.islice(examples(seed=3), 300)]


@pytest.fixture(scope="module")
def tokenizer() -> SentencePieceTokenizer:
    return train_tokenizer((text for pair in PAIRS for text in (pair.source, pair.target)), 330)


def altered(pair: Pair = PAIR, seed: int = 0, **shares: float) -> Pair:
    return augment(pair, Augmentation(**shares), random.Random(seed))


def test_nothing_is_altered_by_default() -> None:
    """All shares are 0."""
    assert altered() == PAIR


def test_capitals_are_on_both_sides() -> None:
    """Umlauts included."""
    found = altered(capitals=1.0)

    assert found.source == "OPEN THE FILE ON PAGE 12 OF GNOME'S GUIDE."
    assert found.target == "ÖFFNEN SIE DIE DATEI AUF SEITE 12 DER ANLEITUNG."


def test_title_and_lower_case_change_the_source_alone() -> None:
    """German has neither in headlines."""
    assert altered(title=1.0).source == "Open The File On Page 12 Of GNOME's Guide."
    assert altered(lower=1.0).source == "open the file on page 12 of gnome's guide."
    assert altered(title=1.0).target == altered(lower=1.0).target == PAIR.target


def test_numbers_change_together() -> None:
    """The same new number on both sides, of the same length."""
    found = altered(numbers=1.0)
    new = re.findall(r"\d+", found.source)

    assert new == re.findall(r"\d+", found.target)
    assert new != ["12"]
    assert len(new[0]) == 2


@pytest.mark.parametrize(
    "pair",
    [
        Pair("Take 22 of 33.", "Nimm zwanzig von 33."),
        Pair("Take 1 file.", "Nimm 1 Datei."),
        Pair("The 22nd file", "Die 22nd-Datei"),
    ],
    ids=["in words", "one of something", "ordinal"],
)
def test_numbers_that_cannot_be_exchanged_are_left_alone(pair: Pair) -> None:
    """Another number would ask for other words beside it."""
    assert altered(pair, numbers=1.0) == pair


@given(st.integers(0, 2**32))
def test_a_copied_token_is_the_same_on_both_sides(seed: int) -> None:
    """At the same place; the words of the pair stay."""
    found = altered(seed=seed, copies=1.0)
    added = [
        set(text.split()) - set(old.split()) for text, old in ((found.source, PAIR.source), (found.target, PAIR.target))
    ]

    assert {word.rstrip(".") for word in added[0]} - {"guide"} == {word.rstrip(".") for word in added[1]} - {
        "Anleitung"
    }
    assert set(PAIR.source.rstrip(".").split()) <= {word.rstrip(".") for word in found.source.split()} | {"GNOME's"}
    assert len(found.source) > len(PAIR.source)


@given(st.integers(0, 2**32))
def test_a_lone_copy_is_its_own_translation(seed: int) -> None:
    """One word without spaces."""
    found = altered(seed=seed, lone_copies=1.0)

    assert found.source == found.target
    assert len(found.source.split()) == 1


def test_shares_are_met() -> None:
    """About as many pairs are altered as asked for."""
    generator = random.Random(1)
    shares = Augmentation(capitals=0.2, lower=0.1)
    found = [augment(PAIR, shares, generator) for _ in range(2000)]

    assert sum(pair.target.isupper() for pair in found) / 2000 == pytest.approx(0.2, abs=0.03)
    assert sum(pair.source.islower() for pair in found) / 2000 == pytest.approx(0.1, abs=0.03)


def test_a_share_beyond_one_is_refused() -> None:
    """With its name."""
    with pytest.raises(ConfigError, match="capitals is 4; it must be in"):
        Augmentation(capitals=4)
    with pytest.raises(ConfigError, match="exclude each other"):
        Augmentation(capitals=0.5, lower=0.6)


def batches(tokenizer: Tokenizer, config: TrainConfig, epoch: int = 0, **start: int) -> list[list[Example]]:
    data = TrainingData(lambda: iter(PAIRS), tokenizer, config)
    return [batch for _, _, batch in data.batches(epoch=epoch, limits=LengthLimits(60, 60), **start)]


@pytest.mark.parametrize("shuffle", [40, 100, 1000])
def test_streamed_data_is_complete(tokenizer: Tokenizer, shuffle: int) -> None:
    """Each pair once per epoch, whatever the size of the chunks; and the order depends on the epoch."""
    config = TrainConfig(batch_tokens=200, max_steps=1, shuffle_pairs=shuffle)
    found = batches(tokenizer, config)

    assert sorted(e.source for batch in found for e in batch) == sorted(
        tuple(tokenizer.encode(p.source)) for p in PAIRS
    )
    assert found == batches(tokenizer, config)
    assert found != batches(tokenizer, config, epoch=1)


def test_a_streamed_corpus_is_not_held_in_memory(tokenizer: SentencePieceTokenizer) -> None:
    """Over a whole epoch one chunk of pairs is alive, and the one behind it."""

    class Counted(str):
        alive = 0

        def __new__(cls, text: str) -> Counted:
            Counted.alive += 1
            return super().__new__(cls, text)

        def __del__(self) -> None:
            Counted.alive -= 1

    def read() -> Iterator[Pair]:
        return (Pair(Counted(pair.source), pair.target) for pair in PAIRS)

    data = TrainingData(read, tokenizer, TrainConfig(batch_tokens=200, max_steps=1, shuffle_pairs=50))
    most = max(Counted.alive for _ in data.batches(epoch=0, limits=LengthLimits(60, 60)))

    assert 50 <= most <= 52


def test_a_share_of_an_origin_that_is_not_there_is_an_error(tokenizer: SentencePieceTokenizer) -> None:
    """A misspelt origin would silently be taken whole."""
    with pytest.raises(TrainingError, match=r"names \['dates'\].*'amount', 'date', 'number'"):
        batches(tokenizer, TrainConfig(max_steps=1, origin_shares={"dates": 0.5}))


@pytest.mark.parametrize("shuffle", [70, 1000])
def test_a_position_is_where_the_rest_begins(tokenizer: Tokenizer, shuffle: int) -> None:
    """Altered text and BPE dropout included: what a resumed run sees."""
    shares = Augmentation(capitals=0.3, copies=0.3, numbers=0.3, bpe_dropout=0.1)
    config = TrainConfig(batch_tokens=200, max_steps=1, shuffle_pairs=shuffle, augmentation=shares)
    data = TrainingData(lambda: iter(PAIRS), tokenizer, config)
    everything = list(data.batches(epoch=2, limits=LengthLimits(60, 60)))
    for chunk, batch, _ in (everything[1], everything[-1]):
        fresh = TrainingData(lambda: iter(PAIRS), tokenizer, config)
        rest = list(fresh.batches(epoch=2, limits=LengthLimits(60, 60), chunk=chunk, batch=batch))
        assert rest == [entry for entry in everything if entry[:2] >= (chunk, batch)]


def test_an_origin_can_be_taken_in_part(tokenizer: SentencePieceTokenizer) -> None:
    """A share of one origin, drawn anew in each epoch; the others whole."""
    config = TrainConfig(batch_tokens=200, max_steps=1, origin_shares={"date": 0.5})
    dates = {tuple(tokenizer.encode(pair.source)) for pair in PAIRS if pair.origin == "date"}
    others = {tuple(tokenizer.encode(pair.source)) for pair in PAIRS if pair.origin != "date"}
    taken = [{e.source for batch in batches(tokenizer, config, epoch) for e in batch} for epoch in range(2)]

    for sources in taken:
        assert sources - dates == others
        assert 0.3 < len(sources & dates) / len(dates) < 0.7
    assert taken[0] != taken[1]


def test_bpe_dropout_splits_words_in_other_ways(tokenizer: SentencePieceTokenizer) -> None:
    """The text stays the same."""
    text = PAIRS[0].source
    generator = random.Random(1)
    found = {tuple(tokenizer.encode_with_dropout(text, 0.5, generator)) for _ in range(20)}

    assert len(found) > 5
    assert {tokenizer.decode(ids) for ids in found} == {text}


def test_digits_and_user_symbols_are_pieces_of_their_own() -> None:
    """So that a number is copied digit by digit and a tag is never torn."""
    texts = [f"{pair.source} 1234 <b>" for pair in PAIRS]
    split = train_tokenizer(texts, 330, split_digits=True, user_symbols=["<b>"])
    pieces = [split.piece_bytes(i).decode() for i in split.encode("1234 <b>bold")]

    assert [piece for piece in pieces if piece.isdigit()] == ["1", "2", "3", "4"]
    assert "<b>" in pieces
    assert ModelConfig(vocab_size=split.vocab_size).vocab_size == 330
