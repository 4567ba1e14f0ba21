"""The tokenizer of models trained here: SentencePiece BPE with byte fallback.

User text is data. SentencePiece already reads the *names* of control tokens ("</s>") as plain
characters, but it uses U+2581 for "space" inside its pieces, so that character in a text would turn
into a space. `encode` therefore passes it around the library as bytes. Decoding is our own, because
a streamed translation has to be decoded piece by piece and still give the same text.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeVar

import sentencepiece

from dragoman.model.tokenizers.base import Tokenizer
from dragoman.model.vocab import SPECIAL_IDS, SpecialIds

Result = TypeVar("Result")

SPACE_MARK = "\u2581"
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class SentencePieceTokenizer(Tokenizer):
    """Text to ids and back with one SentencePiece model for both languages."""

    kind: ClassVar[str] = "sentencepiece"
    FILE: ClassVar[str] = "tokenizer.model"

    def __init__(self, model: bytes, special: SpecialIds = SPECIAL_IDS) -> None:
        """Load a serialised SentencePiece model.

        Args:
            model: Content of a `.model` file.
            special: Ids of the special tokens.

        Raises:
            RuntimeError: `model` is not a SentencePiece model.
        """
        self.special = special
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._pieces = [self._piece_bytes(i) for i in range(self._processor.get_piece_size())]
        self._space_ids = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in SPACE_MARK.encode()]

    @classmethod
    def load(
        cls,
        files: dict[str, bytes],
        settings: dict[str, Any],  # noqa: ARG003  # the kind has none
        special: SpecialIds,
    ) -> SentencePieceTokenizer:
        """Build it from the content of `tokenizer.model`."""
        return cls(files[cls.FILE], special)

    def settings(self) -> dict[str, Any]:
        """Return nothing: the model says it all."""
        return {}

    def files(self) -> dict[str, bytes]:
        """Return the model."""
        return {self.FILE: self.model}

    @property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included."""
        return len(self._pieces)

    def encode(self, text: str, *, dropout: float = 0.0) -> list[int]:
        """Return the ids of `text`, ended by EOS. Blank text gives EOS alone.

        Line breaks and tabs are white space, a run of white space is one space.

        Args:
            text: To be tokenized.
            dropout: Probability that a merge is left out (BPE dropout, for training); the draws
                come from SentencePiece's generator, see `run_sampled`.
        """
        text = " ".join(text.split())
        if SPACE_MARK not in text:
            return [*self._pieces_of(text, dropout), self.special.eos]
        stand_in = next((c for c in _NONCHARACTERS if c not in text), _NONCHARACTERS[0])
        ids = self._pieces_of(text.replace(SPACE_MARK, stand_in), dropout)
        stand_in_ids = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in stand_in.encode()]
        return [*_replace_run(ids, stand_in_ids, self._space_ids), self.special.eos]

    def _pieces_of(self, text: str, dropout: float) -> list[int]:
        ids: list[int] = (
            self._processor.encode(text, enable_sampling=True, alpha=dropout, nbest_size=-1)
            if dropout
            else self._processor.encode(text)
        )
        return ids

    def piece_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes that a token stands for; empty for special tokens."""
        return self._pieces[token]

    def _piece_bytes(self, token: int) -> bytes:
        if self._processor.is_control(token) or self._processor.is_unknown(token):
            return b""
        piece: str = self._processor.id_to_piece(token)
        if self._processor.is_byte(token):
            return bytes([int(piece[3:5], 16)])
        return piece.replace(SPACE_MARK, " ").encode()


def train_tokenizer(
    sentences: Iterable[str],
    vocab_size: int,
    *,
    split_digits: bool = False,
    user_symbols: Sequence[str] = (),
    threads: int = 2,
) -> SentencePieceTokenizer:
    """Learn a joint vocabulary.

    Args:
        sentences: Source and target texts.
        vocab_size: Pieces, with the special tokens and 256 byte pieces.
        split_digits: Each digit becomes a piece of its own.
        user_symbols: Texts that are always one piece.
        threads: Used by the trainer.

    Raises:
        RuntimeError: SentencePiece refused, for example because the text is too small for
            `vocab_size`; its message names the largest possible one.
    """
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        vocab_size=vocab_size,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=0.9998,
        normalization_rule_name="nfkc",
        pad_id=SPECIAL_IDS.pad,
        unk_id=SPECIAL_IDS.unk,
        bos_id=SPECIAL_IDS.start,
        eos_id=SPECIAL_IDS.eos,
        num_threads=threads,
        split_digits=split_digits,
        user_defined_symbols=list(user_symbols),
        max_sentence_length=16384,
        minloglevel=2,
    )
    return SentencePieceTokenizer(model.getvalue())


def run_sampled(seed: int, work: Callable[[], Result]) -> Result:
    """Run `work` with BPE dropout that depends on `seed` alone.

    SentencePiece seeds its generator once per thread, at the first draw, so a reproducible stretch
    needs a thread of its own.
    """
    sentencepiece.set_random_generator_seed(seed)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def _replace_run(ids: Sequence[int], old: Sequence[int], new: Sequence[int]) -> list[int]:
    """Return `ids` with each run of `old` replaced by `new`."""
    result: list[int] = []
    i = 0
    while i < len(ids):
        if list(ids[i : i + len(old)]) == list(old):
            result.extend(new)
            i += len(old)
        else:
            result.append(ids[i])
            i += 1
    return result
