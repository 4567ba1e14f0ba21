"""Graphs are optimised once, at export: the same numbers from fewer nodes, and nothing in the file that is not used."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnxscript import ir

from dragoman.export import bundle, to_onnx
from dragoman.export.precision import DEVICES, Precision, write_graphs
from tests.fakes.bundles import converted, make_checkpoint, random_calibration
from tests.fakes.models import make_config
from tests.fakes.variants import Exported


def run(path: Path, feeds: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def all_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    branches = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return [*graph.node, *(node for branch in branches for node in all_nodes(branch))]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"norm_position": "post", "positions": "rotary", "num_key_value_heads": 2, "gated": True},
        {"decoder_layer": "ssru", "bias": False, "positions": "relative"},
    ],
    ids=["default", "rotary, grouped, gated", "ssru, relative, no bias"],
)
def test_no_number_changes(settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values of the source are those of the exporter's own graph, at sizes other than its example's."""
    model = make_checkpoint(**settings).model
    ir.save(to_onnx.encoder_graph(model), tmp_path / "optimised.onnx")
    monkeypatch.setattr(to_onnx, "optimize", lambda *_, **__: None)
    ir.save(to_onnx.encoder_graph(model), tmp_path / "plain.onnx")
    ids = np.random.default_rng(0).integers(4, 300, (3, 9))
    feeds = {bundle.INPUT_IDS: ids, bundle.SOURCE_LENGTHS: np.array([9, 4, 1])}
    plain, optimised = run(tmp_path / "plain.onnx", feeds), run(tmp_path / "optimised.onnx", feeds)

    assert optimised.keys() == plain.keys()
    for name, values in plain.items():
        np.testing.assert_allclose(optimised[name], values, atol=1e-5)
    nodes = [len(onnx.load(tmp_path / f"{name}.onnx").graph.node) for name in ("plain", "optimised")]
    assert nodes[1] < 0.8 * nodes[0]


def test_matrices_that_read_the_same_are_one(exported: Exported) -> None:
    """No activation is multiplied twice: one product for query, key and value, one for all cross-attention keys."""
    for name in bundle.GRAPHS:
        products = [node for node in onnx.load(exported.fp32 / name).graph.node if node.op_type == "MatMul"]
        constants = {tensor.name for tensor in onnx.load(exported.fp32 / name).graph.initializer}
        read = Counter(node.input[0] for node in products if node.input[1] in constants)
        assert set(read.values()) == {1}


@pytest.mark.parametrize("precision", DEVICES)
def test_every_constant_is_used_once_stored(exported: Exported, precision: Precision, tmp_path: Path) -> None:
    """No constant that nothing reads, no two large ones alike, in any precision."""
    folder = exported.fp32 if precision == "fp32" else converted(exported.fp32, tmp_path / "out", precision)
    for name in bundle.GRAPHS:
        graph = onnx.load(folder / name).graph
        read = {value for node in all_nodes(graph) for value in node.input}
        assert [tensor.name for tensor in graph.initializer if tensor.name not in read] == []
        large = [tensor.raw_data for tensor in graph.initializer if len(tensor.raw_data) > 2048]
        assert len(set(large)) == len(large)


@pytest.mark.parametrize("precision", DEVICES)
def test_a_tied_table_is_stored_once(precision: Precision, tmp_path: Path) -> None:
    """The decoder looks tokens up in the matrix that makes its logits; untied, it has two."""
    for tied, expected in (("all", 1), ("source-target", 2)):
        folder = tmp_path / tied
        folder.mkdir()
        checkpoint = make_checkpoint(tied_embeddings=tied)
        special, config = checkpoint.tokenizer.special, checkpoint.model.config
        write_graphs(checkpoint.model, special, folder, precision, random_calibration(config, special))
        size = checkpoint.model.config.vocab_size * checkpoint.model.config.d_model
        graph = onnx.load(folder / bundle.DECODER).graph
        assert sum(int(np.prod(tensor.dims)) >= size for tensor in graph.initializer) == expected


def test_nothing_of_the_exporting_machine_is_in_the_file(exported: Exported) -> None:
    """Neither paths nor source code: two people who export one checkpoint get one bundle."""
    for name in bundle.GRAPHS:
        content = (exported.fp32 / name).read_bytes()
        assert b".py" not in content
        assert b"torch" not in content
        assert str(Path(__file__).parents[3]).encode() not in content


@pytest.mark.usefixtures("exporting_anew")
def test_the_same_checkpoint_gives_the_same_files(tmp_path: Path) -> None:
    """To the byte, so that a bundle's version says whether anything changed."""
    checkpoint = make_checkpoint()
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        write_graphs(checkpoint.model, checkpoint.tokenizer.special, folder, "int8")

    for name in bundle.GRAPHS:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_matrices_have_the_names_of_the_checkpoint() -> None:
    """So that one can find a weight, and what is merged says of what."""
    checkpoint = make_checkpoint(num_decoder_layers=2)
    names = set(to_onnx.decoder_graph(checkpoint.model, checkpoint.tokenizer.special).graph.initializers)
    names |= set(to_onnx.encoder_graph(checkpoint.model).graph.initializers)

    assert {
        "model.decoder.layers.1.self_attention.key_value_query.weight",
        "model.decoder.layers.0.feed_forward.contract.weight",
        "model.encoder.layers.1.self_attention.key_value_query.bias",
        "model.decoder.layers.cross_attention.key_value.weight",
        "model.encoder.positions.table",
    } <= names


def test_sums_in_front_of_norms_are_not_fused_on_the_cpu(exported: Exported) -> None:
    """ONNX Runtime's fused kernel is slower there; in fp16, for GPUs, the sums stay as they are."""
    for name in bundle.GRAPHS:
        graph = onnx.load(exported.int8 / name).graph
        makers = {output: node for node in graph.node for output in node.output}
        read = Counter(value for node in graph.node for value in node.input)
        alone = [
            makers[node.input[0]].op_type
            for node in graph.node
            if node.op_type == "LayerNormalization" and node.input[0] in makers and read[node.input[0]] == 1
        ]
        assert "Add" not in alone
        assert "Sum" in alone or not alone


def test_positions_of_a_source_are_a_slice(exported: Exported) -> None:
    """They are 0, 1, 2, ...: no index is computed for them."""
    kinds = Counter(node.op_type for node in onnx.load(exported.fp32 / bundle.ENCODER).graph.node)
    formula = exported.checkpoint.model.config.positions.startswith(("sinusoidal", "learned"))

    assert kinds["GatherND"] == 0
    if formula and exported.checkpoint.model.config.first_position == 0:
        assert kinds["Slice"] == 1
        assert kinds["Range"] == 0


def test_the_eager_projection_is_the_linear_layer() -> None:
    """What the exporter turns into Gemm means x W^T + b."""
    states, table, bias = torch.randn(2, 3, 8), torch.randn(11, 8), torch.randn(11)

    found = torch.ops.dragoman.vocabulary_logits(states, table, bias)
    torch.testing.assert_close(found, states @ table.T + bias)
    assert make_config().vocab_size > 0
