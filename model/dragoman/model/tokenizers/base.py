"""What a model needs of its tokenizer, whatever it is made of. Standard library only.

A bundle names the kind of its tokenizer and carries its files; `load_tokenizer` builds the object. A
tokenizer maps a source text to source ids and target ids to a text: the two vocabularies may differ.
User text is data: what looks like the name of a special token is characters.
"""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Protocol

from dragoman.model.vocab import SpecialIds


class Detokenizer(Protocol):
    """Decodes one row token by token. Concatenated pieces equal `Tokenizer.decode` byte for byte."""

    def push(self, token: int) -> str:
        """Return the text that `token` completes, possibly empty."""

    def finish(self) -> str:
        """Return what is left at the end of the text."""


class Tokenizer(ABC):
    """Text to source ids, target ids to text. Thread-safe: nothing changes after loading.

    Attributes:
        kind: Name of the class in manifests and checkpoints.
        special: Ids with a meaning.
    """

    kind: ClassVar[str]
    special: SpecialIds

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of target ids, special tokens included."""

    @property
    def source_vocab_size(self) -> int:
        """Number of source ids; the same unless the source has a vocabulary of its own."""
        return self.vocab_size

    @property
    def added_ids(self) -> int:
        """How many ids `encode` puts around those of a text: EOS, unless the model wants more or none."""
        return 1

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the source ids of `text`, ended by EOS where the model has one. Blank text gives EOS alone."""

    def encode_target(self, text: str) -> list[int]:
        """Return the target ids of `text`, ended by EOS; as `encode` where the vocabulary is shared."""
        return self.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of target ids; special tokens have none."""
        detokenizer = self.detokenizer()
        return "".join([detokenizer.push(i) for i in ids]) + detokenizer.finish()

    def detokenizer(self) -> Detokenizer:
        """Return a decoder of one text."""
        return ByteDetokenizer(self)

    @abstractmethod
    def piece_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes, possibly part of a character, of a target id; empty for special tokens."""

    def source_piece_bytes(self, token: int) -> bytes:
        """Return the bytes of a source id; those of the target id unless the source has a vocabulary of its own."""
        return self.piece_bytes(token)

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return what the manifest says besides the kind, JSON-ready; `load` gets it back."""

    @abstractmethod
    def files(self) -> dict[str, bytes]:
        """Return the content of each file by its name in the bundle."""

    @classmethod
    @abstractmethod
    def load(cls, files: dict[str, bytes], settings: dict[str, Any], special: SpecialIds) -> Tokenizer:
        """Build the tokenizer that gave these `files` and `settings`.

        Raises:
            ValueError: They do not describe one.
        """


class ByteDetokenizer:
    """Joins the bytes of pieces into text: for every tokenizer whose pieces carry their own spaces."""

    def __init__(self, tokenizer: Tokenizer, *, leading_space: bool = False) -> None:
        """Start a new text.

        Args:
            tokenizer: Knows the bytes of a piece.
            leading_space: Keep the space in front of the first word, which most tokenizers put there themselves.
        """
        self._tokenizer = tokenizer
        # Holds the bytes of an unfinished character back; invalid ones become U+FFFD.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._started = leading_space

    def push(self, token: int) -> str:
        """Return the text that `token` completes, possibly empty."""
        data = self._tokenizer.piece_bytes(token)
        if not self._started and data:
            self._started = True
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def finish(self) -> str:
        """Return what an unfinished character leaves behind."""
        return self._decoder.decode(b"", final=True)
