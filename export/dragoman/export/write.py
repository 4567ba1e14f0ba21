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
from dragoman.export.destination import require_destination, writing
from dragoman.export.errors import ExportError
from dragoman.export.precision import DEVICES, Precision, Written, devices_for, write_graphs
from dragoman.export.staging import put_in_place, scratch_beside
from dragoman.export.to_onnx import shape_of
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.tokenizers import describe_tokenizer

_MOST_NAMED = 5

__all__ = ["DEVICES", "Precision", "devices_for", "write_bundle"]


def write_bundle(
    checkpoint: Checkpoint,
    out: Path,
    *,
    name: str,
    precision: Precision,
    verify: Callable[[Path], dict[str, Any]] | None,
    calibration: Sequence[CalibrationPair] = (),
    devices: Sequence[str] | None = None,
) -> Manifest:
    """Export, verify and only then put the bundle in place.

    Args:
        checkpoint: What to export.
        out: Bundle folder; replaced if it is a bundle already, or empty.
        name: Model name that callers will use.
        precision: Of the weights and products.
        verify: Gets the finished folder and returns numbers for the manifest; raises to refuse it.
        calibration: Texts that int8-static takes its scales from.
        devices: That the bundle is for, "cpu" or "cuda"; None takes all that the precision can run on. For CPUs alone,
            the graphs may use operators that are faster there.

    Returns:
        The manifest written.

    Raises:
        ExportError: `out` is in the way or cannot be written, the precision cannot run on a device, or verification
            failed. Nothing is left behind.
    """
    out = out.resolve()
    require_destination(out, bundle.is_bundle, "a bundle")
    chosen = devices_for(precision, devices)
    _require_numbers(checkpoint)
    with writing(out), scratch_beside(out) as scratch:
        folder = scratch / out.name
        folder.mkdir()
        graphs = write_graphs(checkpoint.model, checkpoint.tokenizer.special, folder, precision, calibration, chosen)
        for file, content in checkpoint.tokenizer.files().items():
            (folder / file).write_bytes(content)
        manifest = _manifest(checkpoint, folder, name, precision, chosen, graphs)
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


def _manifest(
    checkpoint: Checkpoint, folder: Path, name: str, precision: Precision, devices: tuple[str, ...], graphs: Written
) -> Manifest:
    config = checkpoint.model.config
    return Manifest(
        name=name,
        source_language=checkpoint.source_language,
        target_language=checkpoint.target_language,
        precision=precision,
        devices=devices,
        special=checkpoint.tokenizer.special,
        limits=Limits(config.max_source_tokens, config.max_target_tokens),
        shape=shape_of(config),
        model={**config.to_dict(), "steps": checkpoint.step},
        tools={package: version(package) for package in ("dragoman", "torch", "onnx", "onnxruntime")},
        sha256={file: bundle.file_sha256(folder / file) for file in (*graphs.files, *checkpoint.tokenizer.files())},
        tokenizer=describe_tokenizer(checkpoint.tokenizer),
        several=checkpoint.languages,
        cross_last=graphs.cross_last,
    )
