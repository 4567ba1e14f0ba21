"""Marian's binary format, as Bergamot and Firefox Translations ship it: `model.*.intgemm.alphas.bin`.

A file is a table of contents and one block per tensor; options are a tensor, too. Matrices in 8 or 16 bits
become numbers again here: value = integer / multiplier. The lexical shortlist beside the model
(`lex.*.s2t.bin`) is not read: logits are computed for the whole vocabulary.
"""

from __future__ import annotations

import argparse
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.model.checkpoint import Checkpoint
from dragoman.model.errors import ImportFailed
from dragoman.model.importers.marian_files import add_file_arguments, find_model
from dragoman.model.importers.marian_model import make_checkpoint
from dragoman.model.importers.marian_options import parse_options

SUMMARY = "Bergamot and Firefox Translations: a .bin file (intgemm 8 or 16 bits, or float) or its folder"

_VERSION = 1
_OPTIONS = "special:model.yml"
_FLOATS: dict[int, np.dtype[Any]] = {0x402: np.dtype("<f2"), 0x404: np.dtype("<f4"), 0x408: np.dtype("<f8")}
# Independent of the processor: integers as they are, then one multiplier.
_INTGEMM: dict[int, np.dtype[Any]] = {0x4101: np.dtype("i1"), 0x4102: np.dtype("<i2")}
# As Mozilla's files are called.
_PAIR = re.compile(r"model\.([a-z]{2})([a-z]{2})\.intgemm")
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd", b"PK": "zip"}


@dataclass(frozen=True, slots=True)
class _Item:
    """One entry of the table of contents.

    Attributes:
        name: Of the tensor.
        kind: Number of its type.
        shape: As Marian computes with it, [in, out].
        data: Its block.
    """

    name: str
    kind: int
    shape: tuple[int, ...]
    data: memoryview


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this format."""
    add_file_arguments(parser)


def import_model(path: Path, arguments: argparse.Namespace) -> Checkpoint:
    """Read a model.

    Args:
        path: The .bin file or its folder.
        arguments: As `add_arguments` declares them.

    Raises:
        ImportFailed: It cannot be read, or computes something that we do not.
    """
    model = find_model(path, ("model*.bin",))
    options = None
    tensors: dict[str, Tensor] = {}
    for item in _read(model):
        if item.name == _OPTIONS:
            options = parse_options(bytes(item.data), model)
        elif not item.name.startswith("special:"):
            tensors[item.name] = torch.from_numpy(_values(item, model))
    if options is None:
        raise ImportFailed(f"{model}: has no {_OPTIONS} inside; it was written by too old a version of Marian")
    pair = _PAIR.match(model.name)
    return make_checkpoint(options, tensors, model, arguments, (pair[1], pair[2]) if pair else ("", ""))


def _read(model: Path) -> list[_Item]:
    try:
        content = model.read_bytes()
    except OSError as error:
        raise ImportFailed(f"{model}: cannot be read: {error.strerror}") from error
    for start, name in _COMPRESSED.items():
        if content.startswith(start):
            raise ImportFailed(f"{model}: is compressed with {name}; unpack it first")
    try:
        return list(_items(memoryview(content), model))
    except (struct.error, ValueError) as error:
        raise ImportFailed(f"{model}: is no binary file of Marian's, or is cut off: {error}") from error


def _items(content: memoryview, model: Path) -> Iterator[_Item]:
    version, count = struct.unpack_from("<2Q", content)
    if version != _VERSION:
        raise ImportFailed(f"{model}: is no binary file of Marian's, or has version {version}; supported is {_VERSION}")
    at = 16
    headers = [struct.unpack_from("<4Q", content, at + 32 * i) for i in range(count)]
    at += 32 * count
    names, shapes = [], []
    for length, *_ in headers:
        names.append(bytes(content[at : at + length]).rstrip(b"\0").decode())
        at += length
    for _, _, rank, _ in headers:
        shapes.append(struct.unpack_from(f"<{rank}i", content, at))
        at += 4 * rank
    at += 8 + struct.unpack_from("<Q", content, at)[0]
    for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
        if at + size > len(content):
            raise ValueError(f"{name} ends at byte {at + size}, the file at {len(content)}")
        yield _Item(name, kind, shape, content[at : at + size])
        at += size


def _values(item: _Item, model: Path) -> NDArray[np.float32]:
    """Return the numbers of a tensor, float32 in its own shape."""
    count = int(np.prod(item.shape))
    kind = _FLOATS.get(item.kind) or _INTGEMM.get(item.kind)
    if kind is None:
        raise ImportFailed(
            f"{model}: {item.name} is of type {item.kind:#x}; supported are floating point and intgemm's 8 and 16 "
            "bits, not what was packed for one kind of processor"
        )
    if len(item.data) < count * kind.itemsize + (4 if item.kind in _INTGEMM else 0):
        raise ImportFailed(f"{model}: {item.name} has {len(item.data)} bytes, too few for {list(item.shape)}")
    values: NDArray[np.float32] = np.frombuffer(item.data, kind, count).astype(np.float32)
    if item.kind in _FLOATS:
        return values.reshape(item.shape)
    values /= np.frombuffer(item.data, "<f4", 1, count * kind.itemsize)
    # Matrices of products lie transposed in the file; tables of embeddings do not.
    return values.reshape(item.shape) if "Wemb" in item.name else values.reshape(item.shape[::-1]).T
