"""The tokenizer of models trained here: SentencePiece BPE with byte fallback.

User text is data. SentencePiece already reads the *names* of control tokens ("</s>") as plain
characters, but it uses U+2581 for "space" inside its pieces, so that character in a text would turn
into a space. `encode` therefore passes it around the library as bytes. Decoding is our own, because
a streamed translation has to be decoded piece by piece and still give the same text. BPE dropout is our own,
too: the library's draws cannot be repeated in another process (see `bpe_dropout`).
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar

import sentencepiece

from dragoman.model.tokenizers.base import Tokenizer
from dragoman.model.tokenizers.bpe_dropout import BpeDropout
from dragoman.model.vocab import SPECIAL_IDS, SpecialIds

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

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, ended by EOS. Blank text gives EOS alone.

        Line breaks and tabs are white space, a run of white space is one space.
        """
        return self._encode(text, self._processor.encode)

    def encode_with_dropout(self, text: str, probability: float, generator: random.Random) -> list[int]:
        """Return the ids of `text` cut with BPE dropout, for training; otherwise as `encode`.

        Args:
            text: To be tokenized.
            probability: Of leaving out a merge, from 0 to 1.
            generator: Everything random comes from it: the same state, the same ids.

        Raises:
            ValueError: The model is not one of BPE, see `bpe_dropout`.
        """
        cut, normalize = self.bpe_dropout, self._processor.normalize
        return self._encode(text, lambda text: cut(normalize(text), probability, generator))

    @cached_property
    def bpe_dropout(self) -> BpeDropout:
        """The model's merges, as far as they can be left out; made when first asked for, as only training does.

        Raises:
            ValueError: It is of another type than BPE, or has pieces marked unused.
        """
        return BpeDropout(self.model, self.FILE)

    def _encode(self, text: str, cut: Callable[[str], list[int]]) -> list[int]:
        text = " ".join(text.split())
        if SPACE_MARK not in text:
            return [*cut(text), self.special.eos]
        stand_in = next((c for c in _NONCHARACTERS if c not in text), _NONCHARACTERS[0])
        ids = cut(text.replace(SPACE_MARK, stand_in))
        stand_in_ids = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in stand_in.encode()]
        return [*_replace_run(ids, stand_in_ids, self._space_ids), self.special.eos]

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
