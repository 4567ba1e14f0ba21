"""OpenNMT-py 2 and 3: `model_step_N.pt`, with a safetensors file beside it if it was saved so."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.model.checkpoint import Checkpoint
from dragoman.model.errors import ImportFailed
from dragoman.model.importers.foreign_options import ForeignOptions, as_mapping
from dragoman.model.importers.model_file import find_model_file
from dragoman.model.importers.opennmt_options import interleaved, read_shape
from dragoman.model.importers.opennmt_vocabulary import (
    CLASSES,
    add_vocabulary_arguments,
    make_tokenizer,
    read_vocabularies,
)
from dragoman.model.importers.opennmt_weights import build_model, rename
from dragoman.model.importers.stand_ins import NUMPY_NUMBERS, read_with_stand_ins
from dragoman.model.importers.tensors import read_safetensors

SUMMARY = "OpenNMT-py 2 and 3: a checkpoint with a Transformer"

_START = "<s>"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this format."""
    add_vocabulary_arguments(parser)
    parser.add_argument(
        "--max-tokens", type=int, default=512, metavar="N", help="longest source and target (default: 512)"
    )


def import_model(path: Path, arguments: argparse.Namespace) -> Checkpoint:
    """Read a model.

    Args:
        path: The checkpoint, or a folder with one.
        arguments: As `add_arguments` declares them.

    Raises:
        ImportFailed: It cannot be read, or computes something that we do not; says everything that is wrong.
    """
    file = find_model_file(path, ("*.pt",))
    state = read_with_stand_ins(file, (*NUMPY_NUMBERS, *CLASSES))
    given = as_mapping(state.get("opt")) if isinstance(state, Mapping) else None
    if given is None or "vocab" not in state:
        raise ImportFailed(f"{file}: has no options under 'opt' and no 'vocab'; it is no checkpoint of OpenNMT-py")
    tensors = _tensors(state, file)
    options = ForeignOptions(given, file)
    shape = read_shape(options, tensors)
    options.finish()
    model = build_model(tensors, shape, arguments.max_tokens, file, interleaved=interleaved(options))
    vocab = state["vocab"]
    source, target = read_vocabularies(vocab, file)
    rows = model.config.source_vocab_size or model.config.vocab_size, model.config.vocab_size
    for side, symbols, size in zip(("source", "target"), (source, target), rows, strict=True):
        if len(symbols) != size:
            raise ImportFailed(f"{file}: the {side} vocabulary has {len(symbols)} symbols, the embedding {size}")
    start = vocab.get("decoder_start_token") or _START
    return Checkpoint(file, model, make_tokenizer(source, target, start, file, arguments), "", "", 0)


def _tensors(state: Mapping[str, Any], file: Path) -> dict[str, Tensor]:
    """Return all tensors: those of the checkpoint, or those of the safetensors file that goes with it."""
    if isinstance(state.get("model"), Mapping):
        return rename(state["model"], state.get("generator") or {})
    beside = file.with_suffix(".safetensors")
    if not beside.exists():
        raise ImportFailed(f"{file}: has no tensors under 'model', and there is no {beside.name} beside it")
    return rename(read_safetensors(beside), {})
