"""The dictionaries of a fairseq model, and how a text is cut into their symbols."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from dragoman.model.errors import ImportFailed
from dragoman.model.importers.fairseq_options import PADDING
from dragoman.model.importers.symbol_files import read_bytes, read_lines
from dragoman.model.tokenizers import SymbolSide, SymbolTokenizer
from dragoman.model.vocab import SpecialIds

START, END, UNKNOWN = 0, 2, 3
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
_OVERWRITE = " #fairseq:overwrite"
# What fairseq's own hub takes from the folder of a model.
_CODES = ("bpecodes", "code")
_SENTENCEPIECE = "sentencepiece.bpe.model"
_JOINER = "@@"


def add_dictionary_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where dictionaries and codes are."""
    parser.add_argument("--source-dict", type=Path, metavar="FILE", help="default: dict.LANGUAGE.txt beside the model")
    parser.add_argument("--target-dict", type=Path, metavar="FILE", help="likewise")
    parser.add_argument(
        "--codes", type=Path, metavar="FILE", help=f"of subword-nmt or fastBPE; default: {' or '.join(_CODES)}"
    )
    parser.add_argument("--sentencepiece", type=Path, metavar="FILE", help=f"model file; default: {_SENTENCEPIECE}")


def read_dictionary(path: Path, more: Sequence[str] = ()) -> tuple[str | None, ...]:
    """Read a dictionary: "symbol count" in each line, behind four symbols that are not in the file.

    Args:
        path: Of the file.
        more: Symbols that the task adds.

    Returns:
        Symbols by id; None where a later line takes the symbol over.

    Raises:
        ImportFailed: It is none.
    """
    symbols: list[str | None] = list(_SPECIAL)
    known = set(_SPECIAL)
    for number, line in enumerate(read_lines(path), 1):
        overwrite = line.endswith(_OVERWRITE)
        symbol, _, count = line.removesuffix(_OVERWRITE).rstrip().rpartition(" ")
        if not symbol or not count.lstrip("-").isdecimal():
            raise ImportFailed(f"{path}, line {number}: {line[:60]!r} is not a symbol and its count")
        if symbol in known and not overwrite:
            raise ImportFailed(f"{path}, line {number}: {symbol!r} is there already")
        if symbol in known and symbol not in _SPECIAL:
            symbols[symbols.index(symbol)] = None
        known.add(symbol)
        symbols.append(symbol)
    return (*symbols, *(symbol for symbol in more if symbol not in known))


def find_dictionary(given: Path | None, language: str, folder: Path, side: str) -> Path:
    """Return the dictionary of a side.

    Args:
        given: By the user.
        language: Code of the side's language; "" if it is not known.
        folder: Of the model.
        side: "source" or "target".

    Raises:
        ImportFailed: It cannot be told.
    """
    if given is not None:
        return given
    if language and (folder / f"dict.{language}.txt").exists():
        return folder / f"dict.{language}.txt"
    found = sorted(folder.glob("dict*.txt"))
    # A multilingual model has a copy for each of its languages.
    if found and len({path.read_bytes() for path in found}) == 1:
        return found[0]
    names = ", ".join(path.name for path in found) or "no dict*.txt"
    wanted = f"dict.{language}.txt" if language else f"the {side} dictionary"
    raise ImportFailed(f"{folder}: has {names}; {wanted} is needed: name it with --{side}-dict FILE")


def make_tokenizer(
    source: tuple[str | None, ...],
    target: tuple[str | None, ...],
    languages: Sequence[str],
    folder: Path,
    arguments: argparse.Namespace,
) -> SymbolTokenizer:
    """Return the tokenizer of both sides.

    Args:
        source: Symbols by id.
        target: Likewise.
        languages: Symbols that stand for a language, not for text.
        folder: Of the model.
        arguments: As `add_dictionary_arguments` declares them.

    Raises:
        ImportFailed: A file cannot be read or does not fit.
    """
    codes = arguments.codes or next((folder / name for name in _CODES if (folder / name).exists()), None)
    model = arguments.sentencepiece
    if model is None and arguments.codes is None and (folder / _SENTENCEPIECE).exists():
        model = folder / _SENTENCEPIECE
    if model is not None:
        codes = None

    def side(symbols: tuple[str | None, ...]) -> SymbolSide:
        joined = codes is not None or any(symbol.endswith(_JOINER) for symbol in symbols if symbol)
        return SymbolSide(
            symbols=symbols,
            split="words" if model is None else "pieces",
            unk=UNKNOWN,
            after=(END,),
            reserved=(START, PADDING, *(symbols.index(symbol) for symbol in languages if symbol in symbols)),
            codes=None if codes is None else read_bytes(codes),
            joiner=_JOINER if joined and model is None else None,
            model=None if model is None else read_bytes(model),
        )

    special = SpecialIds(pad=PADDING, unk=UNKNOWN, start=END, eos=END)
    try:
        return SymbolTokenizer(side(source), special, target=None if source == target else side(target))
    except ValueError as error:
        raise ImportFailed(f"{folder}: {error}") from error
