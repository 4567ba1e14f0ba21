"""SentencePiece models whose pieces have ids of their own: MarianMT, M2M100, NLLB, mBART, T5, and Marian itself.

A text is cut by SentencePiece with the normalisation that the model file brings, and each piece is looked up in
a vocabulary: an explicit one, or "number in the model plus an offset". Source and target may differ in both.

Ids and texts are those of Hugging Face's tokenizers, but for a few deliberate differences:

- User text is data: "</s>", "<2de>", ">>fra<<" or "__de__" in it are characters, never a special token.
- U+2581 is a character too, not a space (see `segmenter`).
- Special tokens and language tokens have no text. M2M100's tokenizer writes "__de__", and Marian's, where source and
  target have separate vocabularies, drops the target ids that are special in the *source*.
- transformers 5 rebuilds some tokenizers without SentencePiece and loses part of what the model file says: mBART's
  normalisation, and that white space at the end of a text is nothing (NLLB and mBART-50 make a piece of it). The
  model file is what the checkpoint was trained with, so it decides here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

from dragoman.model.tokenizers.base import Detokenizer, Tokenizer
from dragoman.model.tokenizers.joining import JOININGS, Joining, piece_detokenizer
from dragoman.model.tokenizers.segmenter import Segmenter, read_model
from dragoman.model.tokenizers.side import Side, check_ids, file_of, read_vocabulary, write_json
from dragoman.model.vocab import SpecialIds

_SOURCE = "source.spm"
_TARGET = "target.spm"
_VOCABULARY = "vocab.json"
_TARGET_VOCABULARY = "target_vocab.json"


@dataclass(frozen=True, slots=True)
class PieceSide:
    """What one side of a model is made of.

    Attributes:
        model: Content of a SentencePiece file.
        eos: Id behind every text.
        unk: Id of a piece that the vocabulary lacks.
        size: Number of ids; some may stand for no piece.
        vocabulary: Id of each piece, or what to add to a piece's number in the model to get its id.
        reserved: More ids that no text has. Of a side that shares its ids with the target, `SpecialIds` names them.
    """

    model: bytes
    eos: int
    unk: int
    size: int
    vocabulary: Mapping[str, int] | int
    reserved: tuple[int, ...] = ()


class PieceTokenizer(Tokenizer):
    """Text to pieces to ids and back."""

    kind: ClassVar[str] = "pieces"

    def __init__(
        self, source: PieceSide, special: SpecialIds, *, target: PieceSide | None = None, joining: Joining
    ) -> None:
        """Load the models of both sides.

        Args:
            source: Its model and ids.
            special: Ids with a meaning in the target.
            target: Its model and ids; None where they are the source's.
            joining: How pieces become a text.

        Raises:
            ValueError: A model is none, or an id is outside its vocabulary.
        """
        self.special = special
        self._sides = (source, target or source)
        self._joining = joining
        marked = {special.pad, special.unk, special.start, special.eos, *special.suppressed}
        check_ids(marked, self._sides[1].size, "a special token of the target")
        shared = target is None or (isinstance(source.vocabulary, Mapping) and target.vocabulary == source.vocabulary)
        self._source, self._pieces = _load_side(source, _SOURCE, marked if shared else set())
        self._target, self._source_pieces = self._source, self._pieces
        if target is not None:
            self._target, self._pieces = _load_side(target, _TARGET, marked)

    @classmethod
    def marian(
        cls,
        source_model: bytes,
        target_model: bytes,
        vocabulary: Mapping[str, int],
        special: SpecialIds,
        *,
        target_vocabulary: Mapping[str, int] | None = None,
        vocab_size: int | None = None,
        source_vocab_size: int | None = None,
    ) -> PieceTokenizer:
        """Return that of a Hugging Face MarianMT folder.

        Text is not normalised beyond what the SentencePiece models say, as in `MarianTokenizer`, which
        never calls its own `normalize`.

        Args:
            source_model: Content of `source.spm`.
            target_model: Content of `target.spm`.
            vocabulary: Of `vocab.json`: both sides', or the source's.
            special: Ids with a meaning in the target; suppressed ones should include language codes (">>fra<<").
            target_vocabulary: Of `target_vocab.json`, if the sides have separate ones.
            vocab_size: Number of target ids, where the model has more than the vocabulary.
            source_vocab_size: Number of source ids, likewise.

        Raises:
            ValueError: They do not describe one.
        """
        if target_vocabulary is None:
            size = vocab_size or _size(vocabulary)
            source = PieceSide(source_model, special.eos, special.unk, size, vocabulary)
            return cls(source, special, target=replace(source, model=target_model), joining="strip")
        missing = [name for name in ("</s>", "<unk>") if name not in vocabulary]
        if missing:
            raise ValueError(f"the source vocabulary lacks {' and '.join(missing)}")
        marked = [i for name, i in vocabulary.items() if name in ("<pad>", "<s>") or name[:2] + name[-2:] == ">><<"]
        size = source_vocab_size or _size(vocabulary)
        source = PieceSide(
            source_model, vocabulary["</s>"], vocabulary["<unk>"], size, vocabulary, tuple(sorted(marked))
        )
        size = vocab_size or _size(target_vocabulary)
        target = PieceSide(target_model, special.eos, special.unk, size, target_vocabulary)
        return cls(source, special, target=target, joining="strip")

    @classmethod
    def m2m100(
        cls, model: bytes, vocabulary: Mapping[str, int], special: SpecialIds, *, vocab_size: int | None = None
    ) -> PieceTokenizer:
        """Return that of a Hugging Face M2M100 folder.

        Args:
            model: Content of `sentencepiece.bpe.model`.
            vocabulary: Of `vocab.json`.
            special: Ids with a meaning; suppressed ones should include language tokens and unused ids.
            vocab_size: Number of ids, where the model has more than the vocabulary: it has, the language tokens.

        Raises:
            ValueError: They do not describe one.
        """
        size = vocab_size or _size(vocabulary)
        return cls(PieceSide(model, special.eos, special.unk, size, vocabulary), special, joining="strip")

    @classmethod
    def fairseq(cls, model: bytes, special: SpecialIds, *, vocab_size: int) -> PieceTokenizer:
        """Return that of a Hugging Face NLLB, mBART or mBART-50 folder.

        fairseq puts <s>, <pad>, </s> and <unk> in front where SentencePiece has three of its own, so a
        piece's id is its number plus one. Language codes and the mask come behind the pieces.

        Args:
            model: Content of `sentencepiece.bpe.model`.
            special: Ids with a meaning; suppressed ones should include language codes, mask and unused ids.
            vocab_size: Number of ids.

        Raises:
            ValueError: They do not describe one.
        """
        return cls(PieceSide(model, special.eos, special.unk, vocab_size, 1), special, joining="metaspace")

    @classmethod
    def t5(cls, model: bytes, special: SpecialIds, *, vocab_size: int) -> PieceTokenizer:
        """Return that of a Hugging Face T5, mT5 or MADLAD folder: ids are the numbers in the model.

        T5's "legacy" setting concerns text behind a special token; there is none in a text here.

        Args:
            model: Content of `spiece.model`.
            special: Ids with a meaning; suppressed ones should include the extra ids, "<2de>" and unused ids.
            vocab_size: Number of ids.

        Raises:
            ValueError: They do not describe one.
        """
        return cls(PieceSide(model, special.eos, special.unk, vocab_size, 0), special, joining="metaspace")

    @classmethod
    def plain(
        cls,
        model: bytes,
        special: SpecialIds,
        *,
        target_model: bytes | None = None,
        vocab_size: int | None = None,
        source_vocab_size: int | None = None,
    ) -> PieceTokenizer:
        """Return one whose ids are the numbers in the SentencePiece models, decoded as SentencePiece does.

        Args:
            model: Content of the SentencePiece file of both sides, or of the source's.
            special: Ids with a meaning in the target.
            target_model: Content of the target's file, if there are two. The source's special ids are then those
                that its own file says.
            vocab_size: Number of target ids, where the model has more than the file.
            source_vocab_size: Number of source ids, likewise.

        Raises:
            ValueError: They do not describe one.
        """
        proto = read_model(model, _SOURCE)
        if target_model is None:
            size = vocab_size or len(proto.pieces)
            side = PieceSide(model, special.eos, special.unk, size, 0)
            return cls(side, special, joining=_own_joining(proto))
        spec = proto.trainer_spec
        size = source_vocab_size or len(proto.pieces)
        source = PieceSide(model, spec.eos_id, spec.unk_id, size, 0)
        proto = read_model(target_model, _TARGET)
        target = PieceSide(target_model, special.eos, special.unk, vocab_size or len(proto.pieces), 0)
        return cls(source, special, target=target, joining=_own_joining(proto))

    @classmethod
    def load(cls, files: dict[str, bytes], settings: dict[str, Any], special: SpecialIds) -> PieceTokenizer:
        """Build it from models, vocabularies, and the numbers of each side."""
        joining = settings["joining"]
        if joining not in JOININGS:
            raise ValueError(f"joining is {joining!r}; allowed are {', '.join(JOININGS)}")
        sides = [_side_from(files, settings[name]) for name in ("source", "target") if name in settings]
        target = sides[1] if len(sides) > 1 else None
        return cls(sides[0], special, target=target, joining=cast(Joining, joining))

    def settings(self) -> dict[str, Any]:
        """Return how pieces are joined, and of each side its special ids, its size and which files are its own."""
        source, target = self._sides
        described: dict[str, Any] = {
            "joining": self._joining,
            "source": _describe_side(source, _SOURCE, _VOCABULARY),
        }
        if target is not source:
            vocabulary = _VOCABULARY if target.vocabulary == source.vocabulary else _TARGET_VOCABULARY
            described["target"] = _describe_side(target, _TARGET, vocabulary)
        return described

    def files(self) -> dict[str, bytes]:
        """Return the SentencePiece models and explicit vocabularies."""
        described = self.settings()
        files = {}
        for name, side in zip(("source", "target"), self._sides, strict=True):
            if name in described:
                files[described[name]["model"]] = side.model
                if not isinstance(side.vocabulary, int):
                    files[described[name]["vocabulary"]] = write_json(side.vocabulary)
        return files

    @property
    def vocab_size(self) -> int:
        """Number of target ids, special tokens included."""
        return self._sides[1].size

    @property
    def source_vocab_size(self) -> int:
        """Number of source ids."""
        return self._sides[0].size

    @property
    def textless_ids(self) -> tuple[int, ...]:
        """Target ids that stand for no text, EOS among them: what a search should not choose, but for EOS."""
        return tuple(i for i, piece in enumerate(self._pieces) if not piece)

    def encode(self, text: str) -> list[int]:
        """Return the source ids of `text`, ended by EOS."""
        return self._source.encode(text)

    def encode_target(self, text: str) -> list[int]:
        """Return the target ids of `text`, ended by EOS."""
        return self._target.encode(text)

    def detokenizer(self) -> Detokenizer:
        """Return a decoder of one text."""
        return piece_detokenizer(self, self._joining)

    def piece_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes that a target id stands for; empty for special tokens."""
        return self._pieces[token]

    def source_piece_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes that a source id stands for; empty for special ones."""
        return self._source_pieces[token]


def _load_side(side: PieceSide, name: str, special: Collection[int]) -> tuple[Side, list[bytes]]:
    """Return what encodes one side, and the bytes of each of its ids."""
    reserved = {side.eos, side.unk, *side.reserved, *special}
    check_ids(reserved, side.size, f"a special token beside {name}")
    proto = read_model(side.model, name)
    if isinstance(side.vocabulary, int):
        vocabulary = {piece.piece: number + side.vocabulary for number, piece in enumerate(proto.pieces)}
    else:
        vocabulary = dict(side.vocabulary)
    segmenter = Segmenter(proto, name, {piece for piece, i in vocabulary.items() if i in reserved})
    if isinstance(side.vocabulary, int):
        vocabulary = {piece: i for piece, i in vocabulary.items() if piece in segmenter.parts}
    ids = {piece: i for piece, i in vocabulary.items() if i not in reserved}
    check_ids(ids.values(), side.size, f"a piece of {name}")
    pieces = [b""] * side.size
    for piece, i in ids.items():
        pieces[i] = segmenter.text_bytes(piece)
    return Side(segmenter, ids, side.unk, (), (side.eos,)), pieces


def _own_joining(proto: Any) -> Joining:
    spec = proto.normalizer_spec
    if spec.remove_extra_whitespaces:
        return "each"
    return "one" if spec.add_dummy_prefix else "none"


def _describe_side(side: PieceSide, model: str, vocabulary: str) -> dict[str, Any]:
    described: dict[str, Any] = {"model": model, "eos": side.eos, "unk": side.unk, "size": side.size}
    if isinstance(side.vocabulary, int):
        described["offset"] = side.vocabulary
    else:
        described["vocabulary"] = vocabulary
    return described | ({"reserved": list(side.reserved)} if side.reserved else {})


def _side_from(files: Mapping[str, bytes], described: Mapping[str, Any]) -> PieceSide:
    model = file_of(files, described["model"])
    vocabulary: Mapping[str, int] | int
    if "offset" in described:
        vocabulary = int(described["offset"])
    else:
        name = described["vocabulary"]
        vocabulary = read_vocabulary(file_of(files, name), name)
    eos, unk, size = (int(described[name]) for name in ("eos", "unk", "size"))
    return PieceSide(model, eos, unk, size, vocabulary, tuple(int(i) for i in described.get("reserved", ())))


def _size(vocabulary: Mapping[str, int]) -> int:
    return max(vocabulary.values(), default=-1) + 1
