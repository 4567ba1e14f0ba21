"""How large the activations of a graph become: what fp16 must be able to hold."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime
from onnxscript import ir

from dragoman.export import bundle
from dragoman.export.rewriting import Array, required
from dragoman.export.storage import save
from dragoman.model.config import ModelConfig
from dragoman.model.vocab import SpecialIds

_ROWS = 3
_MOST_TARGET_TOKENS = 64


def largest_of_both(
    encoder: ir.Model, decoder: ir.Model, config: ModelConfig, special: SpecialIds, *, seed: int = 0
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the largest magnitude of each activation on random texts, one of them as long as the model takes.

    Args:
        encoder: fp32 graph; not changed.
        decoder: fp32 graph; not changed.
        config: Sizes.
        special: Start and end.
        seed: Of the texts.

    Returns:
        Magnitudes by name, of the encoder and of the decoder.
    """
    generator = np.random.default_rng(seed)
    length = config.max_source_tokens
    lengths = np.array([length, max(1, length // 4), min(12, length)][:_ROWS], np.int64)
    source_size = config.source_vocab_size or config.vocab_size
    source_ids = generator.integers(4, source_size, (len(lengths), length))
    source_ids[np.arange(len(lengths)), lengths - 1] = special.eos
    of_encoder, found = largest(encoder, {bundle.INPUT_IDS: source_ids, bundle.SOURCE_LENGTHS: lengths})
    new = min(_MOST_TARGET_TOKENS, config.max_target_tokens)
    target_ids = generator.integers(4, config.vocab_size, (len(lengths), new))
    target_ids[:, 0] = special.start
    feeds = {
        bundle.INPUT_IDS: target_ids,
        bundle.SOURCE_LENGTHS: lengths,
        bundle.CACHE_LENGTHS: np.zeros(len(lengths), np.int64),
        **found,
    }
    for value in decoder.graph.inputs:
        if value.name not in feeds and value.dtype == ir.DataType.FLOAT:
            axes = {"batch": len(lengths), "cache": new}
            feeds[str(value.name)] = np.zeros(
                [axis if isinstance(axis, int) else axes[str(axis)] for axis in required(value.shape)], np.float32
            )
    of_decoder, _ = largest(decoder, feeds)
    return of_encoder, of_decoder


def largest(model: ir.Model, feeds: Mapping[str, Array]) -> tuple[dict[str, float], dict[str, Array]]:
    """Return the magnitude of every float that a graph computes, and its outputs."""
    outputs = [str(value.name) for value in model.graph.outputs]
    inner = [
        value
        for node in model.graph
        for value in node.outputs
        if value.dtype == ir.DataType.FLOAT and not value.is_graph_output()
    ]
    model.graph.outputs.extend(inner)
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "graph.onnx"
            save(model, path)
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            # Fused nodes would hide what lies between them.
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
            names = [*outputs, *(str(value.name) for value in inner)]
            found = dict(zip(names, session.run(names, dict(feeds)), strict=True))
    finally:
        while len(model.graph.outputs) > len(outputs):
            model.graph.outputs.pop()
    return {name: _magnitude(values) for name, values in found.items()}, {name: found[name] for name in outputs}


def _magnitude(values: Array) -> float:
    """Return the largest finite magnitude: -inf is a mask, not a number; NaN if there is one."""
    if values.dtype != np.float32 or not values.size:
        return 0.0
    if np.isnan(values).any():
        return float("nan")
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max(initial=0.0))
