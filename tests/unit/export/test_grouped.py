"""Attention over what a row has: the same numbers as before, the same buffers, and nothing read behind a row's end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnxscript import ir

from dragoman.export import bundle
from dragoman.export.grouped import use_grouped_attention
from dragoman.export.reductions import add_reductions
from dragoman.export.storage import save
from dragoman.export.to_onnx import decoder_graph
from dragoman.export.write import write_bundle
from dragoman.model.checkpoint import Checkpoint
from tests.fakes.bundles import converted, make_checkpoint

Array = NDArray[Any]
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shared keys": {"num_key_value_heads": 2},
    "one key": {"num_key_value_heads": 1, "norm": "rms"},
    "rotary": {"positions": "rotary"},
    "no biases": {"bias": False, "norm_position": "post"},
    "ssru": {"decoder_layer": "ssru"},
    "one layer": {"num_decoder_layers": 1},
}
SOURCE, CACHE = 23, 19
torch.set_num_threads(1)


class Pair:
    """A decoder before and after, and inputs for both.

    Attributes:
        graphs: The two, as ONNX models.
        sessions: The two, loaded.
    """

    def __init__(self, settings: dict[str, Any], folder: Path) -> None:
        self.checkpoint: Checkpoint = make_checkpoint(**settings)
        self.graphs = []
        self.sessions = []
        for name in ("before", "after"):
            graph = decoder_graph(self.checkpoint.model, self.checkpoint.tokenizer.special)
            add_reductions(graph, self.checkpoint.model.config, None)
            if name == "after":
                use_grouped_attention(graph, self.checkpoint.model.config)
            save(graph, folder / f"{name}.onnx")
            self.graphs.append(graph)
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            self.sessions.append(
                onnxruntime.InferenceSession(folder / f"{name}.onnx", options, ["CPUExecutionProvider"])
            )

    def feeds(self, lengths: list[int], ages: list[int], *, behind: float = 0.0) -> dict[str, Array]:
        """Return inputs of rows with these sources and ages; what is behind them in the buffers is one number.

        All of them are the second graph's; the first one takes no `cross_last`.
        """
        generator = np.random.default_rng(3)
        rows = len(lengths)
        feeds: dict[str, Array] = {
            bundle.INPUT_IDS: generator.integers(4, 300, (rows, 1)),
            bundle.SOURCE_LENGTHS: np.array(lengths, np.int64),
            bundle.CACHE_LENGTHS: np.array(ages, np.int64),
            bundle.WITH_ALIGNMENT: np.ones(1, np.bool_),
            bundle.WITH_CANDIDATES: np.ones(1, np.bool_),
        }
        for value in self.sessions[0].get_inputs():
            if value.type != "tensor(float)":
                continue
            axes = {"batch": rows, "source": SOURCE, "cache": CACHE}
            array = generator.normal(size=[axes.get(axis, axis) for axis in value.shape]).astype(np.float32)
            ends = {"cross": lengths, "self_": ages}.get(value.name[:5])
            for row, end in enumerate(ends or ()):
                array[row, :, end:] = behind
            feeds[value.name] = array
        return {**feeds, bundle.CROSS_LAST: self.last_of(feeds)}

    def last_of(self, feeds: dict[str, Array]) -> Array:
        """Return the keys and values of each row's last source position, [B, 2 L, H * D]."""
        names = [name for i in range(self.checkpoint.model.config.num_decoder_layers) for name in bundle.cross_names(i)]
        ends = feeds[bundle.SOURCE_LENGTHS] - 1
        rows = np.arange(len(ends))
        return np.stack([feeds[name][rows, :, ends].reshape(len(ends), -1) for name in names], axis=1)


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(VARIANTS[request.param], tmp_path_factory.mktemp("grouped"))


LENGTHS, AGES = [1, SOURCE, 7, 12, 2], [0, 5, CACHE - 1, 1, 11]


def outputs(session: onnxruntime.InferenceSession, feeds: dict[str, Array]) -> dict[str, Array]:
    names = [value.name for value in session.get_outputs()]
    taken = {value.name for value in (*session.get_inputs(), *session.get_overridable_initializers())}
    values = session.run(names, {name: value for name, value in feeds.items() if name in taken})
    return dict(zip(names, values, strict=True))


def test_every_output_is_what_it_was(pair: Pair) -> None:
    """Logits, candidates, alignments and states, for rows of all ages and lengths."""
    feeds = pair.feeds(LENGTHS, AGES)
    before, after = (outputs(session, feeds) for session in pair.sessions)

    for name, values in before.items():
        np.testing.assert_allclose(after[name], values, atol=2e-5, err_msg=name)
    assert before[bundle.LOGITS][np.isfinite(before[bundle.LOGITS])].std() > 0.1


def test_the_sources_buffers_do_not_change(pair: Pair) -> None:
    """They are written, with what stands there already, bit for bit."""
    feeds = pair.feeds(LENGTHS, AGES)
    after = outputs(pair.sessions[1], feeds)

    for layer in range(pair.checkpoint.model.config.num_decoder_layers):
        for name, updated in zip(bundle.cross_names(layer), bundle.updated_cross_names(layer), strict=True):
            np.testing.assert_array_equal(after[updated], feeds[name])


def test_nothing_behind_a_rows_end_is_read(pair: Pair) -> None:
    """Not even a NaN there changes anything: in the graph before, it would be NaN times weight 0."""
    clean, dirty = (pair.feeds(LENGTHS, AGES, behind=value) for value in (0.0, np.nan))
    clean, dirty = (
        {**feeds, bundle.WITH_ALIGNMENT: np.zeros(1, np.bool_)}  # alignments are computed over the whole buffer
        for feeds in (clean, dirty)
    )
    one, other = (outputs(pair.sessions[1], feeds)[bundle.LOGITS] for feeds in (clean, dirty))

    np.testing.assert_array_equal(one, other)


def test_a_rewritten_graph_has_nothing_of_the_old_one_and_says_that_it_takes_one_token(pair: Pair) -> None:
    """No cache is written twice, and whoever loads the graph can see what it takes."""
    before, after = (Counter(node.op_type for node in graph.graph) for graph in pair.graphs)

    assert after["GroupQueryAttention"] == before["Attention"]
    assert after["Attention"] == after["TensorScatter"] == 0
    [ids] = [value for value in pair.sessions[1].get_inputs() if value.name == bundle.INPUT_IDS]
    assert ids.shape[1] == 1
    inputs = [{value.name for value in session.get_inputs()} for session in pair.sessions]
    assert inputs[1] - inputs[0] == {bundle.CROSS_LAST}


def test_the_last_source_position_is_not_fetched_from_the_buffers(pair: Pair) -> None:
    """It is an input, split once for all layers; the best id is the only thing that is looked up."""
    [last] = [value for value in pair.sessions[1].get_inputs() if value.name == bundle.CROSS_LAST]
    config = pair.checkpoint.model.config
    layers = config.num_decoder_layers
    readers = [node for node in pair.graphs[1].graph for value in node.inputs if value and value.name == last.name]
    cross = {name for layer in range(layers) for name in bundle.cross_names(layer)}
    read = Counter(
        node.op_type for node in pair.graphs[1].graph for value in node.inputs if value and value.name in cross
    )

    assert (last.type, last.shape) == ("tensor(float)", ["batch", 2 * layers, config.key_value_heads * config.head_dim])
    assert [node.op_type for node in readers] == ["Split"]
    assert read == {"GroupQueryAttention": 2 * layers, "Shape": 1}


@pytest.mark.parametrize(
    "settings",
    [{"positions": "relative", "relative_buckets": 8, "relative_max_distance": 16}, {"d_head": 12}],
    ids=["biases of positions", "heads of 12"],
)
def test_what_the_operator_does_not_do_keeps_its_attention(settings: dict[str, Any]) -> None:
    """It has no biases, and heads are multiples of 8; such a graph stays as it is."""
    checkpoint = make_checkpoint(**settings)
    graph = decoder_graph(checkpoint.model, checkpoint.tokenizer.special)
    nodes = [node.op_type for node in graph.graph]

    assert not use_grouped_attention(graph, checkpoint.model.config)
    assert [node.op_type for node in graph.graph] == nodes
    assert bundle.CROSS_LAST not in {value.name for value in graph.graph.inputs}


@pytest.mark.parametrize("precision", ["int8", "int8-static", "int8-weights", "int4"])
def test_bundles_for_cpus_have_it(precision: Any, pair: Pair, tmp_path: Path) -> None:
    """Those that also run on a GPU have not: the operator has no fp32 kernel there."""
    write_bundle(pair.checkpoint, tmp_path / "fp32", name="b", precision="fp32", verify=None)
    converted(tmp_path / "fp32", tmp_path / "reduced", precision)
    kinds = [{node.op_type for node in ir.load(tmp_path / name / bundle.DECODER).graph} for name in ("fp32", "reduced")]

    assert "GroupQueryAttention" not in kinds[0]
    assert "GroupQueryAttention" in kinds[1]
    assert "Attention" not in kinds[1]
