"""Pickles that hold objects of another library, read as data.

A class of such a library is replaced by one of ours that keeps what was saved of an object and does nothing else.
Only classes that a format is known to save are replaced; any other makes the file refused, as without this module.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from dragoman.model.importers.tensors import read_torch

# What numpy makes of a single number: best scores and losses of a training run, which nobody here reads.
NUMPY_NUMBERS = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar", "numpy.dtype")


class StandIn:
    """An object of a class that is not loaded.

    Attributes:
        arguments: What it was to be made of.
        saved: Its state: attributes by name, or what the class itself made of them.
    """

    arguments: tuple[Any, ...]
    saved: Any

    def __new__(cls, *arguments: Any) -> StandIn:
        """Keep the arguments."""
        made = super().__new__(cls)
        made.arguments = arguments
        made.saved = {}
        return made

    def __init__(self, *arguments: Any) -> None:
        """Do nothing more: an unpickler calls this or does not."""

    def __setstate__(self, state: Any) -> None:
        """Keep the state, whatever it is."""
        self.saved = state

    def attribute(self, name: str) -> Any:
        """Return a saved attribute, or None."""
        return self.saved.get(name) if isinstance(self.saved, dict) else None


def read_with_stand_ins(path: Path, classes: Collection[str] = ()) -> Any:
    """Read what `torch.save` wrote as far as it is data, `argparse.Namespace` and objects of the given classes.

    Args:
        path: Of the file.
        classes: Full names of classes, or of functions that make an object, to be replaced.

    Raises:
        ImportFailed: It is no such file, or it holds more than that.
    """
    replaced = [(type("StandIn", (StandIn,), {"__doc__": f"Of {name}."}), name) for name in classes]
    with torch.serialization.safe_globals([argparse.Namespace, *replaced]):
        return read_torch(path)
