"""What a source id stands for, where source and target have vocabularies of their own and where they share one."""

from __future__ import annotations

from pathlib import Path

from dragoman.model.tokenizers import PieceTokenizer, SentencePieceTokenizer, SymbolSide, SymbolTokenizer, Tokenizer
from dragoman.model.vocab import SPECIAL_IDS, SpecialIds

DATA = Path(__file__).parents[2] / "data"
MODELS = [(DATA / name / "tokenizer.model").read_bytes() for name in ("tiny-v1", "tiny-v2")]
SPECIAL = SpecialIds(suppressed=(4, 5, 6))  # tiny-v2's


def source_text(tokenizer: Tokenizer, text: str) -> str:
    return b"".join(map(tokenizer.source_piece_bytes, tokenizer.encode(text))).decode()


def test_pieces_of_two_vocabularies() -> None:
    """The same id is one text in the source and another in the target."""
    tokenizer = PieceTokenizer.plain(MODELS[0], SPECIAL, target_model=MODELS[1])
    swapped = PieceTokenizer.plain(MODELS[1], SPECIAL_IDS, target_model=MODELS[0])

    assert source_text(tokenizer, "hundred \u6f22") == " hundred \u6f22"
    assert source_text(swapped, "sieben") == " sieben"
    ids = range(tokenizer.vocab_size)
    assert [tokenizer.source_piece_bytes(i) for i in ids] != [tokenizer.piece_bytes(i) for i in ids]


def test_symbols_of_two_lists() -> None:
    """Special symbols have no text on either side."""
    source = SymbolSide(("<pad>", "<unk>", "<s>", "</s>", "one", "two"), "words", unk=1, after=(3,), reserved=(0, 2))
    target = SymbolSide(("<pad>", "<unk>", "<s>", "</s>", "eins", "zwei"), "words", unk=1, after=(3,))
    tokenizer = SymbolTokenizer(source, SpecialIds(), target=target)

    assert [tokenizer.source_piece_bytes(i) for i in tokenizer.encode("two one")] == [b"two", b"one", b""]
    assert tokenizer.piece_bytes(4) == b"eins"


def test_a_shared_vocabulary_has_one_text_for_both() -> None:
    """As most models have it."""
    tokenizers: list[Tokenizer] = [
        SentencePieceTokenizer(MODELS[0]),
        PieceTokenizer.plain(MODELS[0], SPECIAL_IDS),
        SymbolTokenizer(SymbolSide(("<pad>", "<unk>", "<s>", "</s>", "a"), "characters", unk=1), SpecialIds()),
    ]
    for tokenizer in tokenizers:
        ids = range(tokenizer.vocab_size)

        assert [tokenizer.source_piece_bytes(i) for i in ids] == [tokenizer.piece_bytes(i) for i in ids]
