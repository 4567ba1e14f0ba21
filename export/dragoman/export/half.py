"""fp16 for CUDA: weights, activations, keys and values in 16 bits, and fp32 where 16 are not enough.

    norms           the mean and the variance are computed in fp32 inside the operator (stash_type 1)
    attention       scores and softmax are computed in fp32 inside the operator
    logits          the product is made in fp16, then cast; biases, -inf for ids that are never generated among
                    them, are added in fp32, and everything behind that is fp32 as well
    positions       what is computed from integers (angles, buckets of distances) stays fp32 until it meets an
                    activation
    large numbers   an operator that reads or makes an activation near the end of the range, which is 65504, works
                    in fp32: `activations.largest` measures them

An fp16 sum of the residual stream is as exact as its largest number allows, which is what CTranslate2 and others
do as well; verification says what it costs in texts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnxscript import ir

from dragoman.export import bundle
from dragoman.export.errors import ExportError
from dragoman.export.rewriting import Writer, array_of, only_reader, remove_unused, required, take_the_place

# Of the largest fp16 number, 65504: other texts may be eight times as extreme as those measured.
LARGEST = 8188.0
# Outputs that the contract has in fp32.
_SINGLE = {bundle.LOGITS, bundle.CANDIDATE_SCORES, bundle.LOG_NORMALIZER, bundle.ALIGNMENT}
_FLOAT, _HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16


def to_half(model: ir.Model, largest: Mapping[str, float]) -> None:
    """Let a graph compute in fp16, in place; keys, values and cells become fp16, too.

    Args:
        model: fp32 graph from `to_onnx`.
        largest: Magnitude of each activation by name, as measured; what is missing counts as small.

    Raises:
        ExportError: An input or output would not fit.
    """
    rewrite = _Rewrite(model.graph, {name for name, magnitude in largest.items() if not magnitude <= LARGEST})
    outputs = {str(value.name) for value in model.graph.outputs} - _SINGLE
    if beyond := sorted(outputs & rewrite.large):
        raise ExportError(
            f"{beyond[0]} reaches {largest[beyond[0]]:.3g}, fp16 ends at 65504 and a margin of 8 is wanted; "
            "export with --precision fp32"
        )
    for value in model.graph.inputs:
        if value.dtype == _FLOAT:
            value.type = ir.TensorType(_HALF)
            rewrite.kinds[value] = "half"
    for node in list(model.graph):
        rewrite.node(node)
    rewrite.finish()
    remove_unused(model)


class _Rewrite:
    """Chooses a type for each node in turn.

    Attributes:
        large: Names of values that must not be fp16.
        kinds: "half" (fp16), "wide" (an activation in fp32) or "exact" (made from integers, fp32) of each value
            that is a float and no constant.
    """

    def __init__(self, graph: ir.Graph, large: set[str]) -> None:
        self._graph = graph
        self.large = large
        self.kinds: dict[ir.Value, str] = {}
        self._cast: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def node(self, node: ir.Node) -> None:
        """Rewrite one node, whose inputs were made by nodes that are rewritten already."""
        if node.op_type == "Gemm":
            self._projection(node)
            return
        values = [value for value in (*node.inputs, *node.outputs) if value is not None]
        read = {self.kinds[value] for value in node.inputs if value in self.kinds}
        if any(value.name in self.large for value in values):
            kind = "wide"
        elif read & {"half", "wide"} or self._is_look_up(node):
            kind = "half"
        else:
            kind = "exact"
        self._retype(node, kind)

    def finish(self) -> None:
        """Make every output fp16 that is not a result of its own."""
        for index, output in enumerate(self._graph.outputs):
            if output.name not in _SINGLE and self.kinds.get(output) in ("wide", "exact"):
                write = Writer(self._graph)
                cast = write("Cast", [output], f"{output.name}_half", attributes={"to": _HALF})
                take_the_place([self._graph.outputs[index]], [cast])
                cast.type = ir.TensorType(_HALF)

    def _is_look_up(self, node: ir.Node) -> bool:
        return node.op_type in ("Gather", "Slice") and _is_float_constant(node.inputs[0])

    def _retype(self, node: ir.Node, kind: str) -> None:
        dtype = _HALF if kind == "half" else _FLOAT
        for index, value in enumerate(node.inputs):
            if value is not None and (value in self.kinds or _is_float_constant(value)):
                node.replace_input_with(index, self._as(node, value, dtype))
        if node.op_type == "Cast":
            if node.attributes["to"].as_int() not in (_FLOAT, _HALF):
                return
            node.attributes["to"] = ir.AttrInt64("to", dtype)
        for output in node.outputs:
            if output.dtype == _FLOAT:
                output.type = ir.TensorType(dtype)
                self.kinds[output] = kind

    def _as(self, reader: ir.Node, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Return a value as `dtype`, cast in front of its first reader that needs it."""
        if value in self.kinds and (self.kinds[value] == "half") == (dtype == _HALF):
            return value
        if value not in self.kinds and dtype == _FLOAT:
            return value
        if (value, dtype) not in self._cast:
            write, name = Writer(self._graph, reader), f"{value.name}_{'half' if dtype == _HALF else 'float'}"
            values = array_of(value)
            if values is None:
                cast = write("Cast", [value], name, attributes={"to": dtype}, like=value, dtype=dtype)
            else:
                with np.errstate(over="raise"):
                    cast = write.constant(name, values.astype(np.float16))
            self._cast[value, dtype] = cast
        return self._cast[value, dtype]

    def _projection(self, gemm: ir.Node) -> None:
        """[N, E] x [V, E] transposed + bias: the product in fp16, the sum in fp32."""
        states, table, bias = map(required, gemm.inputs)
        restore = required(only_reader(gemm.outputs[0], "Reshape"))
        write, output = Writer(self._graph, restore), gemm.outputs[0]
        dtype = _FLOAT if output.name in self.large else _HALF
        product = write(
            "Gemm",
            [self._as(gemm, states, dtype), self._as(gemm, table, dtype)],
            f"{output.name}_product",
            attributes={"transB": 1},
            like=output,
            dtype=dtype,
        )
        product = write("Cast", [product], f"{output.name}_float", attributes={"to": _FLOAT}, like=output)
        take_the_place([output], [write("Add", [product, bias], f"{output.name}_biased", like=output)])
        self._graph.remove(gemm, safe=True)
        self.kinds[required(restore.inputs[0])] = "exact"


def _is_float_constant(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == _FLOAT and array_of(value) is not None
