"""int8 with activation scales that calibration has found: an activation is rounded in one operator instead of six.

    x_q = round(x / step) + 128                        (uint8), step = max |x| of the calibration texts / 127
    y[n,m] = step * w_scale[m] * sum_k (x_q[n,k] - 128) * w_q[k,m] + bias[m]

What is never negative, because it comes out of a Relu, has 255 steps from 0 on. The Relu itself is left out: what is
negative is rounded to 0 anyway. Integers stay within a byte, so that two products with 7-bit weights still fit 16
bits, 2 * 255 * 63 < 2^15, which is what CPUs without VNNI add them in.

One scale for all rows is a constant, so batched still equals alone. What is larger than anything in calibration is
cut off; the gate on chrF says whether that matters. (Fixed scales are what the fastest Marian models of the shared
tasks on efficiency use, e.g. Bogoychev et al. 2020, "Edinburgh's Submissions to the 2020 Machine Translation
Efficiency Task", section on 8-bit integer.)

`MatMulIntegerToFloat` of ONNX Runtime multiplies, scales and adds the bias while a tile is in the cache. Weights are
those of `quantize`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnxscript import ir

from dragoman.export.quantize import ACTIVATION_LIMIT, ZERO_POINT, Products, rewrite
from dragoman.export.rewriting import CONTRIB, Writer, array_of, is_matrix, only_reader, required, take_the_place

_SMALLEST = 1e-6  # of an activation that was zero in calibration
_LARGEST_BYTE = 255


@dataclass(frozen=True, slots=True)
class _Quantised:
    """An activation in 8 bits.

    Attributes:
        integers: Of its size, uint8.
        step: One, float32.
        zero_point: The integer that means 0, uint8.
    """

    integers: ir.Value
    step: ir.Value
    zero_point: ir.Value


def quantize_static(model: ir.Model, largest: Mapping[str, float]) -> None:
    """Replace products with constant matrices and look-ups in constant tables, in place.

    Args:
        model: fp32 graph from `to_onnx`.
        largest: Magnitude of each activation in front of a product, by name; `inputs_of_products` lists them.
    """
    model.opset_imports.setdefault(CONTRIB, 1)
    rewrite(model, StaticProducts(model.graph, largest))


def inputs_of_products(model: ir.Model) -> list[str]:
    """Return the names of the activations whose magnitudes `quantize_static` needs."""
    names = []
    for node in model.graph:
        if node.op_type == "MatMul" and is_matrix(node.inputs[1]):
            names.append(str(required(node.inputs[0]).name))
        elif node.op_type == "Gemm" and is_matrix(node.inputs[1]):
            flatten = required(required(node.inputs[0]).producer())
            names.append(str(required(flatten.inputs[0]).name))
    return list(dict.fromkeys(names))


class StaticProducts(Products):
    """Replaces single nodes of one graph."""

    def __init__(self, graph: ir.Graph, largest: Mapping[str, float]) -> None:
        """Begin with the magnitudes of activations."""
        super().__init__(graph)
        self._largest = largest
        self._done: dict[ir.Value, _Quantised] = {}

    def product(self, node: ir.Node) -> None:
        """[..., K] x [K, M], and the bias that is added to it."""
        activation, matrix = map(required, node.inputs)
        adder, bias = _bias_behind(node)
        last = node if adder is None else adder
        write = Writer(self._graph, node)
        output = last.outputs[0]
        result = self._multiply(write, activation, *self._columns(write, matrix), output, bias)
        if adder is not None and len(adder.inputs) > 2:  # the sum of a layer's input, product and bias
            rest = [value for value in adder.inputs if value is not node.outputs[0] and value is not bias]
            result = Writer(self._graph, adder)("Sum", [*rest, result], f"{output.name}_int8", like=output)
        take_the_place(last.outputs, [result])
        self._graph.remove([last, node] if adder is not None else node, safe=True)

    def _multiply(
        self,
        write: Writer,
        activation: ir.Value,
        weights: ir.Value,
        scales: ir.Value,
        output: ir.Value,
        bias: ir.Value | None = None,
    ) -> ir.Value:
        quantised = self._quantised(write, activation)
        own = required(array_of(scales))
        # The scales of `quantize` count steps of a row whose largest number is 1.
        of_weights = write.constant(f"{scales.name}_static", own * np.float32(ACTIVATION_LIMIT))
        zeros = write.constant(f"zeros_{own.size}", np.zeros(own.size, np.int8))
        return write(
            "MatMulIntegerToFloat",
            [quantised.integers, weights, quantised.step, of_weights, quantised.zero_point, zeros, bias],
            f"{output.name}_product",
            domain=CONTRIB,
            like=output,
        )

    def _quantised(self, write: Writer, activation: ir.Value) -> _Quantised:
        """Quantise an activation once, in front of its first product."""
        if activation not in self._done:
            name = str(activation.name)
            largest = max(self._largest[name], _SMALLEST)
            relu = activation.producer()
            if relu is not None and relu.op_type == "Relu":
                read, steps, zero = required(relu.inputs[0]), _LARGEST_BYTE, 0
            else:
                read, steps, zero = activation, ACTIVATION_LIMIT, ZERO_POINT
            step = write.constant(f"{name}_step", np.array(largest / steps, np.float32))
            zero_point = write.constant(f"zero_point_{zero}", np.array(zero, np.uint8))
            integers = write("QuantizeLinear", [read, step, zero_point], f"{name}_u8")
            self._done[activation] = _Quantised(integers, step, zero_point)
        return self._done[activation]


def _bias_behind(node: ir.Node) -> tuple[ir.Node | None, ir.Value | None]:
    """Return the sum that alone reads a product, and the vector in it that is its bias; or nothing."""
    for op_type in ("Add", "Sum"):
        adder = only_reader(node.outputs[0], op_type)
        for value in adder.inputs if adder is not None else ():
            array = array_of(value)
            if array is not None and array.ndim == 1:
                return adder, value
    return None, None
