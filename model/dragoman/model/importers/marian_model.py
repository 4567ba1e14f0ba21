"""From what a Marian file holds to a checkpoint of ours, whatever the file's format."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from dragoman.model.checkpoint import Checkpoint
from dragoman.model.errors import ImportFailed
from dragoman.model.importers.marian_files import find_configuration, find_vocabularies
from dragoman.model.importers.marian_options import Options, read_layout
from dragoman.model.importers.marian_vocabulary import load_vocabularies, our_sizes
from dragoman.model.importers.marian_weights import build_model


def make_checkpoint(
    options: Options,
    tensors: Mapping[str, Tensor],
    model: Path,
    arguments: argparse.Namespace,
    languages: tuple[str, str] = ("", ""),
) -> Checkpoint:
    """Return the checkpoint.

    Args:
        options: Of the model.
        tensors: By Marian's names.
        model: The file they came from.
        arguments: As `marian_files.add_file_arguments` declares them.
        languages: BCP-47 tags of source and target, if they are known.

    Raises:
        ImportFailed: Says everything that is wrong.
    """
    if arguments.max_tokens < 2:
        raise ImportFailed(f"--max-tokens is {arguments.max_tokens}; a text and its end need 2")
    source_rows, target_rows = _rows(options, tensors)
    source_size, target_size = our_sizes(source_rows, target_rows)
    layout = read_layout(
        options,
        source_size=source_size,
        target_size=target_size,
        max_source_tokens=arguments.max_tokens,
        max_target_tokens=arguments.max_tokens,
    )
    transformer = build_model(tensors, layout, model)
    vocabularies = find_vocabularies(arguments.vocab, model, find_configuration(model))
    tokenizer = load_vocabularies(vocabularies, source_rows=source_rows, target_rows=target_rows, codes=arguments.codes)
    return Checkpoint(model, transformer, tokenizer, *languages, 0)


def _rows(options: Options, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
    """Return the numbers of source and target ids: what the tables have, or, without any, what the options say."""
    said = options.items("dim-vocabs")
    rows = []
    for index, name in enumerate(("encoder_Wemb", "decoder_Wemb")):
        table = tensors.get("Wemb", tensors.get(name))
        number = said[min(index, len(said) - 1)] if said else "0"
        rows.append(len(table) if table is not None and table.dim() else int(number) if number.isdigit() else 0)
    return rows[0], rows[1]
