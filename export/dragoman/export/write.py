"""Writes a bundle from a checkpoint, whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from dragoman.export import bundle
from dragoman.export.bundle import Limits, Manifest
from dragoman.export.errors import ExportError
from dragoman.export.quantize import quantize_int8
from dragoman.export.to_onnx import export_decoder, export_encoder, shape_of
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.tokenizers import describe_tokenizer

Precision = Literal["fp32", "int8"]
# Integer products have kernels on the CPU only.
DEVICES: dict[Precision, tuple[str, ...]] = {"fp32": ("cpu", "cuda"), "int8": ("cpu",)}


def write_bundle(
    checkpoint: Checkpoint,
    out: Path,
    *,
    name: str,
    precision: Precision,
    verify: Callable[[Path], dict[str, Any]] | None,
) -> Manifest:
    """Export, verify and only then put the bundle in place.

    Args:
        checkpoint: What to export.
        out: Bundle folder; replaced if it is a bundle already.
        name: Model name that callers will use.
        precision: Of the weights and products.
        verify: Gets the finished folder and returns numbers for the manifest; raises to refuse it.

    Returns:
        The manifest written.

    Raises:
        ExportError: `out` is in the way, or verification failed. Nothing is
            left behind.
    """
    out = out.resolve()
    if out.exists() and not bundle.is_bundle(out):
        raise ExportError(f"{out} exists and is not a bundle; choose another --out or remove it")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        folder = Path(scratch) / out.name
        folder.mkdir()
        _write_graphs(checkpoint, folder, Path(scratch), precision)
        for file, content in checkpoint.tokenizer.files().items():
            (folder / file).write_bytes(content)
        manifest = _manifest(checkpoint, folder, name, precision)
        manifest.write(folder)
        if verify is not None:
            manifest = replace(manifest, verification=verify(folder))
            manifest.write(folder)
        if out.exists():
            os.replace(out, Path(scratch) / "replaced")
        os.replace(folder, out)
    return manifest


def _write_graphs(checkpoint: Checkpoint, folder: Path, scratch: Path, precision: Precision) -> None:
    into = folder if precision == "fp32" else scratch
    export_encoder(checkpoint.model, into / bundle.ENCODER)
    export_decoder(checkpoint.model, checkpoint.tokenizer.special, into / bundle.DECODER)
    if precision == "int8":
        for graph in (bundle.ENCODER, bundle.DECODER):
            quantize_int8(scratch / graph, folder / graph)


def _manifest(checkpoint: Checkpoint, folder: Path, name: str, precision: Precision) -> Manifest:
    config = checkpoint.model.config
    return Manifest(
        name=name,
        source_language=checkpoint.source_language,
        target_language=checkpoint.target_language,
        precision=precision,
        devices=DEVICES[precision],
        special=checkpoint.tokenizer.special,
        limits=Limits(config.max_source_tokens, config.max_target_tokens),
        shape=shape_of(config),
        model={**config.to_dict(), "steps": checkpoint.step},
        tools={package: version(package) for package in ("dragoman", "torch", "onnx", "onnxruntime")},
        sha256={file: bundle.file_sha256(folder / file) for file in (*bundle.GRAPHS, *checkpoint.tokenizer.files())},
        tokenizer=describe_tokenizer(checkpoint.tokenizer),
        several=checkpoint.languages,
    )
