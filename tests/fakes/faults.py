"""Faults to plant in the graphs of the tiny model of `bundles.make_checkpoint`; `bundles.plant` plants them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper, numpy_helper

from dragoman.model.vocab import SPECIAL_IDS

Change = Callable[[onnx.ModelProto], None]


def attend_to_padding(model: onnx.ModelProto) -> None:
    """Forget the lengths of the source: in the encoder's attention, or in the decoder's to the encoder."""
    for node in model.graph.node:
        if node.op_type == "Attention" and "source_lengths" in node.input:
            del node.input[3:]


def swap_heads(model: onnx.ModelProto) -> None:
    """Exchange the first two heads of the first projection to queries, keys or values."""
    for tensor in model.graph.initializer:
        if "self_attention" in tensor.name and "output" not in tensor.name and len(tensor.dims) == 2:
            values = numpy_helper.to_array(tensor).copy()
            values[:, :16] = np.concatenate([values[:, 8:16], values[:, :8]], axis=1)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
            return
    raise AssertionError("no projection found")


def shift_positions(model: onnx.ModelProto) -> None:
    """Start the positions at 1."""
    (table,) = [tensor for tensor in model.graph.initializer if list(tensor.dims) in ([70, 32], [24, 32])]
    table.CopyFrom(numpy_helper.from_array(np.roll(numpy_helper.to_array(table), -1, axis=0), table.name))


def forget_far_positions(model: onnx.ModelProto) -> None:
    """Give all positions from the 13th on the same row of the table."""
    (table,) = [tensor for tensor in model.graph.initializer if list(tensor.dims) in ([70, 32], [24, 32])]
    values = numpy_helper.to_array(table).copy()
    values[12:] = values[12]
    table.CopyFrom(numpy_helper.from_array(values, table.name))


def allow_reserved_ids(model: onnx.ModelProto) -> None:
    """Unmask pad, unknown and start."""
    masks = [t for t in model.graph.initializer if np.isneginf(numpy_helper.to_array(t)).any()]
    for tensor in masks:
        tensor.CopyFrom(numpy_helper.from_array(np.zeros(tensor.dims, np.float32), tensor.name))
    assert masks


def write_one_step_late(model: onnx.ModelProto) -> None:
    """Put keys and values one position behind where they belong."""
    for node in model.graph.node:
        if node.op_type == "TensorScatter":
            node.input[2] = "late"
    model.graph.initializer.append(numpy_helper.from_array(np.array(1, np.int64), "one step"))
    model.graph.node.insert(0, helper.make_node("Add", ["cache_lengths", "one step"], ["late"]))


def read_one_step_less(model: onnx.ModelProto) -> None:
    """Let self-attention miss the newest token, except the first one."""
    readers = [
        n for n in model.graph.node if n.op_type == "Attention" and "source_lengths" not in n.input and len(n.input) > 6
    ]
    lengths = readers[0].input[6]
    at = next(i for i, node in enumerate(model.graph.node) if lengths in node.output)
    for node in readers:
        node.input[6] = "fewer"
    model.graph.initializer.append(numpy_helper.from_array(np.array(1, np.int64), "one step"))
    model.graph.node.insert(at + 1, helper.make_node("Sub", [lengths, "one step"], ["at least none"]))
    model.graph.node.insert(at + 2, helper.make_node("Max", ["at least none", "one step"], ["fewer"]))


def miss_eos_on_short_rows(model: onnx.ModelProto, penalty: float = -np.inf) -> None:
    """Keep rows from ending whose source is shorter than the batch's longest."""
    producer = next(i for i, node in enumerate(model.graph.node) if "logits" in node.output)
    model.graph.node[producer].output[0] = "right logits"
    size = next(v for v in model.graph.output if v.name == "logits").type.tensor_type.shape.dim[2].dim_value
    unwanted = np.zeros(size, np.float32)
    unwanted[SPECIAL_IDS.eos] = penalty
    constants = {"unwanted": unwanted, "wanted": np.zeros_like(unwanted), "behind": np.array([1, 2])}
    for name, values in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    new = [
        helper.make_node("ReduceMax", ["source_lengths"], ["longest"], keepdims=1),
        helper.make_node("Less", ["source_lengths", "longest"], ["shorter"]),
        helper.make_node("Unsqueeze", ["shorter", "behind"], ["short rows"]),
        helper.make_node("Where", ["short rows", "unwanted", "wanted"], ["no end"]),
        helper.make_node("Add", ["right logits", "no end"], ["logits"]),
    ]
    for offset, node in enumerate(new):
        model.graph.node.insert(producer + 1 + offset, node)


def forget_to_normalise(model: onnx.ModelProto) -> None:
    """Give beams logits in place of log-probabilities."""
    for node in model.graph.node:
        if "candidate_scores" in node.output:
            node.output[list(node.output).index("candidate_scores")] = "right scores"
            gather = helper.make_node("GatherElements", ["logits", "candidate_ids"], ["candidate_scores"], axis=-1)
            model.graph.node.append(gather)
            return
    raise AssertionError("the graph chooses no candidates")


def normalise_without_masked(model: onnx.ModelProto) -> None:
    """Leave ids that are never generated out of what probabilities are a share of."""
    choice = next(node for node in model.graph.node if "log_normalizer" in node.output)
    for branch in (attribute.g for attribute in choice.attribute if attribute.name == "then_branch"):
        for node in branch.node:
            if "normalizer_terms" in node.output:
                node.CopyFrom(helper.make_node("Identity", [node.input[0]], ["normalizer_terms"]))
                return
    raise AssertionError("the graph has no log_normalizer, or masks nothing")


def shift_scales(model: onnx.ModelProto) -> None:
    """Exchange the scales of the columns of every quantised matrix."""
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.size >= 32 and not np.isneginf(values).any() and (values > 0).all():
            tensor.CopyFrom(numpy_helper.from_array(values.reshape(-1)[::-1].reshape(values.shape), tensor.name))
