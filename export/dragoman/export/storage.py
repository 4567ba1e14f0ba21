"""Writes a graph to a file, its weights beside it where one file would be too large."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnxscript import ir

# ONNX files are Protocol Buffers, which end at 2 GiB.
LARGEST_FILE = 1 << 30
_SMALLEST_OUTSIDE = 1024  # bytes; smaller constants stay in the graph


def save(model: ir.Model, path: Path) -> list[Path]:
    """Write and check a graph.

    Args:
        model: The graph.
        path: Of the file. Weights of more than `LARGEST_FILE` bytes go into another one beside it, which is called
            the same with `.weights` behind it.

    Returns:
        The files written, `path` first.
    """
    files = [path]
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    if size > LARGEST_FILE:
        files.append(path.with_name(f"{path.name}.weights"))
        ir.save(model, path, external_data=files[1].name, size_threshold_bytes=_SMALLEST_OUTSIDE)
    else:
        ir.save(model, path)
    onnx.checker.check_model(path, full_check=True)
    return files
