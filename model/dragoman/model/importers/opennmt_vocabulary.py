"""The vocabularies inside an OpenNMT-py checkpoint, and how a text is cut into their symbols."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.model.errors import ImportFailed
from dragoman.model.importers.stand_ins import StandIn
from dragoman.model.importers.symbol_files import read_bytes
from dragoman.model.tokenizers import SymbolSide, SymbolTokenizer
from dragoman.model.vocab import SpecialIds

# What version 2 keeps of torchtext: fields with vocabularies, and functions that nobody here calls.
CLASSES = (
    "functools.partial",
    "onmt.inputters.inputter.AlignField",
    "onmt.inputters.inputter._feature_tokenize",
    "onmt.inputters.inputter.make_src",
    "onmt.inputters.inputter.make_tgt",
    "onmt.inputters.text_dataset.TextMultiField",
    "onmt.inputters.text_dataset._feature_tokenize",
    "torchtext.data.field.Field",
    "torchtext.data.field.LabelField",
    "torchtext.data.field.RawField",
    "torchtext.data.utils._split_tokenizer",
    "torchtext.vocab.Vocab",
)
_PAD, _START, _END, _UNKNOWN = "<blank>", "<s>", "</s>", "<unk>"
_JOINER = "@@"
_MARK = "\uffed"  # of OpenNMT's own tokenizer


def add_vocabulary_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what a checkpoint does not hold: how texts were cut into symbols."""
    parser.add_argument("--codes", type=Path, metavar="FILE", help="of subword-nmt, for both sides")
    parser.add_argument("--target-codes", type=Path, metavar="FILE", help="of the target, if it has its own")
    parser.add_argument("--sentencepiece", type=Path, metavar="FILE", help="SentencePiece model, for both sides")
    parser.add_argument("--target-sentencepiece", type=Path, metavar="FILE", help="of the target, if it has its own")


def read_vocabularies(vocab: Any, path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return source and target symbols by id.

    Args:
        vocab: What a checkpoint has under this name.
        path: Of the checkpoint.

    Raises:
        ImportFailed: They cannot be found.
    """
    sides = tuple(_symbols(vocab.get(side) if isinstance(vocab, Mapping) else None) for side in ("src", "tgt"))
    if not sides[0] or not sides[1]:
        raise ImportFailed(
            f"{path}: has no vocabularies 'src' and 'tgt' under 'vocab'; those of version 2 and 3 can be read"
        )
    return sides[0], sides[1]


def _symbols(side: Any) -> tuple[str, ...]:
    """Return the symbols of a list (version 3), or of a torchtext field in version 2."""
    if isinstance(side, StandIn):
        fields = side.attribute("fields")
        field = fields[0][1] if isinstance(fields, list) and fields else side
        vocabulary = field.attribute("vocab") if isinstance(field, StandIn) else None
        side = vocabulary.attribute("itos") if isinstance(vocabulary, StandIn) else None
    if isinstance(side, list | tuple) and all(isinstance(symbol, str) for symbol in side):
        return tuple(side)
    return ()


def make_tokenizer(
    source: tuple[str, ...], target: tuple[str, ...], start: str, path: Path, arguments: argparse.Namespace
) -> SymbolTokenizer:
    """Return the tokenizer of both sides. OpenNMT-py puts nothing around a source, and EOS behind a target.

    Args:
        source: Symbols by id.
        target: Likewise.
        start: Symbol that the decoder reads first.
        path: Of the checkpoint.
        arguments: As `add_vocabulary_arguments` declares them.

    Raises:
        ImportFailed: A symbol is missing, or a file cannot be read or does not fit.
    """
    missing = [symbol for symbol in (_UNKNOWN, _PAD, _END, start) if symbol not in target]
    missing += [f"{symbol} of the source" for symbol in (_UNKNOWN,) if symbol not in source]
    if missing:
        raise ImportFailed(f"{path}: the vocabulary lacks {', '.join(missing)}")
    special = SpecialIds(
        pad=target.index(_PAD), unk=target.index(_UNKNOWN), start=target.index(start), eos=target.index(_END)
    )
    model = arguments.sentencepiece
    codes = arguments.codes
    try:
        return SymbolTokenizer(
            _side(source, (), codes, model, path),
            special,
            target=_side(
                target,
                (special.eos,),
                arguments.target_codes or codes,
                arguments.target_sentencepiece or model,
                path,
            ),
        )
    except ValueError as error:
        raise ImportFailed(f"{path}: {error}") from error


def _side(
    symbols: tuple[str, ...], after: tuple[int, ...], codes: Path | None, model: Path | None, path: Path
) -> SymbolSide:
    if model is None and any(_MARK in symbol for symbol in symbols):
        raise ImportFailed(
            f"{path}: symbols with {_MARK!r} were cut by OpenNMT's Tokenizer, which is not supported; supported are "
            "words, subword-nmt (--codes) and SentencePiece (--sentencepiece)"
        )
    joined = codes is not None or any(symbol.endswith(_JOINER) for symbol in symbols)
    reserved = {symbols.index(symbol) for symbol in (_PAD, _START, _END) if symbol in symbols}
    return SymbolSide(
        symbols=symbols,
        split="words" if model is None else "pieces",
        unk=symbols.index(_UNKNOWN),
        after=after,
        reserved=tuple(sorted(reserved)),
        codes=None if codes is None or model is not None else read_bytes(codes),
        joiner=_JOINER if joined and model is None else None,
        model=None if model is None else read_bytes(model),
    )
