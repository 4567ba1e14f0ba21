"""What an encoder hands to a decoder with grouped attention: the last source position, and integers if it reads them.

    cross_last [B, 2 L, H * D] float32       the key and value of each layer at the last position of each row
    cross_key.i, cross_value.i [B, H, S, D]  int8, if they have scales

Where one product makes the keys and values of all layers, both are taken from it at once, before heads are split
apart, so that what copies heads moves bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnxscript import ir

from dragoman.export import bundle
from dragoman.export.cache_scales import CacheScales
from dragoman.export.rewriting import Array, Writer, array_of, before_heads, remove_unused, required
from dragoman.model.config import ModelConfig

_INT8 = ir.DataType.INT8
_SCALES, _BIAS = 3, 6  # inputs of MatMulIntegerToFloat


def hand_over(encoder: ir.Model, config: ModelConfig, scales: CacheScales) -> None:
    """Add the output and round the others, in place.

    Args:
        encoder: Graph of `to_onnx`, in any precision for CPUs.
        config: Of its model.
        scales: Those that `grouped.use_grouped_attention` got.
    """
    names = [name for layer in range(config.num_decoder_layers) for name in bundle.cross_names(layer)]
    found = {str(value.name): value for value in encoder.graph.outputs}
    # Layers of equal weights have equal keys, which are computed once: by the name of the first.
    makers = {name: _maker(found[name]) for name in names}
    first = {maker: name for name, maker in reversed(makers.items())}
    projections = _projections({maker: first[maker] for maker in makers.values()})
    computed = [name for projection in projections for name in projection.names]
    order = [computed.index(first[maker]) for maker in makers.values()]
    steps = []
    for projection in projections:
        own = [scales[name].reshape(-1) for name in projection.names if name in scales]
        steps.append(_round(encoder.graph, projection, np.concatenate(own)) if own else None)
    _add_last(encoder.graph, projections, steps, order, config.key_value_heads * config.head_dim)
    for name in names:
        found[name].type = makers[name].type
    remove_unused(encoder)


@dataclass(frozen=True, slots=True)
class _Projection:
    """Keys and values that stand side by side.

    Attributes:
        joined: [B, S, width of all], float32.
        names: Of the keys and values in it, in order.
        nodes: Those that split the heads apart, in order.
    """

    joined: ir.Value
    names: list[str]
    nodes: list[ir.Node]


def _maker(output: ir.Value) -> ir.Value:
    """Return the value that an output is another name of, or itself."""
    node = output.producer()
    return output if node is None or node.op_type != "Identity" else _maker(required(node.inputs[0]))


def _projections(names: Mapping[ir.Value, str]) -> list[_Projection]:
    """Find them, by the keys and values that they make: one of all, or one for each."""
    split = next(iter(names)).producer()
    if split is not None and split.op_type == "Split" and set(split.outputs) == set(names):
        joined = before_heads(split.inputs[0])
        if joined is not None:
            return [_Projection(joined, [names[part] for part in split.outputs], [*_heads(split.inputs[0]), split])]
    return [_Projection(required(before_heads(value)), [name], _heads(value)) for value, name in names.items()]


def _heads(apart: ir.Value | None) -> list[ir.Node]:
    """Return the Reshape and the Transpose that made [B, heads, S, D]."""
    turn = required(required(apart).producer())
    return [required(required(turn.inputs[0]).producer()), turn]


def _add_last(
    graph: ir.Graph, projections: list[_Projection], steps: list[ir.Value | None], order: list[int], width: int
) -> None:
    """Add the output cross_last [B, len(order), width]: of what the projections make, these.

    Args:
        graph: Of the encoder.
        projections: Of keys and values.
        steps: What one counts of each projection, [width of it]; None where it counts ones.
        order: Places among all keys and values that are computed.
        width: Of a key or value.
    """
    write = Writer(graph)
    lengths = next(value for value in graph.inputs if value.name == bundle.SOURCE_LENGTHS)
    one = write.constant("number_1", np.array(1, np.int64))
    last = write("Sub", [lengths, one], "last_source", dtype=ir.DataType.INT64)
    axis = write.constant("axis_1", np.array([1], np.int64))
    index = write("Unsqueeze", [last, axis], "last_source_index", dtype=ir.DataType.INT64)  # [B, 1]
    found = [
        write("GatherND", [part.joined, index], f"{part.names[0]}_last", attributes={"batch_dims": 1})
        for part in projections
    ]
    found = [
        last if step is None else write("Mul", [last, step], f"{last.name}_real")
        for last, step in zip(found, steps, strict=True)
    ]
    joined = found[0] if len(found) == 1 else write("Concat", found, "cross_last_joined", attributes={"axis": -1})
    computed = sum(len(part.names) for part in projections)
    sizes = write.constant("sizes_of_last", np.array([0, computed, width], np.int64))
    output = write("Reshape", [joined, sizes], "cross_last_parts")
    if order != list(range(computed)):
        which = write.constant("order_of_last", np.array(order, np.int64))
        output = write("Gather", [output, which], "cross_last_ordered", attributes={"axis": 1})
    output.name, output.type = bundle.CROSS_LAST, ir.TensorType(ir.DataType.FLOAT)
    output.shape = ir.Shape([required(lengths.shape)[0], len(order), width])
    graph.outputs.append(output)


def _round(graph: ir.Graph, projection: _Projection, scales: Array) -> ir.Value | None:
    """Let heads be split apart as integers; return what a projection counts in from now on, if it is not in ones.

    QuantizeLinear with a scale per channel is many times as slow as with one for all, so the numbers come to it in
    steps: a product of integers has scales of its own, which take these in, so that it costs nothing.
    """
    reshape = projection.nodes[0]
    write, name = Writer(graph, reshape), str(projection.joined.name)
    kind = "cross" if len(projection.names) > 1 else projection.names[0]
    counted = projection.joined
    absorbed = _absorb(graph, projection.joined, 1 / scales, kind)
    if not absorbed:
        factors = write.constant(f"{kind}_factors", 1 / scales)
        counted = write("Mul", [projection.joined, factors], f"{name}_steps", like=projection.joined)
    one, zero = (write.constant(f"{kind}_{n}", np.array(n, t)) for n, t in ((1, np.float32), (0, np.int8)))
    integers = write("QuantizeLinear", [counted, one, zero], f"{name}_i8", like=projection.joined, dtype=_INT8)
    reshape.replace_input_with(0, integers)
    for node in projection.nodes:
        for output in node.outputs:
            output.type = ir.TensorType(_INT8)
    return write.constant(f"{kind}_scales", scales) if absorbed else None


def _absorb(graph: ir.Graph, product: ir.Value, factors: Array, kind: str) -> bool:
    """Multiply the columns of a product of integers, by its scales and bias; return False if it is another product."""
    node = product.producer()
    if node is None or node.op_type != "MatMulIntegerToFloat":
        return False
    write = Writer(graph, node)
    for place in (_SCALES, _BIAS):
        before = node.inputs[place] if place < len(node.inputs) else None
        if before is not None:
            array = required(array_of(before)) * factors
            node.replace_input_with(place, write.constant(f"{before.name}_{kind}_steps", array.astype(np.float32)))
    return True
