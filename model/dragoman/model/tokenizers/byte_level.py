"""Byte-level BPE as in GPT-2, RoBERTa and BART: every text is bytes, so nothing is ever unknown.

The merges are done by the library `tokenizers`, which is loaded when a tokenizer of this kind is. It gets the
vocabulary and the merges but no special tokens, so "</s>" in a text is four characters. Decoding is our own,
because a streamed translation has to be decoded token by token and still give the same text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dragoman.model.tokenizers.base import ByteDetokenizer, Detokenizer, Tokenizer
from dragoman.model.tokenizers.side import check_ids, file_of, read_vocabulary, write_json
from dragoman.model.vocab import SpecialIds

if TYPE_CHECKING:
    import tokenizers

_VOCABULARY = "vocab.json"
_MERGES = "merges.txt"


class ByteLevelTokenizer(Tokenizer):
    """Text to ids and back with one vocabulary for both languages."""

    kind: ClassVar[str] = "byte-level-bpe"

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        merges: Sequence[tuple[str, str]],
        special: SpecialIds,
        *,
        before: Sequence[int] = (),
        prefix_space: bool = False,
        vocab_size: int | None = None,
    ) -> None:
        """Build the merge table.

        Args:
            vocabulary: Id of each token, written in the characters that stand for bytes.
            merges: Pairs of tokens, the earlier the sooner.
            special: Ids with a meaning.
            before: Ids in front of those of a source: BART begins with <s>.
            prefix_space: The first word gets a space in front, as all others have one.
            vocab_size: Number of ids, where the model has more than the vocabulary.

        Raises:
            ValueError: They do not fit together, or the library is not installed.
        """
        self.special = special
        self._vocabulary, self._merges = dict(vocabulary), list(merges)
        self._before, self._prefix_space = tuple(before), prefix_space
        self._size = vocab_size or max(self._vocabulary.values(), default=-1) + 1
        reserved = {special.pad, special.unk, special.start, special.eos, *special.suppressed, *before}
        check_ids(self._vocabulary.values(), self._size, f"a token of {_VOCABULARY}")
        check_ids(reserved, self._size, f"a special token beside {_VOCABULARY}")
        self._bpe = _build(self._vocabulary, self._merges, prefix_space)
        self._pieces = [b""] * self._size
        for token, i in self._vocabulary.items():
            if i not in reserved:
                self._pieces[i] = token_bytes(token)

    @classmethod
    def from_files(
        cls,
        vocabulary: bytes,
        merges: bytes,
        special: SpecialIds,
        *,
        before: Sequence[int] = (),
        prefix_space: bool = False,
        vocab_size: int | None = None,
    ) -> ByteLevelTokenizer:
        """Return that of `vocab.json` and `merges.txt`.

        Args:
            vocabulary: Content of `vocab.json`.
            merges: Content of `merges.txt`.
            special: Ids with a meaning.
            before: As for the class.
            prefix_space: As for the class.
            vocab_size: As for the class.

        Raises:
            ValueError: A file is malformed, or they do not fit together.
        """
        return cls(
            read_vocabulary(vocabulary, _VOCABULARY),
            read_merges(merges, _MERGES),
            special,
            before=before,
            prefix_space=prefix_space,
            vocab_size=vocab_size,
        )

    @classmethod
    def from_tokenizer_json(
        cls, content: bytes, special: SpecialIds, *, before: Sequence[int] = (), vocab_size: int | None = None
    ) -> ByteLevelTokenizer:
        """Return that of a `tokenizer.json` of Hugging Face.

        Args:
            content: Of the file.
            special: Ids with a meaning.
            before: As for the class.
            vocab_size: As for the class.

        Raises:
            ValueError: It is malformed, or describes another kind of tokenizer.
        """
        name = "tokenizer.json"
        try:
            described = json.loads(content)
            model, splitter = described["model"], described["pre_tokenizer"] or {}
            problems = _foreign(described)
            vocabulary = {str(token): int(i) for token, i in model["vocab"].items()}
            merges = [tuple(m.split(" ") if isinstance(m, str) else m) for m in model["merges"]]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{name}: not a byte-level BPE tokenizer: {error!r}") from error
        if problems:
            raise ValueError(f"{name}: not the byte-level BPE of GPT-2, RoBERTa or BART: {'; '.join(problems)}")
        added = max((int(token["id"]) for token in described.get("added_tokens", ())), default=-1) + 1
        size = vocab_size or max(max(vocabulary.values(), default=-1) + 1, added)
        space = bool(splitter.get("add_prefix_space"))
        return cls(vocabulary, merges, special, before=before, prefix_space=space, vocab_size=size)

    @classmethod
    def load(cls, files: dict[str, bytes], settings: dict[str, Any], special: SpecialIds) -> ByteLevelTokenizer:
        """Build it from `vocab.json` and `merges.txt`."""
        return cls.from_files(
            file_of(files, _VOCABULARY),
            file_of(files, _MERGES),
            special,
            before=[int(i) for i in settings.get("before", ())],
            prefix_space=bool(settings.get("prefix_space", False)),
            vocab_size=int(settings["size"]),
        )

    def settings(self) -> dict[str, Any]:
        """Return the ids in front of a source, whether it gets a space in front, and the number of ids."""
        return {"before": list(self._before), "prefix_space": self._prefix_space, "size": self._size}

    def files(self) -> dict[str, bytes]:
        """Return vocabulary and merges."""
        lines = ["#version: 0.2", *(f"{left} {right}" for left, right in self._merges)]
        return {_VOCABULARY: write_json(self._vocabulary), _MERGES: ("\n".join(lines) + "\n").encode()}

    @property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included."""
        return self._size

    @property
    def added_ids(self) -> int:
        """How many ids `encode` puts around those of a text."""
        return 1 + len(self._before)

    @property
    def textless_ids(self) -> tuple[int, ...]:
        """Ids that stand for no text, EOS among them: what a search should not choose, but for EOS."""
        return tuple(i for i, piece in enumerate(self._pieces) if not piece)

    def encode(self, text: str) -> list[int]:
        """Return the source ids of `text`, ended by EOS; white space is kept as it is."""
        ids = self._ids(text)
        return [*self._before, *ids, self.special.eos] if ids else [self.special.eos]

    def encode_target(self, text: str) -> list[int]:
        """Return the target ids of `text`, ended by EOS."""
        return [*self._ids(text), self.special.eos]

    def detokenizer(self) -> Detokenizer:
        """Return a decoder of one text; a space in front of the first word belongs to the text."""
        return ByteDetokenizer(self, leading_space=True)

    def piece_bytes(self, token: int) -> bytes:
        """Return the bytes that an id stands for; empty for special tokens."""
        return self._pieces[token]

    def _ids(self, text: str) -> list[int]:
        return self._bpe.encode(text, add_special_tokens=False).ids


def token_bytes(token: str) -> bytes:
    """Return the bytes that a token of such a vocabulary stands for; one with other characters stands for itself."""
    if all(character in _BYTES for character in token):
        return bytes(_BYTES[character] for character in token)
    return token.encode()


def read_merges(content: bytes, name: str) -> list[tuple[str, str]]:
    """Read `merges.txt`: a pair of tokens in each line, behind an optional line that names the version.

    Args:
        content: Of the file.
        name: Of the file, for messages.

    Raises:
        ValueError: It is none.
    """
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8: {error}") from error
    merges = []
    for number, line in enumerate(lines, 1):
        line = line.removesuffix("\r")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or not all(pair):
            raise ValueError(f"{name}, line {number}: {line[:60]!r} is not a pair of tokens")
        merges.append((pair[0], pair[1]))
    return merges


def _byte_characters() -> dict[str, int]:
    """Return the byte of each character: printable Latin-1 as it is, the 68 other bytes from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTES = _byte_characters()


def _build(vocabulary: dict[str, int], merges: list[tuple[str, str]], prefix_space: bool) -> tokenizers.Tokenizer:
    try:
        import tokenizers
        from tokenizers import models, pre_tokenizers
    except ImportError as error:
        raise ValueError("this tokenizer needs the library tokenizers: pip install tokenizers") from error
    try:
        bpe = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    except Exception as error:  # the library raises nothing more exact
        raise ValueError(f"{_MERGES} does not fit {_VOCABULARY}: {error}") from error
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    return bpe


def _foreign(described: Mapping[str, Any]) -> list[str]:
    """Return what a `tokenizer.json` has that GPT-2's family has not."""
    model, splitter = described["model"], described.get("pre_tokenizer") or {}
    problems = []
    if model.get("type", "BPE") != "BPE":
        problems.append(f"its model is {model.get('type')!r}, not 'BPE'")
    if described.get("normalizer"):
        problems.append(f"it has a normalizer, {described['normalizer'].get('type')!r}")
    if splitter.get("type") != "ByteLevel" or not splitter.get("use_regex", True):
        problems.append(f"its pre-tokenizer is {splitter.get('type')!r}, not 'ByteLevel' with its pattern")
    unused = ("continuing_subword_prefix", "end_of_word_suffix", "dropout", "byte_fallback", "ignore_merges")
    return problems + [f"{setting} is {model[setting]!r}" for setting in unused if model.get(setting)]
