"""Marian's vocabularies: SentencePiece models, or lists of symbols for text that is cut at spaces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from dragoman.model.errors import ImportFailed
from dragoman.model.tokenizers import Tokenizer
from dragoman.model.tokenizers.pieces import PieceTokenizer
from dragoman.model.tokenizers.segmenter import read_model
from dragoman.model.tokenizers.symbols import SymbolSide, SymbolTokenizer
from dragoman.model.vocab import SpecialIds

_SYMBOLS = (".yml", ".yaml", ".json")
# Each with the name that Nematus gave it, which Marian takes at its place in the list.
_EOS, _UNK = ("</s>", "eos", 0), ("<unk>", "UNK", 1)
# Ends a part of a word that goes on, in subword-nmt.
_JOINER = "@@"


def load_vocabularies(
    paths: Sequence[Path], *, source_rows: int, target_rows: int, codes: Path | None = None
) -> Tokenizer:
    """Return the tokenizer of a model; ours has the start token behind Marian's ids, and pads with it.

    Args:
        paths: Of source and target; they may be the same.
        source_rows: Number of Marian's source ids.
        target_rows: Number of Marian's target ids.
        codes: Of subword-nmt, for lists of symbols whose text is not cut into them yet.

    Raises:
        ImportFailed: A file is missing, is of a kind that we do not read, or is of another model.
    """
    contents = [_read(path) for path in paths]
    if codes is not None and paths[0].suffix not in _SYMBOLS:
        raise ImportFailed(f"{codes}: codes go with a list of symbols, {paths[0].name} is a SentencePiece model")
    if {path.suffix in _SYMBOLS for path in paths} == {True}:
        return _symbols(paths, contents, source_rows, target_rows, None if codes is None else _read(codes))
    return _pieces(paths, contents, source_rows, target_rows)


def our_sizes(source_rows: int, target_rows: int) -> tuple[int, int]:
    """Return our numbers of source and target ids: both have the start token, which also pads."""
    return max(source_rows, target_rows + 1), target_rows + 1


def _pieces(paths: Sequence[Path], contents: Sequence[bytes], source_rows: int, target_rows: int) -> Tokenizer:
    try:
        models = [read_model(content, str(path)) for path, content in zip(paths, contents, strict=True)]
    except ValueError as error:
        raise ImportFailed(
            f"{error}; supported are SentencePiece models and, by suffix, {', '.join(_SYMBOLS)}"
        ) from error
    for path, model, rows in zip(paths, models, (source_rows, target_rows), strict=True):
        if len(model.pieces) > rows:
            raise ImportFailed(
                f"{path}: has {len(model.pieces)} pieces, the model has embeddings for {rows}; it is the vocabulary of "
                "another model"
            )
    source_size, target_size = our_sizes(source_rows, target_rows)
    spec = models[1].trainer_spec
    special = _special(len(models[1].pieces), target_rows, eos=spec.eos_id, unk=spec.unk_id)
    separate = contents[0] != contents[1]
    if min(special.eos, special.unk) < 0:
        raise ImportFailed(f"{paths[1]}: has no piece for the end of a text or for the unknown; Marian needs both")
    try:
        return PieceTokenizer.plain(
            contents[0],
            special,
            target_model=contents[1] if separate else None,
            vocab_size=target_size,
            source_vocab_size=source_size if separate else None,
        )
    except ValueError as error:
        raise ImportFailed(f"{paths[0]}: {error}") from error


def _symbols(
    paths: Sequence[Path], contents: Sequence[bytes], source_rows: int, target_rows: int, codes: bytes | None
) -> Tokenizer:
    # What is behind the embeddings is unknown to the model: Marian cuts lists of symbols, too.
    source, target = (
        _read_symbols(path, content, rows)
        for path, content, rows in zip(paths, contents, (source_rows, target_rows), strict=True)
    )
    source_size, target_size = our_sizes(source_rows, target_rows)
    (source_eos, source_unk), (eos, unk) = (
        (_find(symbols, _EOS, path), _find(symbols, _UNK, path))
        for symbols, path in zip((source, target), paths, strict=True)
    )
    special = _special(len(target), target_rows, eos=eos, unk=unk)
    joiner = None if codes is None else _JOINER

    def side(symbols: list[str | None], size: int, eos: int, unk: int) -> SymbolSide:
        padded = (*symbols, *[None] * (size - len(symbols)))
        return SymbolSide(padded, "words", unk, after=(eos,), codes=codes, joiner=joiner)

    try:
        return SymbolTokenizer(
            side(source, source_size, source_eos, source_unk), special, target=side(target, target_size, eos, unk)
        )
    except ValueError as error:
        raise ImportFailed(f"{paths[0]}: {error}") from error


def _special(pieces: int, rows: int, *, eos: int, unk: int) -> SpecialIds:
    return SpecialIds(pad=rows, unk=unk, start=rows, eos=eos, suppressed=tuple(range(pieces, rows)))


def _read_symbols(path: Path, content: bytes, rows: int) -> list[str | None]:
    try:
        # A symbol may be spelt `no`, `null` or `1.0`: this loader leaves all of them texts.
        table = yaml.load(content.decode(), getattr(yaml, "CBaseLoader", yaml.BaseLoader))  # noqa: S506
        ids = {int(number): str(symbol) for symbol, number in table.items()}
    except (UnicodeDecodeError, yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise ImportFailed(f"{path}: is no table of symbols and their ids: {error}") from error
    return [ids.get(number) for number in range(min(rows, max(ids, default=-1) + 1))]


def _find(symbols: Sequence[str | None], names: tuple[str, str, int], path: Path) -> int:
    name, old, number = names
    if number < len(symbols) and symbols[number] in (None, old):
        return number
    if name not in symbols:
        raise ImportFailed(f"{path}: has no symbol {name!r}, which Marian needs")
    return symbols.index(name)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ImportFailed(f"{path}: cannot be read: {error.strerror}") from error
