"""fairseq: `checkpoint_best.pt` or `model.pt` with dictionaries beside it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.model.checkpoint import Checkpoint
from dragoman.model.errors import ImportFailed
from dragoman.model.importers.fairseq_dictionary import (
    add_dictionary_arguments,
    find_dictionary,
    make_tokenizer,
    read_dictionary,
)
from dragoman.model.importers.fairseq_options import flatten, language_symbols, limits, read_shape
from dragoman.model.importers.fairseq_weights import build_model
from dragoman.model.importers.foreign_options import ForeignOptions
from dragoman.model.importers.language_tags import language_tags
from dragoman.model.importers.model_file import find_model_file
from dragoman.model.importers.stand_ins import NUMPY_NUMBERS, read_with_stand_ins
from dragoman.model.languages import Languages, LanguageTokens

SUMMARY = "fairseq: a checkpoint or its folder, with dict.LANGUAGE.txt and codes or a SentencePiece model beside it"

_NAMES = ("checkpoint_best.pt", "model.pt", "checkpoint_last.pt", "*.pt")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this format."""
    add_dictionary_arguments(parser)
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help="longest source and target, if less than the model's positions"
    )


def import_model(path: Path, arguments: argparse.Namespace) -> Checkpoint:
    """Read a model.

    Args:
        path: The checkpoint, or its folder.
        arguments: As `add_arguments` declares them.

    Raises:
        ImportFailed: It cannot be read, or computes something that we do not; says everything that is wrong.
    """
    file = find_model_file(path, _NAMES)
    state = read_with_stand_ins(file, NUMPY_NUMBERS)
    if not isinstance(state, Mapping) or not isinstance(state.get("model"), Mapping):
        raise ImportFailed(f"{file}: has no tensors under 'model'; it is no checkpoint that fairseq's trainer wrote")
    options = ForeignOptions(flatten(state, file), file)
    shape, most, symbols = read_shape(options), limits(options), language_symbols(options)
    options.finish()
    if arguments.max_tokens is not None:
        most = (min(most[0], arguments.max_tokens), min(most[1], arguments.max_tokens))
    model = build_model(state["model"], shape, most, file)
    codes = options.get("source_lang", ""), options.get("target_lang", "")
    source, target = (
        read_dictionary(find_dictionary(given, code, file.parent, side), tuple(symbols.values()))
        for given, code, side in zip(
            (arguments.source_dict, arguments.target_dict), codes, ("source", "target"), strict=True
        )
    )
    rows = model.config.source_vocab_size or model.config.vocab_size, model.config.vocab_size
    for side, words, size in zip(("source", "target"), (source, target), rows, strict=True):
        if len(words) != size:
            raise ImportFailed(f"{file}: the {side} dictionary has {len(words)} symbols, the embedding {size}")
    tokenizer = make_tokenizer(source, target, tuple(symbols.values()), file.parent, arguments)
    tags = language_tags(code for code in codes if code)
    languages = _languages(options, symbols, source, target)
    return Checkpoint(file, model, tokenizer, tags.get(codes[0], ""), tags.get(codes[1], ""), 0, languages)


def _languages(
    options: ForeignOptions, symbols: dict[str, str], source: tuple[str | None, ...], target: tuple[str | None, ...]
) -> Languages | None:
    """Return the languages of a multilingual model."""
    if not symbols:
        return None
    tags = language_tags(symbols)
    encoder: Any = options.get("encoder_langtok", "")
    of_source, of_target = ({name: (ids.index(symbols[name]),) for name in symbols} for ids in (source, target))
    return Languages(
        {tags[name]: LanguageTokens(before_source=of_source[name] if encoder == "src" else ()) for name in symbols},
        {
            tags[name]: LanguageTokens(
                before_source=of_source[name] if encoder == "tgt" else (),
                first_target=of_target[name] if options.get("decoder_langtok", False) else (),
            )
            for name in symbols
        },
    )
