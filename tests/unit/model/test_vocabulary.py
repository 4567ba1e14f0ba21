"""The vocabulary of a new run: what goes wrong is said in words of the recipe and the data."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from dragoman.model.commands.vocabulary import train_vocabulary
from dragoman.model.errors import ConfigError, DataError, ModelError
from dragoman.model.generated import examples
from dragoman.model.readers import Pair
from dragoman.model.recipe import TokenizerConfig

PAIRS = [Pair(e.source, e.target) for e in itertools.islice(examples(seed=3), 300)]


def broken(error: BaseException) -> Iterator[Pair]:
    yield from PAIRS
    raise error


@pytest.mark.parametrize("error", [DataError("a.tsv: line 301: 1 column(s)"), KeyboardInterrupt(), SystemExit(143)])
def test_what_reading_raises_goes_through(error: BaseException) -> None:
    """As it is: SentencePiece would make "INTERNAL: DataError: ... At: file.py(12)" of it."""
    with pytest.raises(type(error)) as found:
        train_vocabulary(broken(error), TokenizerConfig(330))
    assert found.value is error


def test_data_behind_the_sample_is_not_read() -> None:
    """A problem there shows when training reaches it."""
    assert train_vocabulary(broken(DataError("late")), TokenizerConfig(330, sample_pairs=300)).vocab_size == 330


@pytest.mark.parametrize(("size", "said"), [(200, r"needs at least (\d+)"), (9000, r"gives at most (\d+) pieces")])
def test_an_impossible_size_is_answered_with_a_possible_one(size: int, said: str) -> None:
    """The setting, its value and the limit; the limit itself works."""
    with pytest.raises(ConfigError, match=rf"vocab_size is {size}; this data {said}") as error:
        train_vocabulary(PAIRS, TokenizerConfig(size))
    found = re.search(said, str(error.value))
    assert found is not None

    assert train_vocabulary(PAIRS, TokenizerConfig(int(found[1]))).vocab_size == int(found[1])


@pytest.mark.parametrize("pairs", [[], [Pair("", "")]])
def test_no_text_is_no_vocabulary(pairs: list[Pair]) -> None:
    """SentencePiece would name a line of its source code."""
    with pytest.raises(DataError, match="have no text"):
        train_vocabulary(pairs, TokenizerConfig(330))


def test_another_refusal_keeps_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """What we have no words for is still said."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("INTERNAL: the moon")

    monkeypatch.setattr("dragoman.model.commands.vocabulary.train_tokenizer", refuse)
    with pytest.raises(ModelError, match="cannot make this vocabulary: INTERNAL: the moon"):
        train_vocabulary(PAIRS, TokenizerConfig(330))
