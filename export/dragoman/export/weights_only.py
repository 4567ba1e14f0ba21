"""Weight-only integers for the CPU: matrices in 4 or 8 bits by blocks, for few rows and little memory.

`MatMulNBits` reads each block of 32 weights with a scale of its own. With accuracy level 4 it quantises every
block of 32 activations to 8 bits as well, row by row, so a translation does not depend on what shares its batch.
Blocks of 64 or more are a little faster but sum in another order for one row than for several: they are not
used. It takes the matrices as a table [V, E] is stored, so a tied one is stored once, in 8 bits: in 4 bits the
most frequent words of a vocabulary would suffer most.
"""

from __future__ import annotations

import numpy as np
from onnxscript import ir

from dragoman.export.quantize import is_embedding, look_up_rows
from dragoman.export.rewriting import (
    CONTRIB,
    Array,
    Writer,
    array_of,
    is_matrix,
    only_reader,
    remove_unused,
    required,
    size_of,
    take_the_place,
)

_BLOCK = 32
_TABLE_BITS = 8
_ACCURACY_LEVEL = 4  # activations in 8 bits; lower levels compute in fp32
_FLOAT = ir.DataType.FLOAT


def quantize_weights(model: ir.Model, bits: int) -> None:
    """Replace products with constant matrices and look-ups in constant tables, in place.

    Args:
        model: fp32 graph from `to_onnx`.
        bits: 4 or 8, of the matrices of the layers.
    """
    rewrite = _Rewrite(model.graph, bits)
    for node in list(model.graph):
        if node.op_type == "MatMul" and is_matrix(node.inputs[1]):
            rewrite.product(node)
        elif node.op_type == "Gemm" and is_matrix(node.inputs[1]):
            rewrite.projection(node)
        elif is_embedding(node):
            rewrite.look_up(node)
    model.graph.opset_imports[CONTRIB] = 1
    remove_unused(model)


def quantize_blocks(rows: Array, bits: int) -> tuple[Array, Array]:
    """Return rows [N, K] as MatMulNBits stores them: uint8 [N, K / 32, 4 * bits] and scales [N, K / 32] float32.

    The number of the largest magnitude of a block becomes the lowest integer, which has no positive counterpart.
    """
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % _BLOCK)))
    blocks = padded.reshape(len(rows), -1, _BLOCK)
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1, keepdims=True), axis=-1)
    half = 1 << (bits - 1)
    scales = (extreme / -half).astype(np.float32)
    steps = np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales != 0)
    numbers = np.clip(np.round(steps) + half, 0, 2 * half - 1).astype(np.uint8)
    if bits == 4:
        numbers = numbers[..., 0::2] | (numbers[..., 1::2] << 4)
    return numbers, scales[..., 0]


class _Rewrite:
    """Replaces single nodes of one graph."""

    def __init__(self, graph: ir.Graph, bits: int) -> None:
        self._graph = graph
        self._bits = bits

    def product(self, node: ir.Node) -> None:
        """[..., K] x [K, M], plus a bias if that follows."""
        activation, matrix = map(required, node.inputs)
        add = only_reader(node.outputs[0], "Add")
        bias = required(add.inputs[add.inputs.index(node.outputs[0]) - 1]) if add else None
        values = array_of(bias)
        if values is None or values.ndim != 1:
            add = bias = None
        last, write = add or node, Writer(self._graph, add or node)
        weights = required(array_of(matrix)).T
        result = self._multiply(write, activation, weights, self._bits, str(matrix.name), bias, last.outputs[0])
        take_the_place(last.outputs, [result])
        self._graph.remove([add, node] if add else node, safe=True)

    def projection(self, gemm: ir.Node) -> None:
        """States [B, Q, E], flattened, times table [V, E] transposed, plus bias [V]: logits."""
        flat, table, bias = map(required, gemm.inputs)
        flatten, restore = required(flat.producer()), required(only_reader(gemm.outputs[0], "Reshape"))
        write, logits = Writer(self._graph, restore), restore.outputs[0]
        rows, states = required(array_of(table)), required(flatten.inputs[0])
        result = self._multiply(write, states, rows, _TABLE_BITS, str(table.name), bias, logits)
        take_the_place([logits], [result])
        self._graph.remove([restore, gemm, flatten], safe=True)

    def look_up(self, node: ir.Node) -> None:
        """Read rows of the output matrix if it is the same table, or 8-bit rows of a table of their own."""
        table, ids = map(required, node.inputs)
        width = required(size_of(table))[1]
        if width % _BLOCK or not any(reader.op_type == "Gemm" for reader in table.consumers()):
            look_up_rows(self._graph, node)
            return
        write, name = Writer(self._graph, node), node.outputs[0].name
        blocks, scales = self._constants(write, required(array_of(table)), _TABLE_BITS, str(table.name))
        found = write("Gather", [blocks, ids], f"{name}_u8")  # [B, Q, E / 32, 32]
        found = write("Cast", [found], f"{name}_float", attributes={"to": _FLOAT})
        middle = write.constant("middle", np.array(1 << (_TABLE_BITS - 1), np.float32))
        found = write("Sub", [found, middle], f"{name}_steps")
        scale = write("Gather", [scales, ids], f"{name}_scales")
        last = write.constant("axis_last", np.array([-1], np.int64))
        scale = write("Unsqueeze", [scale, last], f"{name}_scale")
        found = write("Mul", [found, scale], f"{name}_blocks")
        sizes = write.constant(f"sizes_{width}", np.array([0, 0, width], np.int64))
        take_the_place(node.outputs, [write("Reshape", [found, sizes], f"{name}_row")])
        self._graph.remove(node, safe=True)

    def _multiply(
        self,
        write: Writer,
        activation: ir.Value,
        rows: Array,
        bits: int,
        name: str,
        bias: ir.Value | None,
        output: ir.Value,
    ) -> ir.Value:
        blocks, scales = self._constants(write, rows, bits, name)
        return write(
            "MatMulNBits",
            [activation, blocks, scales, None, None, bias],
            f"{output.name}_product",
            domain=CONTRIB,
            attributes={
                "K": rows.shape[1],
                "N": rows.shape[0],
                "bits": bits,
                "block_size": _BLOCK,
                "accuracy_level": _ACCURACY_LEVEL,
            },
            like=output,
        )

    def _constants(self, write: Writer, rows: Array, bits: int, name: str) -> tuple[ir.Value, ir.Value]:
        key = f"{name}_{bits}bit"
        if key not in self._graph.initializers:
            blocks, scales = quantize_blocks(rows, bits)
            return write.constant(key, blocks), write.constant(f"{key}_scales", scales)
        return self._graph.initializers[key], self._graph.initializers[f"{key}_scales"]
