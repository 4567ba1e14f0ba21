"""int8 for the CPU: 8-bit weights per output channel, 8-bit activations per *row*.

ONNX Runtime's own dynamic quantisation takes one activation scale for a whole tensor, so a
translation would depend on what shares its batch. Here each row of activations gets a scale of its
own, which keeps the product exact integer arithmetic row by row: batched equals alone in int8 too.

    largest[n] = max_k |x[n,k]|              x_q = round(x / largest * 127) + 128   (uint8)
    y[n,m]     = largest[n] * w_scale[m] / 127 * sum_k (x_q[n,k] - 128) * w_q[k,m]

Weights use 7 bits: on CPUs without VNNI the 8-bit product saturates in 16 bits otherwise, and a
bundle must give the same text on every machine.

Embeddings are stored in 8 bits per row of the table. A table that is the output matrix as well is stored once, by
rows, in 7 bits; the product reads it through a Transpose, which ONNX Runtime computes while it loads, as it does
with all that is constant, and frees when the product has packed it. Stored the other way round, each token's
column would have to be gathered from as many places as it has numbers, in every step.
"""

from __future__ import annotations

import numpy as np
from onnxscript import ir

from dragoman.export import bundle
from dragoman.export.rewriting import (
    Array,
    Writer,
    array_of,
    is_matrix,
    only_reader,
    remove_unused,
    required,
    take_the_place,
)

WEIGHT_LIMIT = 63
ACTIVATION_LIMIT = 127
ZERO_POINT = 128
_SMALLEST = 1e-12
_FLOAT = ir.DataType.FLOAT


def quantize(model: ir.Model) -> None:
    """Replace products with constant matrices and look-ups in constant tables, in place.

    Args:
        model: fp32 graph from `to_onnx`.
    """
    rewrite(model, Products(model.graph))


def rewrite(model: ir.Model, products: Products) -> None:
    """Do so in the way of `products`."""
    for node in list(model.graph):
        if node.op_type == "MatMul" and is_matrix(node.inputs[1]):
            products.product(node)
        elif node.op_type == "Gemm" and is_matrix(node.inputs[1]):
            products.projection(node)
        elif is_embedding(node):
            products.look_up(node)
    remove_unused(model)


class Products:
    """Replaces single nodes of one graph by what multiplies 8-bit integers."""

    def __init__(self, graph: ir.Graph) -> None:
        """Begin; nothing is replaced yet."""
        self._graph = graph
        self._rows: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}  # activation -> its quantised rows, their largest
        self._columns_of: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}

    def product(self, node: ir.Node) -> None:
        """[..., K] x [K, M]."""
        activation, matrix = map(required, node.inputs)
        write = Writer(self._graph, node)
        result = self._multiply(write, activation, *self._columns(write, matrix), node.outputs[0])
        take_the_place(node.outputs, [result])
        self._graph.remove(node, safe=True)

    def projection(self, gemm: ir.Node) -> None:
        """States [B, Q, E], flattened, times table [V, E] transposed, plus bias [V]: logits."""
        flat, table, bias = map(required, gemm.inputs)
        flatten, restore = required(flat.producer()), required(only_reader(gemm.outputs[0], "Reshape"))
        write, logits = Writer(self._graph, restore), restore.outputs[0]
        columns = self._columns(write, table, transposed=True)
        take_the_place([logits], [self._multiply(write, required(flatten.inputs[0]), *columns, logits, bias)])
        self._graph.remove([restore, gemm, flatten], safe=True)

    def look_up(self, node: ir.Node) -> None:
        """Read 8-bit rows and their scales, of the output matrix if it is the same table."""
        table, ids = map(required, node.inputs)
        if not any(reader.op_type == "Gemm" for reader in table.consumers()):
            look_up_rows(self._graph, node)
            return
        write, name = Writer(self._graph, node), node.outputs[0].name
        rows, scales = self._tied(write, table)
        found = write("Gather", [rows, ids], f"{name}_i8")
        scale = write("Gather", [scales, ids], f"{name}_scales")
        last = write.constant("axis_last", np.array([-1], np.int64))
        scale = write("Unsqueeze", [scale, last], f"{name}_column")
        # The scales of products count steps of the activation.
        steps = write.constant("steps", np.array(ACTIVATION_LIMIT, np.float32))
        scale = write("Mul", [scale, steps], f"{name}_scale")
        found = write("Cast", [found], f"{name}_float", attributes={"to": _FLOAT})
        take_the_place(node.outputs, [write("Mul", [found, scale], f"{name}_int8")])
        self._graph.remove(node, safe=True)

    def _multiply(
        self,
        write: Writer,
        activation: ir.Value,
        weights: ir.Value,
        scales: ir.Value,
        output: ir.Value,
        bias: ir.Value | None = None,
    ) -> ir.Value:
        rows, largest = self._quantised_rows(write, activation)
        zero_point = write.constant("zero_point", np.array(ZERO_POINT, np.uint8))
        total = write("MatMulInteger", [rows, weights, zero_point], f"{output.name}_sum")
        total = write("Cast", [total], f"{output.name}_float", attributes={"to": _FLOAT}, like=output)
        total = write("Mul", [total, largest], f"{output.name}_rows", like=output)
        total = write("Mul", [total, scales], f"{output.name}_product", like=output)
        return total if bias is None else write("Add", [total, bias], f"{output.name}_int8", like=output)

    def _quantised_rows(self, write: Writer, activation: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Quantise an activation once, in front of its first product."""
        if activation not in self._rows:
            name = activation.name
            magnitude = write("Abs", [activation], f"{name}_abs", like=activation)
            last = write.constant("axis_last", np.array([-1], np.int64))
            largest = write("ReduceMax", [magnitude, last], f"{name}_max", attributes={"keepdims": 1})
            smallest = write.constant("smallest_scale", np.array(_SMALLEST, np.float32))
            largest = write("Max", [largest, smallest], f"{name}_largest")
            unit = write("Div", [activation, largest], f"{name}_unit", like=activation)
            # |unit| <= 1 by construction, so one scale serves all rows.
            step = write.constant("step", np.array(1 / ACTIVATION_LIMIT, np.float32))
            zero_point = write.constant("zero_point", np.array(ZERO_POINT, np.uint8))
            self._rows[activation] = write("QuantizeLinear", [unit, step, zero_point], f"{name}_u8"), largest
        return self._rows[activation]

    def _tied(self, write: Writer, table: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return int8 rows [V, E] and the scales [V] of their products; `_columns` gives what multiplies."""
        rows, scales = quantize_rows(required(array_of(table)), WEIGHT_LIMIT)
        stored = write.constant(f"{table.name}_i8", rows)
        turned = write(
            "Transpose",
            [stored],
            f"{table.name}_columns",
            attributes={"perm": [1, 0]},
            dtype=ir.DataType.INT8,
            size=rows.shape[::-1],
        )
        scale = write.constant(f"{table.name}_scales", scales[:, 0] / ACTIVATION_LIMIT)
        self._columns_of[table] = turned, scale
        return stored, scale

    def _columns(self, write: Writer, matrix: ir.Value, *, transposed: bool = False) -> tuple[ir.Value, ir.Value]:
        """Return an int8 matrix [K, M] and the scales [M] of its products with quantised rows."""
        if matrix not in self._columns_of:
            values = required(array_of(matrix))
            weights, scales = quantize_rows(values if transposed else values.T, WEIGHT_LIMIT)
            self._columns_of[matrix] = (
                write.constant(f"{matrix.name}_i8", weights.T),
                write.constant(f"{matrix.name}_scales", scales[:, 0] / ACTIVATION_LIMIT),
            )
        return self._columns_of[matrix]


def is_embedding(node: ir.Node) -> bool:
    """Whether a node looks up tokens; tables of positions and of biases are small and stay as they are."""
    ids = node.inputs[1] if node.op_type == "Gather" and is_matrix(node.inputs[0]) else None
    return ids is not None and ids.name == bundle.INPUT_IDS


def look_up_rows(graph: ir.Graph, node: ir.Node) -> None:
    """Let a look-up of tokens read 8-bit rows of its table [V, E] and their scales."""
    table, ids = map(required, node.inputs)
    write, name = Writer(graph, node), node.outputs[0].name
    rows, scales = quantize_rows(required(array_of(table)), ACTIVATION_LIMIT)
    found = write("Gather", [write.constant(f"{table.name}_rows_i8", rows), ids], f"{name}_i8")
    found = write("Cast", [found], f"{name}_float", attributes={"to": _FLOAT})
    scale = write("Gather", [write.constant(f"{table.name}_rows_scales", scales), ids], f"{name}_scale")
    take_the_place(node.outputs, [write("Mul", [found, scale], f"{name}_int8")])
    graph.remove(node, safe=True)


def quantize_rows(values: Array, limit: int) -> tuple[Array, Array]:
    """Return int8 rows [N, K] within +-limit and their scales [N, 1] float32."""
    scales = np.maximum(np.abs(values).max(axis=1, keepdims=True) / np.float32(limit), np.float32(_SMALLEST))
    return np.round(values / scales).astype(np.int8), scales.astype(np.float32)
