"""Every kind of model that training can make goes through the export, or is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from dragoman.export import bundle
from dragoman.export.bundle import load_manifest
from dragoman.export.decode import BundleSession
from dragoman.export.to_onnx import shape_of
from dragoman.export.verify import verify
from dragoman.export.write import write_bundle
from tests.fakes.bundles import converted, make_checkpoint, plant, random_sources
from tests.fakes.variants import Exported


def test_the_bundle_agrees_with_the_model(exported: Exported) -> None:
    """Logits over all sizes, the first two tokens in one call, and texts equal PyTorch's."""
    report = verify(exported.fp32, exported.checkpoint, None, sentences=20)

    assert report.problems == ()
    assert report.identical + report.ties == 20
    assert report.max_logit_difference < 1e-4


def test_int8_texts_do_not_depend_on_the_batch(exported: Exported) -> None:
    """Every product with a matrix is in integers, logits are finite, batched equals alone."""
    nodes = [n for graph in (bundle.ENCODER, bundle.DECODER) for n in onnx.load(exported.int8 / graph).graph.node]
    report = verify(exported.int8, exported.checkpoint, None, sentences=20)

    assert not [node.name for node in nodes if node.op_type in ("MatMul", "Gemm")]
    assert report.problems == ()


def test_fp32_for_cpus_agrees_with_the_model(exported: Exported, tmp_path: Path) -> None:
    """With attention over what a row has, where the operator can do it: logits and texts are PyTorch's as before."""
    folder = converted(exported.fp32, tmp_path / "out", "fp32", ("cpu",))
    report = verify(folder, exported.checkpoint, None, sentences=20)
    kinds = {node.op_type for node in onnx.load(folder / bundle.DECODER).graph.node}
    config = exported.checkpoint.model.config

    assert report.problems == ()
    assert report.identical + report.ties == 20
    assert report.max_logit_difference < 1e-4
    assert load_manifest(folder).devices == ("cpu",)
    grouped = config.positions != "relative" and config.head_dim % 8 == 0
    assert ("GroupQueryAttention" in kinds, "Attention" in kinds) == (grouped, not grouped)


def test_rows_of_different_age_share_a_step(exported: Exported) -> None:
    """Positions and states are each row's own: a step of both gives the logits of each alone."""
    session = BundleSession(exported.fp32)
    sources = random_sources(exported.checkpoint, [5, 11])
    tokens = np.array([[7, 8, 9], [20, 21, 22]])
    ages, encoded = [2, 1], [session.encode([source]) for source in sources]
    states, alone = [], []
    for row, age in enumerate(ages):
        _, _, state = session.step(tokens[row, :age][None], np.array([0]), session.initial_states(1, 6), encoded[row])
        states.append(state)
        _, logits, _ = session.step(tokens[row, age:][None, :1], np.array([age]), state, encoded[row])
        alone.append(logits)
    _, together, _ = session.step(
        np.array([[tokens[row, age]] for row, age in enumerate(ages)]),
        np.array(ages),
        {name: np.concatenate([state[name] for state in states]) for name in states[0]},
        session.encode(sources),
    )

    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-4)


def test_a_model_with_two_vocabularies_is_exported(tmp_path: Path) -> None:
    """The encoder reads ids of the source's own, smaller vocabulary."""
    checkpoint = make_checkpoint(source_vocab_size=100, tied_embeddings="none", gain=2)
    write_bundle(checkpoint, tmp_path / "out", name="b", precision="fp32", verify=None)
    report = verify(tmp_path / "out", checkpoint, None, sentences=20)

    assert report.problems == ()
    assert report.identical == 20


def test_grouped_heads_are_what_the_manifest_counts() -> None:
    """The server allocates heads of keys and values, of which there are fewer."""
    config = make_checkpoint(num_key_value_heads=2).model.config

    assert (config.num_heads, shape_of(config).num_heads) == (4, 2)


# The recurrent layer


def sizes(values: Any) -> dict[str, list[Any]]:
    """Return the declared axes of graph inputs or outputs."""
    return {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}


def test_cells_are_named_and_shaped_by_the_contract(ssru: Exported) -> None:
    """One tensor per layer, of which only the number of rows is free; no cache and no operator that writes one."""
    shape = load_manifest(ssru.fp32).shape
    graph = onnx.load(ssru.fp32 / bundle.DECODER).graph
    inputs, outputs = sizes(graph.input), sizes(graph.output)

    assert (shape.decoder_layer, shape.cell_width) == ("ssru", 32)
    for layer in range(2):
        assert [inputs[name] for name in shape.state_names(layer)] == [["batch", 32]]
        assert [outputs[name] for name in shape.updated_state_names(layer)] == [["batch", 32]]
    assert set(inputs) == {
        "input_ids", "source_lengths", "cache_lengths", "with_candidates", "with_alignment", "cell.0", "cell.1",
        "cross_key.0", "cross_value.0", "cross_key.1", "cross_value.1",
    }  # fmt: skip
    assert not [node.name for node in graph.node if node.op_type == "TensorScatter"]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("count", [2, 5])
def test_several_tokens_in_one_call_are_as_many_calls(ssru: Exported, precision: str, count: int) -> None:
    """A prefix can be read at once: logits and cells are those of token by token."""
    session = BundleSession(ssru.fp32 if precision == "fp32" else ssru.int8)
    encoded = session.encode(random_sources(ssru.checkpoint, [4, 9]))
    tokens = np.random.default_rng(1).integers(4, 300, (2, count))
    _, logits, states = session.step(tokens, np.zeros(2, np.int64), session.initial_states(2, count), encoded)
    single, found = session.initial_states(2, count), []
    for position in range(count):
        _, last, single = session.step(tokens[:, position, None], np.full(2, position), single, encoded)
        found.append(last)

    np.testing.assert_allclose(np.concatenate(found, axis=1), logits, atol=1e-4)
    for name, cell in states.items():
        np.testing.assert_allclose(single[name], cell, atol=1e-5)


def never_update(model: onnx.ModelProto) -> None:
    """Give back the first layer's cell as it came."""
    producer = next(node for node in model.graph.node if "updated_cell.0" in node.output)
    producer.output[0] = "nobody reads it"
    model.graph.node.append(helper.make_node("Identity", ["cell.0"], ["updated_cell.0"]))


def ignore_the_cell(model: onnx.ModelProto) -> None:
    """Start the last layer from zeros at every step."""
    for node in model.graph.node:
        node.input[:] = ["zeroed" if name == "cell.1" else name for name in node.input]
    model.graph.initializer.append(numpy_helper.from_array(np.array(0, np.float32), "no"))
    model.graph.node.insert(0, helper.make_node("Mul", ["cell.1", "no"], ["zeroed"]))


def exchange_layers(model: onnx.ModelProto) -> None:
    """Give each layer the other one's cell."""
    other = {"updated_cell.0": "updated_cell.1", "updated_cell.1": "updated_cell.0"}
    for node in model.graph.node:
        node.input[:] = [other.get(name, name) for name in node.input]
        node.output[:] = [other.get(name, name) for name in node.output]


@pytest.mark.parametrize("fault", [never_update, ignore_the_cell, exchange_layers])
def test_a_planted_fault_of_the_cells_is_caught(
    ssru: Exported, tmp_path: Path, fault: Callable[[onnx.ModelProto], None]
) -> None:
    """Verification refuses a graph that loses, ignores or mixes up what it knows of earlier tokens."""
    broken = plant(ssru.fp32, tmp_path / "broken", bundle.DECODER, fault)
    report = verify(broken, ssru.checkpoint, None, sentences=20)

    assert any("logits differ" in problem for problem in report.problems)
    assert any("texts differ" in problem for problem in report.problems)


def test_cells_that_are_zeroed_between_steps_are_caught(ssru: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is a loop that does not carry them on."""
    decode = BundleSession._decode

    def forget(session: BundleSession, *arguments: Any) -> tuple[list[NDArray[Any]], dict[str, NDArray[Any]]]:
        values, states = decode(session, *arguments)
        return values, {name: np.zeros_like(cell) for name, cell in states.items()}

    monkeypatch.setattr(BundleSession, "_decode", forget)
    report = verify(ssru.fp32, ssru.checkpoint, None, sentences=20)

    assert any("logits differ" in problem for problem in report.problems)
    assert any("texts differ" in problem for problem in report.problems)
