"""int8 graphs: a tied table is stored once and turned while the graph is loaded; products cannot saturate anywhere."""

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
from onnx import helper, numpy_helper

from dragoman.export import bundle
from dragoman.export.precision import Precision, write_graphs
from dragoman.export.quantize import WEIGHT_LIMIT
from dragoman.model.checkpoint import Checkpoint
from tests.fakes.bundles import make_checkpoint, random_calibration

INTEGERS: tuple[Precision, ...] = ("int8", "int8-static")
_PRODUCTS = ("MatMulInteger", "MatMulIntegerToFloat")
torch.set_num_threads(1)


class Exported:
    """A model with one table for everything, in one of the precisions.

    Attributes:
        checkpoint: The model.
        folder: Of both graphs.
    """

    def __init__(self, precision: Precision, folder: Path) -> None:
        self.checkpoint: Checkpoint = make_checkpoint()
        self.folder = folder
        special = self.checkpoint.tokenizer.special
        write_graphs(
            self.checkpoint.model, special, folder, precision, random_calibration(self.checkpoint.model.config, special)
        )

    def decoder(self) -> onnx.ModelProto:
        """Return its decoder, as it is in the file."""
        return onnx.load(self.folder / bundle.DECODER)


@pytest.fixture(scope="module", params=INTEGERS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported(request.param, tmp_path_factory.mktemp("integers"))


def arrays_of(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def turned_table(model: onnx.ModelProto) -> onnx.NodeProto:
    """Return the node that turns the table that is stored."""
    constants = {tensor.name for tensor in model.graph.initializer}
    [node] = [node for node in model.graph.node if node.op_type == "Transpose" and node.input[0] in constants]
    return node


def load(path: Path, options: onnxruntime.SessionOptions | None = None) -> onnxruntime.InferenceSession:
    options = options or onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])


def outputs(session: onnxruntime.InferenceSession) -> list[NDArray[Any]]:
    """Run a decoder on three rows."""
    sizes = {"batch": 3, "new": 1, "source": 7, "cache": 5}
    generator, feeds = np.random.default_rng(0), {}
    for value in session.get_inputs():
        size = [sizes.get(axis, axis) for axis in value.shape]
        if value.name in (bundle.SOURCE_LENGTHS, bundle.CACHE_LENGTHS):
            feeds[value.name] = np.full(size, 4)
        elif value.name in bundle.ON_REQUEST:
            feeds[value.name] = np.ones(1, np.bool_)
        elif value.type == "tensor(int8)":
            feeds[value.name] = generator.integers(-127, 128, size, np.int8)
        elif value.type == "tensor(int64)":
            feeds[value.name] = generator.integers(4, 300, size)
        else:
            feeds[value.name] = generator.standard_normal(size, np.float32)
    return list(session.run(None, feeds))


def test_a_tied_table_is_stored_by_rows(exported: Exported) -> None:
    """As one constant, of which a token reads one row."""
    model, config = exported.decoder(), exported.checkpoint.model.config
    arrays = arrays_of(model)
    tables = [name for name, array in arrays.items() if array.size == config.vocab_size * config.d_model]

    assert tables == [turned_table(model).input[0]]
    assert arrays[tables[0]].shape == (config.vocab_size, config.d_model)
    [look_up] = [node for node in model.graph.node if node.op_type == "Gather" and node.input[0] == tables[0]]
    assert list(look_up.attribute) == []  # along the first axis


def test_nothing_constant_is_turned_at_run_time(exported: Exported, tmp_path: Path) -> None:
    """The graph that runs, with the default level of optimisation, has both forms as constants."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    load(exported.folder / bundle.DECODER, options)
    before, loaded = exported.decoder(), onnx.load(tmp_path / "loaded.onnx")
    kinds, left = (Counter(node.op_type for node in model.graph.node) for model in (before, loaded))

    assert left["Transpose"] == kinds["Transpose"] - 1
    constants = {tensor.name for tensor in loaded.graph.initializer}
    assert not [node for node in loaded.graph.node if node.op_type == "Transpose" and node.input[0] in constants]


def test_a_table_by_rows_gives_the_numbers_of_one_by_columns(exported: Exported, tmp_path: Path) -> None:
    """Bit for bit: the product's matrix is the same, and so is what a token looks up."""
    model = exported.decoder()
    arrays, turn = arrays_of(model), turned_table(model)
    columns = numpy_helper.from_array(np.ascontiguousarray(arrays[turn.input[0]].T), turn.output[0])
    [look_up] = [node for node in model.graph.node if node.op_type == "Gather" and node.input[0] == turn.input[0]]
    found = look_up.output[0]
    look_up.input[0], look_up.output[0] = columns.name, "found"
    look_up.attribute.append(helper.make_attribute("axis", 1))
    place = list(model.graph.node).index(look_up) + 1
    model.graph.node.insert(place, helper.make_node("Transpose", ["found"], [found], perm=[1, 2, 0]))
    model.graph.node.remove(turn)
    model.graph.initializer.append(columns)
    onnx.save(model, tmp_path / "columns.onnx")
    rows, other = (outputs(load(path)) for path in (exported.folder / bundle.DECODER, tmp_path / "columns.onnx"))

    for one, two in zip(rows, other, strict=True):
        np.testing.assert_array_equal(one, two)


def test_no_product_can_saturate(exported: Exported) -> None:
    """CPUs without VNNI add two products in 16 bits: of a byte and of seven bits, they fit."""
    numbers = 0
    for name in bundle.GRAPHS:
        model = onnx.load(exported.folder / name)
        arrays = arrays_of(model)
        turned = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Transpose"}
        for node in (node for node in model.graph.node if node.op_type in _PRODUCTS):
            weights = arrays[turned.get(node.input[1], node.input[1])]
            assert np.abs(weights.astype(int)).max() <= WEIGHT_LIMIT
            numbers += 1

    assert numbers > 10
    assert 2 * np.iinfo(np.uint8).max * WEIGHT_LIMIT <= np.iinfo(np.int16).max
