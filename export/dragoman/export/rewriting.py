"""What every pass over a graph needs: reading its constants, and putting new nodes in front of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from onnx_ir.passes import common as passes
from onnxscript import ir

T = TypeVar("T")
Array = NDArray[Any]
CONTRIB = "com.microsoft"
_HEADS_FIRST = [0, 2, 1, 3]


def required(value: T | None) -> T:
    """Return what an exported graph always has and an arbitrary one need not have.

    Raises:
        ValueError: It has not.
    """
    if value is None:
        raise ValueError("the graph is not one that dragoman.export.to_onnx wrote")
    return value


def array_of(value: ir.Value | None) -> Array | None:
    """Return the content of a constant, or None if it is none."""
    tensor = _constant_of(value)
    return None if tensor is None else tensor.numpy()


def size_of(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the size of a constant without reading it, or None if it is none."""
    tensor = _constant_of(value)
    return None if tensor is None else tuple(tensor.shape.numpy())


def _constant_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    if value is None or value.producer() is not None or value.is_graph_input():
        return None
    return value.const_value


def is_matrix(value: ir.Value | None) -> bool:
    """Whether a value is a constant fp32 matrix."""
    tensor = _constant_of(value)
    return tensor is not None and len(tensor.shape) == 2 and tensor.dtype == ir.DataType.FLOAT


def only_reader(value: ir.Value, op_type: str) -> ir.Node | None:
    """Return the node of this type that alone reads a value, or None."""
    readers = value.consumers()
    if len(value.uses()) != 1 or value.is_graph_output() or readers[0].op_type != op_type:
        return None
    return readers[0]


def before_heads(apart: ir.Value | None) -> ir.Value | None:
    """Return what became [B, heads, K, D] by a Reshape and a Transpose: [B, K, heads * D], or None."""
    turn = apart.producer() if apart is not None else None
    if turn is None or turn.op_type != "Transpose" or list(turn.attributes["perm"].as_ints()) != _HEADS_FIRST:
        return None
    split = required(turn.inputs[0]).producer()
    joined = split.inputs[0] if split is not None and split.op_type == "Reshape" else None
    return joined if joined is not None and joined.shape is not None and len(joined.shape) == 3 else None


def constant(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """Return the constant of this name, which is made if there is none."""
    if name in graph.initializers:
        return graph.initializers[name]
    # ascontiguousarray makes a vector of a number
    tensor = ir.tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def unused_name(graph: ir.Graph, name: str) -> str:
    """Return `name`, with a number if another constant has it."""
    names = (name, *(f"{name}.{number}" for number in range(2, len(graph.initializers) + 3)))
    return next(name for name in names if name not in graph.initializers)


class Writer:
    """Makes nodes in front of another one, or at the end of a graph.

    Attributes:
        graph: Where constants go.
    """

    def __init__(self, graph: ir.Graph, before: ir.Node | None = None, branch: ir.Graph | None = None) -> None:
        """Nothing is made yet.

        Args:
            graph: Where constants go.
            before: Where nodes go; None appends them.
            branch: Of `graph`, where nodes go instead; it sees the constants of `graph`.
        """
        self.graph = graph
        self._before = before
        self._nodes = graph if branch is None else branch

    def __call__(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        *,
        attributes: Mapping[str, Any] | None = None,
        domain: str = "",
        like: ir.Value | None = None,
        dtype: ir.DataType | None = None,
        size: Sequence[int | str | ir.SymbolicDim | None] | None = None,
    ) -> ir.Value:
        """Make a node of one output, called `name`.

        Args:
            op_type: Of `domain`.
            inputs: None leaves an optional one out.
            name: Of the output.
            attributes: As the operator takes them.
            domain: Empty for standard operators.
            like: The output has the size and type of this value, except for what follows.
            dtype: Of the output.
            size: Of the output.
        """
        (output,) = self.several(op_type, inputs, [name], attributes=attributes, domain=domain)
        if like is not None:
            output.shape, output.type = like.shape, like.type
        if dtype is not None:
            output.type = ir.TensorType(dtype)
        if size is not None:
            output.shape = ir.Shape(size)
        return output

    def several(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        names: Sequence[str],
        *,
        attributes: Mapping[str, Any] | None = None,
        domain: str = "",
    ) -> Sequence[ir.Value]:
        """Make a node of several outputs."""
        outputs = [ir.Value(name=name) for name in names]
        node = ir.node(
            op_type, inputs, dict(attributes or {}), domain=domain, outputs=outputs, name=f"{op_type}_{names[0]}"
        )
        if self._before is None:
            self._nodes.append(node)
        else:
            self._nodes.insert_before(self._before, node)
        return outputs

    def constant(self, name: str, array: Array) -> ir.Value:
        """Return a constant, as `constant` does."""
        return constant(self.graph, name, array)


def take_the_place(old: Sequence[ir.Value], new: Sequence[ir.Value]) -> None:
    """Let everything read `new` instead of `old`, outputs of the graph too, which keep name, size and type."""
    for was, now in zip(old, new, strict=True):
        now.shape, now.type = was.shape, was.type
        name = was.name
        ir.convenience.replace_all_uses_with(was, now, replace_graph_outputs=True)
        was.name = f"{name}_replaced"
        now.name = name


def remove_unused(model: ir.Model) -> None:
    """Drop nodes and constants that no output needs."""
    passes.RemoveUnusedNodesPass()(model)
