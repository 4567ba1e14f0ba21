"""The vocabularies of a JoeyNMT model, and how a text is cut into their symbols."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.model.errors import ImportFailed
from dragoman.model.importers.foreign_options import ForeignOptions, as_mapping
from dragoman.model.importers.symbol_files import read_bytes, read_lines
from dragoman.model.tokenizers import SymbolSide, SymbolTokenizer
from dragoman.model.vocab import SpecialIds

_SPACE = "\u2581"
_NAMES = {"unk": "<unk>", "pad": "<pad>", "bos": "<s>", "eos": "</s>"}


def add_vocabulary_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where files are that the configuration does not name, or names on another machine."""
    for side in ("source", "target"):
        parser.add_argument(
            f"--{side}-codes", type=Path, metavar="FILE", help="of subword-nmt (default: as the configuration says)"
        )
        parser.add_argument(
            f"--{side}-sentencepiece", type=Path, metavar="FILE", help="model (default: as the configuration says)"
        )


@dataclass(frozen=True, slots=True)
class SideFiles:
    """What one side is made of.

    Attributes:
        symbols: By id.
        language: Code of the side's language.
        options: Of its tokenizer, for messages "src.lowercase".
        codes: Of subword-nmt, named by the user.
        model: SentencePiece, named by the user.
    """

    symbols: tuple[str, ...]
    language: str
    options: ForeignOptions
    codes: Path | None
    model: Path | None


def read_sides(
    data: Mapping[str, Any], folder: Path, arguments: argparse.Namespace, problems: list[str]
) -> tuple[SideFiles, SideFiles]:
    """Return source and target.

    Args:
        data: Section of the configuration.
        folder: Of the model, with `src_vocab.txt` and `trg_vocab.txt`.
        arguments: As `add_vocabulary_arguments` declares them.
        problems: Gets what we cannot follow.

    Raises:
        ImportFailed: A file is missing.
    """
    special = as_mapping(data.get("special_symbols")) or {}
    problems += [
        f"data.special_symbols.{name} is {special[name]!r}; prompts are not supported"
        for name in ("sep_token", "lang_tags")
        if special.get(name)
    ]
    first = [str(special.get(f"{name}_token", default)) for name, default in _NAMES.items()]
    sides = []
    for key, ours in (("src", "source"), ("trg", "target")):
        own = as_mapping(data.get(key))
        # Version 1 has one set of settings for both, and the language in place of those.
        settings = {"lang": data.get(key), **data} if own is None else dict(own)
        settings |= as_mapping(settings.get("tokenizer_cfg")) or {}
        path = folder / f"{key}_vocab.txt"
        lines = "\n".join(read_lines(path)).splitlines()  # JoeyNMT takes more than line feeds for the end of a line
        symbols = tuple(dict.fromkeys([*first, *lines]))
        options = ForeignOptions({f"{key}.{name}": value for name, value in settings.items()}, path)
        options.require({f"{key}.normalize": (False,), f"{key}.pretokenizer": ("none",)})
        problems += options.problems
        language = settings.get("lang") or ""
        codes, model = getattr(arguments, f"{ours}_codes"), getattr(arguments, f"{ours}_sentencepiece")
        sides.append(SideFiles(symbols, str(language), options, codes, model))
    return sides[0], sides[1]


def make_tokenizer(sides: tuple[SideFiles, SideFiles], special: SpecialIds, folder: Path) -> SymbolTokenizer:
    """Return the tokenizer of both sides: EOS stands behind a source, too.

    Args:
        sides: Source and target.
        special: Ids of the special symbols, the same on both sides.
        folder: Of the model.

    Raises:
        ImportFailed: A file cannot be read or does not fit.
    """
    source, target = (_symbol_side(side, key, special, folder) for side, key in zip(sides, ("src", "trg"), strict=True))
    try:
        return SymbolTokenizer(source, special, target=None if source == target else target)
    except ValueError as error:
        raise ImportFailed(f"{folder}: {error}") from error


def special_ids(symbols: tuple[str, ...], data: Mapping[str, Any]) -> SpecialIds:
    """Return the ids of the special symbols."""
    given = as_mapping(data.get("special_symbols")) or {}
    ids = {name: symbols.index(str(given.get(f"{name}_token", default))) for name, default in _NAMES.items()}
    return SpecialIds(pad=ids["pad"], unk=ids["unk"], start=ids["bos"], eos=ids["eos"])


def _symbol_side(side: SideFiles, key: str, special: SpecialIds, folder: Path) -> SymbolSide:
    options = side.options
    level = options.get(f"{key}.level", "word")
    kind = options.get(f"{key}.tokenizer_type", options.get(f"{key}.bpe_type", "sentencepiece"))
    codes, model = side.codes, side.model
    if level == "bpe" and codes is None and model is None:
        if kind == "subword-nmt" and options.get(f"{key}.codes", ""):
            codes = _beside(folder, str(options.get(f"{key}.codes", "")), f"--{_OURS[key]}-codes")
        elif kind == "sentencepiece" and options.get(f"{key}.model_file", ""):
            model = _beside(folder, str(options.get(f"{key}.model_file", "")), f"--{_OURS[key]}-sentencepiece")
    joiner = str(options.get(f"{key}.separator", "@@"))
    return SymbolSide(
        symbols=side.symbols,
        split="characters" if level == "char" else "words" if model is None else "pieces",
        unk=special.unk,
        after=(special.eos,),
        reserved=(special.pad, special.start),
        lowercase=bool(options.get(f"{key}.lowercase", False)),
        space=_SPACE if level == "char" else None,
        codes=None if codes is None else read_bytes(codes),
        joiner=joiner if level == "bpe" and model is None else None,
        model=None if model is None else read_bytes(model),
    )


_OURS = {"src": "source", "trg": "target"}


def _beside(folder: Path, name: str, option: str) -> Path:
    """Return a file that the configuration names: JoeyNMT copies it into the model's folder."""
    for path in (folder / Path(name).name, Path(name)):
        if path.exists():
            return path
    raise ImportFailed(f"{folder}: the configuration names {name}, which is not there; give it with {option} FILE")
