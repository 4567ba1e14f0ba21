"""Text to ids and back: user text is data, and streamed equals whole."""

from __future__ import annotations

import itertools

import pytest

from dragoman.model.generated import examples
from dragoman.model.tokenizers import Tokenizer, train_tokenizer
from dragoman.model.vocab import SPECIAL_IDS

TEXTS = (
    "twenty-three euros",
    "naïve café 😀 日本語",
    "</s> <pad> <unk> <s> >>fra<< __de__",
    "a\u2581b \u2581",
    "NUL\x00here",
    "▁▁▁",
    "\ufdd0 and \u2581",
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    sample = itertools.islice(examples(seed=3), 500)
    return train_tokenizer((text for e in sample for text in (e.source, e.target)), 330)


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives(tokenizer: Tokenizer, text: str) -> None:
    """Encoding and decoding gives the text, control names and the space mark included."""
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", TEXTS)
def test_only_the_end_is_special(tokenizer: Tokenizer, text: str) -> None:
    """No text produces a special id, except the EOS that ends every source."""
    ids = tokenizer.encode(text)

    assert ids[-1] == SPECIAL_IDS.eos
    assert not set(ids[:-1]) & {SPECIAL_IDS.pad, SPECIAL_IDS.start, SPECIAL_IDS.eos}


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_equals_whole(tokenizer: Tokenizer, text: str) -> None:
    """Pieces concatenate to the decoded text, and none ends inside a character."""
    ids = tokenizer.encode(text)
    detokenizer = tokenizer.detokenizer()
    pieces = [detokenizer.push(i) for i in ids] + [detokenizer.finish()]

    assert "".join(pieces) == tokenizer.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)


def test_broken_bytes_become_replacement_characters(tokenizer: Tokenizer) -> None:
    """A model may generate half a character; the text stays valid."""
    ids = tokenizer.encode("😀")[:-2]

    assert tokenizer.decode(ids).strip() == "\ufffd"


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_blank_text_is_eos_alone(tokenizer: Tokenizer, text: str) -> None:
    """There is nothing to translate."""
    assert tokenizer.encode(text) == [SPECIAL_IDS.eos]
