"""Explicit lists of symbols: characters, words, parts of words or pieces, by id, one list for each side.

What tutorials for torch.nn.Transformer, fairseq, OpenNMT-py and JoeyNMT have: a dictionary file, and a rule how
a text becomes its symbols. Source and target may differ in everything. `SpecialIds` describes the target; the
source's own special ids stand in its `SymbolSide`.

User text is data: a word that is spelt like a special symbol ("</s>") is an unknown word.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast, get_args

from dragoman.model.tokenizers.base import ByteDetokenizer, Detokenizer, Tokenizer
from dragoman.model.tokenizers.joining import piece_detokenizer
from dragoman.model.tokenizers.segmenter import Segmenter, read_model
from dragoman.model.tokenizers.side import Side, check_ids, file_of, read_symbols, write_json
from dragoman.model.tokenizers.subwords import Subwords
from dragoman.model.vocab import SpecialIds

Split = Literal["characters", "words", "pieces"]


@dataclass(frozen=True, slots=True)
class SymbolSide:
    """How one side writes a text.

    Attributes:
        symbols: By id; None where an id stands for no text (names of special symbols may stay).
        split: A text is a row of "characters", of "words" between white space, or of SentencePiece "pieces".
        unk: Id of what is not in the list.
        before: Ids in front of every text.
        after: Ids behind it: EOS, or nothing for a model that knows none.
        reserved: More ids that no text has: padding, the start of a target. Those in `before`, `after` and `unk`,
            and in the target those of `SpecialIds`, need not be repeated.
        lowercase: Upper-case letters become lower-case ones first.
        space: Of "characters": the symbol that stands for a space, if it is not the space itself.
        codes: Of "words": content of a file of subword-nmt or fastBPE codes, which cut words further.
        joiner: Of "words": ends a symbol that the next one continues; None where every symbol is a word.
        model: Of "pieces": content of a SentencePiece file.
    """

    symbols: tuple[str | None, ...]
    split: Split
    unk: int
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    reserved: tuple[int, ...] = ()
    lowercase: bool = False
    space: str | None = None
    codes: bytes | None = None
    joiner: str | None = None
    model: bytes | None = None


class SymbolTokenizer(Tokenizer):
    """Text to symbols to ids and back."""

    kind: ClassVar[str] = "symbols"

    def __init__(self, source: SymbolSide, special: SpecialIds, *, target: SymbolSide | None = None) -> None:
        """Load both sides.

        Args:
            source: Its symbols and ids.
            special: Ids with a meaning in the target.
            target: Its symbols and ids; None where they are the source's. `encode_target` frames a text with
                its `before` and `after`.

        Raises:
            ValueError: A side contradicts itself.
        """
        self.special = special
        self._sides = (source, target or source)
        marked = {special.pad, special.unk, special.start, special.eos, *special.suppressed}
        self._source, self._pieces = _load_side(source, "source", marked if target is None else set())
        self._target, self._source_pieces = self._source, self._pieces
        if target is not None:
            self._target, self._pieces = _load_side(target, "target", marked)

    @classmethod
    def load(cls, files: dict[str, bytes], settings: dict[str, Any], special: SpecialIds) -> SymbolTokenizer:
        """Build it from lists, codes, models, and the rules of each side."""
        source = _side_from(files, settings["source"], "source")
        target = _side_from(files, settings["target"], "target") if "target" in settings else None
        return cls(source, special, target=target)

    def settings(self) -> dict[str, Any]:
        """Return the rules of each side."""
        source, target = self._sides
        described = {"source": _describe_side(source)}
        return described if target is source else {**described, "target": _describe_side(target)}

    def files(self) -> dict[str, bytes]:
        """Return the lists of symbols, codes and SentencePiece models."""
        source, target = self._sides
        return _files_of(source, "source") | ({} if target is source else _files_of(target, "target"))

    @property
    def vocab_size(self) -> int:
        """Number of target ids, special symbols included."""
        return len(self._sides[1].symbols)

    @property
    def source_vocab_size(self) -> int:
        """Number of source ids, special symbols included."""
        return len(self._sides[0].symbols)

    @property
    def added_ids(self) -> int:
        """How many ids `encode` puts around those of a text."""
        return len(self._source.before) + len(self._source.after)

    @property
    def textless_ids(self) -> tuple[int, ...]:
        """Target ids that stand for no text, EOS among them: what a search should not choose, but for EOS."""
        return tuple(i for i, piece in enumerate(self._pieces) if not piece)

    def encode(self, text: str) -> list[int]:
        """Return the source ids of `text`, with those that the source has around it."""
        return self._source.encode(text)

    def encode_target(self, text: str) -> list[int]:
        """Return the target ids of `text`, with those that the target has around it."""
        return self._target.encode(text)

    def detokenizer(self) -> Detokenizer:
        """Return a decoder of one text."""
        target = self._sides[1]
        if target.split == "words":
            return WordDetokenizer(self, target.joiner)
        return (
            piece_detokenizer(self, "strip") if target.split == "pieces" else ByteDetokenizer(self, leading_space=True)
        )

    def piece_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes that a target id stands for; empty for special symbols."""
        return self._pieces[token]

    def source_piece_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes that a source id stands for; empty for special ones."""
        return self._source_pieces[token]


class WordDetokenizer:
    """Puts a space between words, and none behind a part of a word that ends with the joiner."""

    def __init__(self, tokenizer: Tokenizer, joiner: str | None) -> None:
        """Start a new text."""
        self._tokenizer = tokenizer
        self._joiner = joiner
        self._space = ""

    def push(self, token: int) -> str:
        """Return the text that `token` completes, possibly empty."""
        word = self._tokenizer.piece_bytes(token).decode()
        if not word:
            return ""
        space, self._space = self._space, " "
        if self._joiner is not None and word.endswith(self._joiner):
            self._space = ""
            word = word.removesuffix(self._joiner)
        return space + word

    def finish(self) -> str:
        """Return nothing: no symbol is held back."""
        return ""


def _load_side(side: SymbolSide, name: str, special: Collection[int]) -> tuple[Side, list[bytes]]:
    """Return what encodes one side, and the bytes of each of its ids."""
    problems = [f"{what} is for {split!r}, the split is {side.split!r}" for what, split in _misplaced(side)]
    if side.split == "pieces" and side.model is None:
        problems.append("the split is 'pieces', there is no SentencePiece model")
    if problems:
        raise ValueError(f"the {name} side: {'; '.join(problems)}")
    reserved = {side.unk, *side.before, *side.after, *side.reserved, *special}
    check_ids(reserved, len(side.symbols), f"a special symbol of the {name}")
    ids: dict[str, int] = {}
    for i, symbol in enumerate(side.symbols):
        if symbol and i not in reserved:
            ids.setdefault(symbol, i)
    names = {symbol for i, symbol in enumerate(side.symbols) if symbol and i in reserved}
    segment, text_bytes = _rule(side, name, names)
    pieces = [text_bytes(s) if s and i not in reserved else b"" for i, s in enumerate(side.symbols)]
    return Side(segment, ids, side.unk, side.before, side.after), pieces


def _rule(
    side: SymbolSide, name: str, special: Collection[str]
) -> tuple[Callable[[str], Sequence[str]], Callable[[str], bytes]]:
    """Return how a side cuts a text, and what each of its symbols writes."""

    def cased(text: str) -> str:
        return text.lower() if side.lowercase else text

    if side.split == "pieces":
        file = f"{name}.spm"
        segmenter = Segmenter(read_model(side.model or b"", file), file, special)
        return lambda text: segmenter(cased(text)), segmenter.text_bytes
    if side.split == "words":
        if side.codes is None:
            return lambda text: cased(text).split(), str.encode
        cut = Subwords(side.codes, f"{name}.codes", joiner=side.joiner or "@@").cut
        return lambda text: [part for word in cased(text).split() for part in cut(word)], str.encode
    space = side.space
    if space in (None, " "):
        return lambda text: list(cased(text)), str.encode
    # The symbol itself, where a text has it, is not a space; "" is no symbol of any list.
    swapped = {" ": space, space: ""}
    return (
        lambda text: [swapped.get(character, character) for character in cased(text)],
        lambda symbol: b" " if symbol == space else symbol.encode(),
    )


def _misplaced(side: SymbolSide) -> list[tuple[str, Split]]:
    given: list[tuple[str, Split, object]] = [
        ("a symbol for the space", "characters", side.space),
        ("a file of codes", "words", side.codes),
        ("a joiner", "words", side.joiner),
        ("a SentencePiece model", "pieces", side.model),
    ]
    return [(what, split) for what, split, value in given if value is not None and split != side.split]


def _describe_side(side: SymbolSide) -> dict[str, Any]:
    return {
        "split": side.split,
        "unk": side.unk,
        "before": list(side.before),
        "after": list(side.after),
        "reserved": list(side.reserved),
        "lowercase": side.lowercase,
        "space": side.space,
        "joiner": side.joiner,
        "codes": side.codes is not None,
    }


def _files_of(side: SymbolSide, name: str) -> dict[str, bytes]:
    files = {f"{name}.symbols.json": write_json(side.symbols)}
    if side.codes is not None:
        files[f"{name}.codes"] = side.codes
    if side.model is not None:
        files[f"{name}.spm"] = side.model
    return files


def _side_from(files: Mapping[str, bytes], described: Mapping[str, Any], name: str) -> SymbolSide:
    split = described["split"]
    if split not in get_args(Split):
        raise ValueError(f"the {name} side is split into {split!r}; allowed are {', '.join(get_args(Split))}")
    symbols = f"{name}.symbols.json"
    return SymbolSide(
        symbols=read_symbols(file_of(files, symbols), symbols),
        split=cast(Split, split),
        unk=int(described["unk"]),
        before=tuple(int(i) for i in described.get("before", ())),
        after=tuple(int(i) for i in described.get("after", ())),
        reserved=tuple(int(i) for i in described.get("reserved", ())),
        lowercase=bool(described.get("lowercase", False)),
        space=described.get("space"),
        codes=file_of(files, f"{name}.codes") if described.get("codes") else None,
        joiner=described.get("joiner"),
        model=file_of(files, f"{name}.spm") if split == "pieces" else None,
    )
