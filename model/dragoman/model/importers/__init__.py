"""Checkpoints of other libraries, read as our own: one module per format, loaded when it is asked for.

A module has `SUMMARY`, `add_arguments(parser)` for options of its own, and `import_model(path, arguments)`,
which returns a `Checkpoint` and raises `ImportFailed`. Files are data: nothing here unpickles code.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Protocol, cast

from dragoman.model.checkpoint import Checkpoint

FORMATS = {
    "hf": "hugging_face",
    "marian": "marian",
    "bergamot": "bergamot",
    "torch": "torch_transformer",
    "fairseq": "fairseq",
    "opennmt": "opennmt",
    "joeynmt": "joeynmt",
}


class Importer(Protocol):
    """What a module of this package offers."""

    SUMMARY: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options of this format."""

    def import_model(self, path: Path, arguments: argparse.Namespace) -> Checkpoint:
        """Read the model at `path`.

        Raises:
            ImportFailed: It cannot be read as this format; says everything that is wrong.
        """


def importer(name: str) -> Importer:
    """Return the module of a format in `FORMATS`."""
    return cast(Importer, importlib.import_module(f"{__name__}.{FORMATS[name]}"))
