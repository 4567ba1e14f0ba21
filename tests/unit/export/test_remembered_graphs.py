"""What the tests of export stand on: a copy of an exported graph is what the exporter would give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from onnxscript import ir

from dragoman.export import bundle
from dragoman.export.graphs import DecoderGraph
from dragoman.export.precision import write_graphs
from dragoman.export.to_onnx import encoder_graph
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.transformer import Transformer
from dragoman.model.vocab import SPECIAL_IDS, SpecialIds
from tests.fakes.bundles import make_checkpoint
from tests.fakes.remembered_graphs import RememberedGraphs, fingerprint

SMALL: dict[str, Any] = {"num_encoder_layers": 1, "num_decoder_layers": 1}


def written(checkpoint: Checkpoint, folder: Path) -> list[bytes]:
    folder.mkdir()
    write_graphs(checkpoint.model, checkpoint.tokenizer.special, folder, "int8")
    return [(folder / name).read_bytes() for name in bundle.GRAPHS]


def test_a_copy_is_what_the_exporter_gives(graphs: RememberedGraphs, tmp_path: Path) -> None:
    """To the byte in the file; so are two exports of one checkpoint."""
    first = written(make_checkpoint(**SMALL), tmp_path / "first")
    made = graphs.made
    copy = written(make_checkpoint(**SMALL), tmp_path / "copy")
    assert graphs.made == made
    with graphs.anew():
        anew = written(make_checkpoint(**SMALL), tmp_path / "anew")

    assert graphs.made == made + 2
    assert first == copy == anew


def key(model: Transformer, special: SpecialIds = SPECIAL_IDS, start: int = 2, **options: Any) -> bytes:
    return fingerprint(DecoderGraph(model, special), (torch.full((2, 3), start),), options)


def test_what_a_graph_could_depend_on_makes_another_key() -> None:
    """A weight, a setting, a special id, the mode, a method of a module, the example, and functions among options."""
    model = make_checkpoint(**SMALL).model
    keys = [key(model)]
    assert key(make_checkpoint(**SMALL).model) == keys[0]
    keys.append(key(make_checkpoint(**SMALL, scale_attention=False).model))
    keys.append(key(model, replace(SPECIAL_IDS, suppressed=(7,))))
    keys.append(key(model, start=3))
    keys.append(key(model, input_names=["other"]))
    keys += [key(model, table={torch.ops.aten.relu.default: scaled_by(number)}) for number in (1, 2)]
    keys.append(key(model.train()))
    model.eval()
    layer: Any = model.decoder.layers[0]
    layer.feed_forward.forward = scaled_by(3)
    keys.append(key(model))
    del layer.feed_forward.forward
    assert key(model) == keys[0]
    with torch.no_grad():
        layer.feed_forward.expand.weight[3, 4] += 1e-6
    keys.append(key(model))

    assert len(set(keys)) == len(keys)


def scaled_by(factor: int) -> Callable[[Any], Any]:
    """Return functions that differ in nothing but what they close over."""
    return lambda value: value * factor


def test_copies_are_nobody_elses(graphs: RememberedGraphs) -> None:
    """Neither does a changed graph change the next one, nor do weights that are changed afterwards."""
    model = make_checkpoint(**SMALL, activation="gelu").model
    first = encoder_graph(model)
    name = "model.encoder.layers.0.feed_forward.contract.bias"

    def numbers(graph: ir.Model) -> NDArray[Any]:
        value = graph.graph.initializers[name].const_value
        assert value is not None
        return value.numpy()

    expected = numbers(first).copy()
    for node in list(first.graph)[-2:]:
        node.name = "changed"
    layer: Any = model.encoder.layers[0]
    with torch.no_grad():
        layer.feed_forward.contract.bias += 1
    assert (numbers(first) != expected).all()  # they are one
    copied = graphs.copied
    second = encoder_graph(make_checkpoint(**SMALL, activation="gelu").model)

    assert graphs.copied == copied + 1
    assert (numbers(second) == expected).all()
    assert "changed" not in {node.name for node in second.graph}
