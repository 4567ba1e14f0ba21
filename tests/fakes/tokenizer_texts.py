"""Texts that tokenizers are compared on, and a small SentencePiece model of them."""

from __future__ import annotations

import io
import itertools
import random
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import sentencepiece

from dragoman.model.generated import examples
from dragoman.model.tokenizers import Tokenizer, describe_tokenizer, load_tokenizer

WRITTEN = (
    "",
    " ",
    "a",
    " in front",
    "behind ",
    "two  spaces   three",
    "tab\tline\nreturn\r\nend",
    "no-break\u00a0space ideographic\u3000space",
    "zero\u200bwidth \ufeffmark",
    "emoji 😀😀 😀x 🏳️‍🌈",
    "日本語 のテキスト カタカナ",
    "ﬁ ½ … ＡＢＣ",
    "é e\u0301 Å",
    "NUL\x00 and \x07 bell",
    "\u202eright to left\u202c",
    "don't we'll I'M ... !!! ??? --- @@ 3.14 $5 #1",
    "x" * 2000,
    "one hundred and five euros " * 200,
)

# What some tokenizer takes for more than characters.
NAMES = (
    "</s>",
    "<s>",
    "<pad>",
    "<unk>",
    "<mask>",
    "<2de>",
    ">>fra<< hello",
    "__de__",
    "eng_Latn",
    "de_DE",
    "<extra_id_0>",
    "a </s> b",
    "a<pad>b",
    "\u2581",
    "a\u2581b \u2581",
    "<0x41>",
)

_ALPHABET = "abcdefghijklmnop ÜäößéñПрив日本😀 .,!?'\t\n½ﬁ0123456789-"


def texts(number: int, seed: int = 1) -> list[str]:
    """Return sentences, written oddities, and rows of random characters."""
    chance = random.Random(seed)
    rows = ["".join(chance.choices(_ALPHABET, k=chance.randrange(1, 50))) for _ in range(number)]
    return [e.source for e in itertools.islice(examples(seed=9), number)] + list(WRITTEN) + rows


def sentences() -> list[str]:
    """Return texts to learn a vocabulary from."""
    pairs = itertools.islice(examples(seed=3), 400)
    others = ["Ünïcödé ñandú öäß", "Привет мир", "日本語", "Don't stop! (now) 3.14 % & / #1 <s> __x_de__ >>y<<"]
    return [text for pair in pairs for text in (pair.source, pair.target)] + others * 20


def sentence_piece(size: int = 400, **options: Any) -> bytes:
    """Return the content of a SentencePiece model of about `size` pieces."""
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences()),
        model_writer=content,
        vocab_size=size,
        hard_vocab_limit=False,
        character_coverage=1.0,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    return content.getvalue()


def random_ids(size: int, number: int, without: set[int], seed: int = 2) -> list[list[int]]:
    """Return rows of ids as a model might generate them."""
    chance = random.Random(seed)
    allowed = [i for i in range(size) if i not in without]
    return [chance.choices(allowed, k=chance.randrange(0, 12)) for _ in range(number)]


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Return the pieces of a text as they come."""
    detokenizer = tokenizer.detokenizer()
    return [*(detokenizer.push(i) for i in ids), detokenizer.finish()]


def reloaded(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer that comes back from its own files and description."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in tokenizer.files().items():
            (Path(folder) / name).write_bytes(content)
        return load_tokenizer(Path(folder), describe_tokenizer(tokenizer), tokenizer.special)


def in_threads(tokenizer: Tokenizer, sources: list[str]) -> list[list[list[int]]]:
    """Return the ids of all texts from each of eight threads at once."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda _: [tokenizer.encode(text) for text in sources], range(8)))
