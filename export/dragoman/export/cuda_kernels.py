"""Which nodes of a graph have a CUDA kernel, known without a GPU.

cuda_kernels.json lists the kernels of a release of onnxruntime-gpu, read from the release itself by
tests/gpu/record_cuda_kernels.py. A node without one would silently run on the CPU, in every step.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import onnx
from onnx_ir.passes import common as passes
from onnxscript import ir

TABLE = "cuda_kernels.json"


@functools.cache
def table() -> dict[str, Any]:
    """Return the recorded kernels and the version they are of."""
    content: dict[str, Any] = json.loads((files(__package__) / TABLE).read_text("utf-8"))
    return content


def nodes_without_kernel(model: ir.Model) -> list[str]:
    """Return a description of every node, those in branches included, that would fall back to the CPU."""
    typed = passes.ShapeInferencePass()(ir.from_proto(ir.to_proto(model))).model
    opset = typed.opset_imports[""]
    return [_describe(node) for node in _all_nodes(typed.graph) if not _has_kernel(node, opset)]


def _all_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    for node in graph:
        yield node
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield from _all_nodes(attribute.as_graph())


def _has_kernel(node: ir.Node, opset: int) -> bool:
    if node.op_type == "Constant" and node.domain == "":
        return True  # becomes an initializer when the graph is loaded
    types = _types(node, opset)
    for first, last, constraints in table()["kernels"].get(node.domain, {}).get(node.op_type, []):
        since = 1 if node.domain else onnx.defs.get_schema(node.op_type, opset, "").since_version
        reaches = first <= since and (last is None or since <= last)
        # The registry names types by constraint, or by the input where the operator has no constraint for it.
        if reaches and all(types.get(key, set()) <= set(allowed) for key, allowed in constraints.items()):
            return True
    return False


def _types(node: ir.Node, opset: int) -> dict[str, set[str]]:
    """Return the types in use of each type constraint and of each input and output by its name in the schema."""
    if node.domain:
        every = {_name(value) for value in (*node.inputs, *node.outputs) if value is not None}
        return {"T": every & {"float", "float16"}}
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    types: dict[str, set[str]] = {}
    for formal, values in ((schema.inputs, node.inputs), (schema.outputs, node.outputs)):
        for index, value in enumerate(values):
            if value is not None:
                parameter = formal[min(index, len(formal) - 1)]  # the last one may stand for any number
                for key in (parameter.type_str, parameter.name):
                    types.setdefault(key, set()).add(_name(value))
    return types


def _name(value: ir.Value) -> str:
    if value.dtype is None:
        raise ValueError(f"the type of {value.name} is not known")
    return _NAMES.get(value.dtype.name, value.dtype.name.lower())


_NAMES = {"FLOAT": "float", "FLOAT16": "float16"}


def _describe(node: ir.Node) -> str:
    types = ", ".join(_name(value) for value in node.inputs if value is not None)
    return f"{node.op_type} {node.name} ({types})"
