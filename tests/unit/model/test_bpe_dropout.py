"""BPE dropout: SentencePiece's pieces without it, its probabilities with it, and randomness that is the caller's."""

from __future__ import annotations

import io
import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from dragoman.model.data import TrainingData
from dragoman.model.errors import ConfigError
from dragoman.model.generated import examples
from dragoman.model.recipe import Augmentation, TrainConfig
from dragoman.model.tokenizers import ByteLevelTokenizer, SentencePieceTokenizer
from dragoman.model.tokenizers.bpe_dropout import BpeDropout
from dragoman.model.tokenizers.segmenter import read_model
from dragoman.model.vocab import SPECIAL_IDS

SENTENCES = [text for e in itertools.islice(examples(seed=3), 400) for text in (e.source, e.target)]
CHINESE = ["".join(random.Random(i).choices("日本語中国人的一是不了在有我他這", k=20)) for i in range(100)]
SYMBOLS = ["<b>", "<br", "<br/>", "ab", "abc", "two words", "日本", "%s", ".*"]
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "digits apart": {"split_digits": True},
    "user symbols": {"user_defined_symbols": SYMBOLS},
    "space behind a word": {"treat_whitespace_as_suffix": True},
    "pieces across words": {"split_by_whitespace": False},
    "spaces kept": {"remove_extra_whitespaces": False},
    "no space in front": {"add_dummy_prefix": False},
    "no bytes": {"byte_fallback": False},
    "text as it is": {"normalization_rule_name": "identity"},
}
ALPHABETS = (
    "abcdefghijklmnopqrst  ", "0123456789.,% ", "äöüßÉçñ ", "日本語中国人的一是不了在 ",
    "😀👩\u200d👩\u200d👧🇩🇪❤\ufe0f👍🏽",
    "\u00a0\u2003\u200b\u3000\t\n \u2028\x85\ufeff", "\u2581 <>/ab", "\x00\x01\x7f", "ﬁ①Å㍿ｱﾞ", "\u0301\u0308ae",
    "אבגدهوहिन्दी한국어ไทย",
)  # fmt: skip


def train(texts: list[str], **settings: Any) -> bytes:
    model = io.BytesIO()
    settings = {
        "model_type": "bpe", "vocab_size": 700, "byte_fallback": True, "character_coverage": 0.9998,
        "normalization_rule_name": "nfkc", "minloglevel": 2, "num_threads": 1,
        "pad_id": SPECIAL_IDS.pad, "unk_id": SPECIAL_IDS.unk, "bos_id": SPECIAL_IDS.start, "eos_id": SPECIAL_IDS.eos,
        **settings,
    }  # fmt: skip
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_writer=model, **settings)
    return model.getvalue()


def strange_texts(count: int) -> list[str]:
    """Return texts with all that a text can have, always the same ones."""
    draw = random.Random(7)
    texts = []
    for number in range(count):
        if number % 4 == 0:  # any characters
            codes = (draw.randrange(0x20, 0x3000 if number % 8 else 0x110000) for _ in range(draw.randrange(30)))
            texts.append("".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000))
            continue
        alphabets = draw.sample(ALPHABETS, 3)
        strange = "".join(draw.choice(draw.choice(alphabets)) for _ in range(draw.randrange(40)))
        if number % 4 == 1:  # inside a sentence
            sentence = draw.choice(SENTENCES)
            place = draw.randrange(len(sentence) + 1)
            strange = sentence[:place] + strange[:8] + draw.choice(SYMBOLS) + sentence[place:]
        texts.append(strange)
    return texts


TEXTS = [*SENTENCES, *CHINESE[:20], "".join(CHINESE), " ".join(SENTENCES[:50]), "x" * 500, *strange_texts(2000)]


@pytest.fixture(scope="module")
def tokenizer() -> SentencePieceTokenizer:
    return SentencePieceTokenizer(train(SENTENCES + CHINESE))


@pytest.mark.parametrize("settings", MODELS.values(), ids=MODELS.keys())
def test_without_dropout_the_pieces_are_those_of_sentencepiece(settings: dict[str, Any]) -> None:
    """Of 2,900 texts: sentences, texts without spaces, emoji, unusual white space, unknown characters."""
    model = train([*SENTENCES, *CHINESE, *(f"{s} two words" for s in SENTENCES[:50])], **settings)
    library, ours = sentencepiece.SentencePieceProcessor(model_proto=model), BpeDropout(model, "a model")
    generator = random.Random(0)

    for text in TEXTS:
        assert ours(library.normalize(text), 0.0, generator) == library.encode(text), text


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.7, 1.0])
def test_the_text_stays_the_same(tokenizer: SentencePieceTokenizer, probability: float) -> None:
    """Whatever is left out, the pieces spell what they spell without dropout: "▁" and control names included."""
    generator = random.Random(1)
    found = {text: tokenizer.encode_with_dropout(text, probability, generator) for text in TEXTS}

    assert {text: tokenizer.decode(ids) for text, ids in found.items()} == {
        text: tokenizer.decode(tokenizer.encode(text)) for text in TEXTS
    }
    assert all(ids.count(SPECIAL_IDS.eos) == 1 and ids[-1] == SPECIAL_IDS.eos for ids in found.values())
    if not probability:
        assert found == {text: tokenizer.encode(text) for text in TEXTS}


def test_a_probability_of_1_leaves_characters() -> None:
    """Bytes where the vocabulary lacks the character, and user symbols whole."""
    tokenizer = SentencePieceTokenizer(train(SENTENCES + CHINESE, user_defined_symbols=SYMBOLS))
    ids = tokenizer.encode_with_dropout("<br/>one日本語 🐢", 1.0, random.Random(1))

    assert [tokenizer.piece_bytes(i) for i in ids[:-1]] == [
        b" ", b"<br/>", *(c.encode() for c in ("o", "n", "e", "日本", "語", " ")), b"\xf0", b"\x9f", b"\x90", b"\xa2",
    ]  # fmt: skip


def test_a_tiny_probability_leaves_out_nothing(tokenizer: SentencePieceTokenizer) -> None:
    """The distance to the next drop is then beyond what a float, or an int made of it, can say."""
    generator = random.Random(1)

    for probability in (5e-324, 1e-300, 1e-18):
        assert tokenizer.encode_with_dropout(SENTENCES[0], probability, generator) == tokenizer.encode(SENTENCES[0])


def shares(ranks: dict[str, float], word: str, probability: float) -> Counter[tuple[str, ...]]:
    """Return how probable each way to cut a word is, by following every decision both ways."""
    found: Counter[tuple[str, ...]] = Counter()

    def follow(pieces: tuple[str, ...], left_out: frozenset[tuple[int, int, int]], share: float) -> None:
        starts = [*itertools.accumulate(map(len, pieces), initial=0)]
        possible = [
            (ranks[left + right], i)
            for i, (left, right) in enumerate(itertools.pairwise(pieces))
            if left + right in ranks and tuple(starts[i : i + 3]) not in left_out
        ]
        if not possible:
            found[pieces] += share  # type: ignore[assignment]  # Counter adds floats, too
            return
        _, i = min(possible)
        start, middle, end = starts[i : i + 3]
        follow((*pieces[:i], pieces[i] + pieces[i + 1], *pieces[i + 2 :]), left_out, share * (1 - probability))
        follow(pieces, left_out | {(start, middle, end)}, share * probability)

    follow(tuple(word), frozenset(), 1.0)
    return found


@pytest.mark.parametrize("probability", [0.1, 0.5])
@pytest.mark.parametrize("word", ["▁twenty", "▁hundert"])
def test_each_way_to_cut_a_word_has_its_probability(
    tokenizer: SentencePieceTokenizer, word: str, probability: float
) -> None:
    """That which follows from leaving out each possible merge with the probability, and SentencePiece's own."""
    pieces = read_model(tokenizer.model, "a model").pieces
    expected = shares({p.piece: -p.score for p in pieces if p.type == p.NORMAL}, word, probability)
    draws, generator = 20_000, random.Random(2)
    cut = tokenizer.bpe_dropout
    # A second word: what is left of the distance to the next drop goes on into it.
    ours = Counter(tuple(pieces[i].piece for i in cut(f"▁one{word}", probability, generator)) for _ in range(draws))
    alone: Counter[tuple[str, ...]] = Counter()
    for found, count in ours.items():
        alone[found[len(found) - next(n for n in range(1, 20) if "".join(found[-n:]) == word) :]] += count
    library = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    theirs = Counter(
        tuple(library.encode(word[1:], out_type=str, enable_sampling=True, alpha=probability, nbest_size=-1))
        for _ in range(draws)
    )

    assert len(expected) > 3
    assert set(alone) | set(theirs) <= set(expected)
    for found, share in expected.items():  # 0.025 is 7 standard deviations, at least
        assert alone[found] / draws == pytest.approx(share, abs=0.025)
        assert theirs[found] / draws == pytest.approx(share, abs=0.025)


IN_ANOTHER_PROCESS = """
import random, sys
from pathlib import Path
from dragoman.model.tokenizers import SentencePieceTokenizer
tokenizer = SentencePieceTokenizer(Path(sys.argv[1]).read_bytes())
generator = random.Random("1/0/0")
print([tokenizer.encode_with_dropout(text, 0.3, generator) for text in sys.argv[2:]])
"""


def test_the_generator_alone_decides(tokenizer: SentencePieceTokenizer, tmp_path: Path) -> None:
    """Not the process, the thread, or what was tokenized before."""
    texts = SENTENCES[:50]

    def encode() -> list[list[int]]:
        generator = random.Random("1/0/0")
        return [tokenizer.encode_with_dropout(text, 0.3, generator) for text in texts]

    expected = encode()
    (tmp_path / "model").write_bytes(tokenizer.model)
    with ThreadPoolExecutor(3) as pool:
        in_threads = [work.result() for work in [pool.submit(encode) for _ in range(6)]]
    in_processes = [
        subprocess.run(
            [sys.executable, "-c", IN_ANOTHER_PROCESS, str(tmp_path / "model"), *texts],
            capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": str(seed)},
        ).stdout.strip()
        for seed in (1, 2)
    ]  # fmt: skip

    assert encode() == expected
    assert in_threads == [expected] * 6
    assert in_processes == [str(expected)] * 2
    assert expected != [tokenizer.encode(text) for text in texts]


def with_unused_piece() -> bytes:
    proto = read_model(train(SENTENCES), "a model")
    proto.pieces[-60].type = proto.pieces[-60].UNUSED
    content: bytes = proto.SerializeToString()
    return content


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: train(SENTENCES, model_type="unigram", vocab_size=400), r"type 'unigram'; only 'bpe' has merges"),
        (lambda: train(SENTENCES, model_type="char", vocab_size=300), r"type 'char'; only 'bpe' has merges"),
        (with_unused_piece, r"pieces that are marked unused"),
    ],
    ids=["unigram", "characters", "unused pieces"],
)
def test_a_model_without_merges_to_leave_out_is_refused_at_the_start(model: Any, said: str) -> None:
    """Before any text is read, with what to do about it; without dropout it is as good as any."""
    tokenizer = SentencePieceTokenizer(model())
    config = TrainConfig(max_steps=1, augmentation=Augmentation(bpe_dropout=0.1))
    with pytest.raises(ConfigError, match=rf"tokenizer\.model .*{said}.*; set bpe_dropout = 0"):
        TrainingData(lambda: pytest.fail("read"), tokenizer, config)

    TrainingData(lambda: pytest.fail("read"), tokenizer, TrainConfig(max_steps=1))


def test_another_kind_of_tokenizer_is_refused_at_the_start() -> None:
    """A byte-level one, say: its library's draws cannot be repeated either."""
    tokenizer = ByteLevelTokenizer({"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4}, [], SPECIAL_IDS)
    config = TrainConfig(max_steps=1, augmentation=Augmentation(bpe_dropout=0.1))
    with pytest.raises(ConfigError, match=r"kind 'byte-level-bpe' has no BPE dropout; set bpe_dropout = 0"):
        TrainingData(lambda: pytest.fail("read"), tokenizer, config)
