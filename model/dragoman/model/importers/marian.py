"""Marian's own format: `model.npz` with its options inside or in YAML beside it, and vocabularies.

We compute what a model was trained to compute. Marian 1.12 itself does not, where a norm stands in front of
self-attention in the decoder: it translates step by step with keys and values from in front of the norm.
"""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.model.checkpoint import Checkpoint
from dragoman.model.errors import ImportFailed
from dragoman.model.importers.marian_files import add_file_arguments, find_model
from dragoman.model.importers.marian_model import make_checkpoint
from dragoman.model.importers.marian_options import Options, parse_options

SUMMARY = "Marian: a .npz file or its folder; Transformer with self-attention or SSRU in the decoder"

_OPTIONS = "special:model.yml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this format."""
    add_file_arguments(parser)
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the model's options in YAML, where the model file has none"
    )


def import_model(path: Path, arguments: argparse.Namespace) -> Checkpoint:
    """Read a model.

    Args:
        path: The .npz file or its folder.
        arguments: As `add_arguments` declares them.

    Raises:
        ImportFailed: It cannot be read, or computes something that we do not.
    """
    model = find_model(path, ("model.npz", "*.npz"))
    arrays = _read(model)
    embedded = arrays.pop(_OPTIONS, None)
    options = _options(model, embedded, arguments.config)
    # Whatever else is no part of the model is named so.
    tensors = {
        name: torch.from_numpy(array.astype(np.float32))
        for name, array in arrays.items()
        if not name.startswith("special:")
    }
    return make_checkpoint(options, tensors, model, arguments)


def _read(model: Path) -> dict[str, NDArray[Any]]:
    try:
        # Opened here: numpy leaves a file that is no archive open.
        with model.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise ImportFailed(f"{model}: cannot be read as a .npz file: {error}") from error


def _options(model: Path, embedded: NDArray[Any] | None, given: Path | None) -> Options:
    if given is not None:
        try:
            return parse_options(given.read_bytes(), given)
        except OSError as error:
            raise ImportFailed(f"{given}: cannot be read: {error.strerror}") from error
    if embedded is not None:
        return parse_options(embedded.tobytes(), model)
    beside = model.with_name(f"{model.name}.yml")
    if not beside.exists():
        raise ImportFailed(f"{model}: has no {_OPTIONS} inside and no {beside.name} beside it; give --config FILE")
    return parse_options(beside.read_bytes(), beside)
