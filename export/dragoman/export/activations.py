"""How large the activations of a graph become: what fp16 must be able to hold."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime
from onnxscript import ir

from dragoman.export import bundle
from dragoman.export.rewriting import Array, required
from dragoman.export.storage import save
from dragoman.model.config import ModelConfig
from dragoman.model.padding import pad_rows
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
    lengths = [length, max(1, length // 4), min(12, length)][:_ROWS]
    source_size = config.source_vocab_size or config.vocab_size
    sources = [[*generator.integers(4, source_size, n - 1).tolist(), special.eos] for n in lengths]
    new = min(_MOST_TARGET_TOKENS, config.max_target_tokens)
    targets = generator.integers(4, config.vocab_size, (len(lengths), new - 1)).tolist()
    with Probe(encoder) as of_encoder, Probe(decoder) as of_decoder:
        found = measure(of_encoder, of_decoder, sources, targets, special)
    return found.encoder, found.decoder


class Measured(NamedTuple):
    """What two graphs compute on a batch of texts.

    Attributes:
        encoder: Largest magnitude of each activation, by name.
        decoder: Likewise.
        outputs: Of both graphs, by name.
    """

    encoder: dict[str, float]
    decoder: dict[str, float]
    outputs: dict[str, Array]


def measure(
    encoder: Probe,
    decoder: Probe,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    special: SpecialIds,
) -> Measured:
    """Run both graphs on a batch of texts; a decoder reads each target in one step.

    Args:
        encoder: Of the encoder.
        decoder: Of the decoder.
        sources: Token ids, EOS last.
        targets: Token ids without the start token.
        special: What pads and starts.
    """
    source_ids, lengths = pad_rows(sources, special.pad).numpy(), np.array([len(ids) for ids in sources], np.int64)
    of_encoder, found = encoder.run({bundle.INPUT_IDS: source_ids, bundle.SOURCE_LENGTHS: lengths})
    target_ids = pad_rows([[special.start, *target] for target in targets], special.pad).numpy()
    feeds = {
        bundle.INPUT_IDS: target_ids,
        bundle.SOURCE_LENGTHS: lengths,
        bundle.CACHE_LENGTHS: np.zeros(len(lengths), np.int64),
        **found,
    }
    for value in decoder.graph.inputs:
        if value.name not in feeds and value.dtype == ir.DataType.FLOAT:
            axes = {"batch": len(lengths), "cache": target_ids.shape[1]}
            feeds[str(value.name)] = np.zeros(
                [axis if isinstance(axis, int) else axes[str(axis)] for axis in required(value.shape)], np.float32
            )
    of_decoder, updated = decoder.run(feeds)
    return Measured(of_encoder, of_decoder, found | updated)


class Probe:
    """A graph that tells how large what it computes becomes; a context, in which its model has more outputs.

    Attributes:
        graph: Of the model.
    """

    def __init__(self, model: ir.Model, names: Collection[str] | None = None) -> None:
        """Look at the values of these names, or at every float that is computed."""
        self.graph = model.graph
        self._model = model
        self._outputs = [str(value.name) for value in model.graph.outputs]
        self._watched = [
            value
            for node in model.graph
            for value in node.outputs
            if value.dtype == ir.DataType.FLOAT and (names is None or value.name in names)
        ]
        if missing := set(names or ()) - {str(value.name) for value in self._watched}:
            raise ValueError(f"the graph computes no {sorted(missing)}")

    def __enter__(self) -> Probe:
        """Load the graph."""
        inner = [value for value in self._watched if not value.is_graph_output()]
        self.graph.outputs.extend(inner)
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "graph.onnx"
                save(self._model, path)
                options = onnxruntime.SessionOptions()
                options.log_severity_level = 3
                # Fused nodes would hide what lies between them.
                options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
                self._session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        finally:
            while len(self.graph.outputs) > len(self._outputs):
                self.graph.outputs.pop()
        return self

    def __exit__(self, *_: object) -> None:
        """Forget the loaded graph."""
        del self._session

    def run(self, feeds: Mapping[str, Array]) -> tuple[dict[str, float], dict[str, Array]]:
        """Return the magnitude of every watched value, and the graph's outputs."""
        watched = [str(value.name) for value in self._watched]
        names = list(dict.fromkeys([*self._outputs, *watched]))
        found = dict(zip(names, self._session.run(names, dict(feeds)), strict=True))
        return {name: _magnitude(found[name]) for name in watched}, {name: found[name] for name in self._outputs}


def largest(model: ir.Model, feeds: Mapping[str, Array]) -> tuple[dict[str, float], dict[str, Array]]:
    """Return the magnitude of every float that a graph computes, and its outputs."""
    with Probe(model) as probe:
        return probe.run(feeds)


def _magnitude(values: Array) -> float:
    """Return the largest finite magnitude: -inf is a mask, not a number; NaN if there is one."""
    if values.dtype != np.float32 or not values.size:
        return 0.0
    if np.isnan(values).any():
        return float("nan")
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max(initial=0.0))
