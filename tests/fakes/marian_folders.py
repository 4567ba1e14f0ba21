"""Marian models as folders: vocabularies, and reading them back."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from dragoman.model.checkpoint import Checkpoint
from dragoman.model.importers import importer
from tests.fakes.marian_models import MarianModel


def write_vocabulary(path: Path, size: int, words: Callable[[int], str] = "w{}".format) -> Path:
    path.write_text("</s>: 0\n<unk>: 1\n" + "".join(f"{words(i)}: {i}\n" for i in range(2, size)), "utf-8")
    return path


def read(path: Path, *options: str, form: str = "marian") -> Checkpoint:
    parser = argparse.ArgumentParser()
    importer(form).add_arguments(parser)
    return importer(form).import_model(path, parser.parse_args(options))


def imported(model: MarianModel, folder: Path, form: str = "marian", *options: str) -> Checkpoint:
    """Write a model with a vocabulary for each side, and read it."""
    vocabularies = [write_vocabulary(folder / f"{i}.yml", size) for i, size in enumerate(model.options["dim-vocabs"])]
    write = {"marian": lambda: model.write_npz(folder / "m.npz"), "bergamot": lambda: model.write_bin(folder / "m.bin")}
    return read(write[form](), *(f"--vocab={path}" for path in vocabularies), *options, form=form)
