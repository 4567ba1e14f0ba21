"""Writes a bundle from a checkpoint, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dragoman.export import bundle
from dragoman.export.bundle import Limits, Manifest
from dragoman.export.calibration import CalibrationPair
from dragoman.export.errors import ExportError
from dragoman.export.precision import DEVICES, Precision, write_graphs
from dragoman.export.staging import put_in_place, scratch_beside
from dragoman.export.to_onnx import shape_of
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.tokenizers import describe_tokenizer

_MOST_NAMED = 5

__all__ = ["DEVICES", "Precision", "write_bundle"]


def write_bundle(
    checkpoint: Checkpoint,
    out: Path,
    *,
    name: str,
    precision: Precision,
    verify: Callable[[Path], dict[str, Any]] | None,
    calibration: Sequence[CalibrationPair] = (),
) -> Manifest:
    """Export, verify and only then put the bundle in place.

    Args:
        checkpoint: What to export.
        out: Bundle folder; replaced if it is a bundle already.
        name: Model name that callers will use.
        precision: Of the weights and products.
        verify: Gets the finished folder and returns numbers for the manifest; raises to refuse it.
        calibration: Texts that int8-static takes its scales from.

    Returns:
        The manifest written.

    Raises:
        ExportError: `out` is in the way, or verification failed. Nothing is
            left behind.
    """
    out = out.resolve()
    if out.exists() and not bundle.is_bundle(out):
        raise ExportError(f"{out} exists and is not a bundle; choose another --out or remove it")
    _require_numbers(checkpoint)
    with scratch_beside(out) as scratch:
        folder = scratch / out.name
        folder.mkdir()
        graphs = write_graphs(checkpoint.model, checkpoint.tokenizer.special, folder, precision, calibration)
        for file, content in checkpoint.tokenizer.files().items():
            (folder / file).write_bytes(content)
        manifest = _manifest(checkpoint, folder, name, precision, graphs)
        manifest.write(folder)
        if verify is not None:
            manifest = replace(manifest, verification=verify(folder))
            manifest.write(folder)
        put_in_place(folder, out, scratch)
    return manifest


def _require_numbers(checkpoint: Checkpoint) -> None:
    """Refuse weights that are not numbers: the texts would be empty or nonsense.

    Raises:
        ExportError: Names them.
    """
    broken = [name for name, tensor in checkpoint.model.named_parameters() if not bool(tensor.isfinite().all())]
    if broken:
        more = f" and {len(broken) - _MOST_NAMED} more" if broken[_MOST_NAMED:] else ""
        listing = ", ".join(broken[:_MOST_NAMED]) + more
        raise ExportError(f"weights are not numbers, or infinite: {listing}; take another checkpoint of this model")


def _manifest(checkpoint: Checkpoint, folder: Path, name: str, precision: Precision, graphs: list[str]) -> Manifest:
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
        sha256={file: bundle.file_sha256(folder / file) for file in (*graphs, *checkpoint.tokenizer.files())},
        tokenizer=describe_tokenizer(checkpoint.tokenizer),
        several=checkpoint.languages,
    )
