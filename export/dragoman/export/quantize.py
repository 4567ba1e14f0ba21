"""int8 for the CPU: 8-bit weights per output channel, 8-bit activations per *row*.

ONNX Runtime's own dynamic quantisation takes one activation scale for a whole tensor, so a
translation would depend on what shares its batch. Here each row of activations gets a scale of its
own, which keeps the product exact integer arithmetic row by row: batched equals alone in int8 too.

    scale[n] = max_k |x[n,k]| / 127          x_q = round(x / scale) + 128   (uint8)
    y[n,m]   = scale[n] * w_scale[m] * sum_k (x_q[n,k] - 128) * w_q[k,m]

Weights use 7 bits: on CPUs without VNNI the 8-bit product saturates in 16 bits otherwise, and a
bundle must give the same text on every machine. Embeddings are stored in 8 bits per row of the table;
small tables, such as T5's biases of attention scores, stay as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

_WEIGHT_LIMIT = 63
_ACTIVATION_LIMIT = 127
_ZERO_POINT = 128
_SMALLEST_SCALE = 1e-12
_SMALLEST_TABLE = 4096  # numbers; below, scaling costs more time than reading fewer bytes saves


def quantize_int8(source: Path, target: Path) -> None:
    """Write an int8 copy of a graph.

    Args:
        source: fp32 graph from `to_onnx`.
        target: Where to write.
    """
    model = onnx.load(source)
    rewrite = _Rewrite(model.graph)
    rewrite.run()
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, target)


class _Rewrite:
    """Replaces products with constant matrices and look-ups in constant tables, in place."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._nodes: list[onnx.NodeProto] = []
        self._rows: dict[str, tuple[str, str]] = {}  # activation -> its quantised rows and their scales
        self._weights: dict[str, tuple[str, str]] = {}
        self._new: dict[str, onnx.TensorProto] = {}

    def run(self) -> None:
        """Rewrite the graph and drop the fp32 constants that nothing uses any more."""
        for node in self._graph.node:
            if node.op_type == "MatMul" and self._is_matrix(node.input[1]):
                self._product(node)
            elif node.op_type == "Gather" and self._is_matrix(node.input[0], _SMALLEST_TABLE):
                self._look_up(node)
            else:
                self._nodes.append(node)
        del self._graph.node[:]
        self._graph.node.extend(self._nodes)
        used = {name for node in self._nodes for name in node.input}
        kept = [tensor for tensor in (*self._graph.initializer, *self._new.values()) if tensor.name in used]
        del self._graph.initializer[:]
        self._graph.initializer.extend(kept)

    def _is_matrix(self, name: str, smallest: int = 1) -> bool:
        tensor = self._constants.get(name)
        if tensor is None or len(tensor.dims) != 2 or tensor.data_type != TensorProto.FLOAT:
            return False
        return bool(tensor.dims[0] * tensor.dims[1] >= smallest)

    def _product(self, node: onnx.NodeProto) -> None:
        """[..., K] x [K, M] in integers."""
        rows, scales = self._quantised_rows(node.input[0])
        weight, weight_scales = self._quantised(node.input[1], axis=0)
        out = node.output[0]
        self._add("MatMulInteger", [rows, weight, self._scalar("zero_point", np.uint8(_ZERO_POINT))], f"{out}_sum")
        self._add("Cast", [f"{out}_sum"], f"{out}_float", to=TensorProto.FLOAT)
        self._add("Mul", [f"{out}_float", scales], f"{out}_rows")
        self._add("Mul", [f"{out}_rows", weight_scales], out)

    def _quantised_rows(self, name: str) -> tuple[str, str]:
        """Quantise an activation once, however many products read it."""
        if name in self._rows:
            return self._rows[name]
        quantised, scale = f"{name}_u8", f"{name}_scale"
        axes = self._constant("last_axis", np.array([-1], np.int64))
        self._add("Abs", [name], f"{name}_abs")
        self._add("ReduceMax", [f"{name}_abs", axes], f"{name}_max", keepdims=1)
        self._add("Mul", [f"{name}_max", self._scalar("per_step", np.float32(1 / _ACTIVATION_LIMIT))], f"{name}_raw")
        self._add("Max", [f"{name}_raw", self._scalar("smallest_scale", np.float32(_SMALLEST_SCALE))], scale)
        self._add("Div", [name, scale], f"{name}_steps")
        # |steps| <= 127 by construction, so a scalar scale of 1 only rounds and shifts.
        one = self._scalar("unit_scale", np.float32(1))
        zero_point = self._scalar("zero_point", np.uint8(_ZERO_POINT))
        self._add("QuantizeLinear", [f"{name}_steps", one, zero_point], quantised)
        self._rows[name] = quantised, scale
        return self._rows[name]

    def _look_up(self, node: onnx.NodeProto) -> None:
        """Gather 8-bit rows and their scales."""
        table, scales = self._quantised(node.input[0], axis=1)
        out = node.output[0]
        self._add("Gather", [table, node.input[1]], f"{out}_i8")
        self._add("Cast", [f"{out}_i8"], f"{out}_float", to=TensorProto.FLOAT)
        self._add("Gather", [scales, node.input[1]], f"{out}_scale")
        self._add("Mul", [f"{out}_float", f"{out}_scale"], out)

    def _quantised(self, name: str, *, axis: int) -> tuple[str, str]:
        """Return names of the int8 matrix and its scales, one per slice along `axis`."""
        if name not in self._weights:
            values = numpy_helper.to_array(self._constants[name])
            limit = _WEIGHT_LIMIT if axis == 0 else _ACTIVATION_LIMIT
            scales = np.maximum(np.abs(values).max(axis=axis, keepdims=True) / limit, _SMALLEST_SCALE)
            quantised = np.round(values / scales).astype(np.int8)
            shaped = scales[0] if axis == 0 else scales  # [M] for products, [V, 1] for tables
            self._weights[name] = (
                self._constant(f"{name}_i8", quantised),
                self._constant(f"{name}_scales", shaped.astype(np.float32)),
            )
        return self._weights[name]

    def _add(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> None:
        self._nodes.append(helper.make_node(op_type, inputs, [output], name=f"{op_type}_{output}", **attributes))

    def _scalar(self, name: str, value: np.generic) -> str:
        return self._constant(name, np.asarray(value))

    def _constant(self, name: str, values: NDArray[np.generic]) -> str:
        self._new.setdefault(name, numpy_helper.from_array(values, name))
        return name
