"""What a graph is made of: operators, parameters by type and by part of the model. Counts, runs nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from dragoman.export.errors import BundleError
from dragoman.export.graph_parts import PartFinder, graphs_in

_HALF_BYTES = {"INT4", "UINT4", "FLOAT4E2M1"}


@dataclass(frozen=True, slots=True)
class Amount:
    """Numbers of one type.

    Attributes:
        parameters: How many.
        bytes: They take.
    """

    parameters: int = 0
    bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        """Return both together."""
        return Amount(self.parameters + other.parameters, self.bytes + other.bytes)


Amounts = dict[str, Amount]
"""By type: "float32", "int8", or "4 bits" of packed ones."""


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """One graph.

    Attributes:
        name: Its file.
        opsets: Version of each domain of operators; "" is ONNX's own.
        nodes: How many, those of nested graphs included.
        operators: How many nodes of each; a contributed one with its domain in front.
        inputs: Type and axes of each, such as "float32 [batch, 4, cache, 16]"; "any" for an axis of no name.
        outputs: Likewise.
        amounts: Parameters by type.
        parts: Parameters by part of the model (see `PartFinder.part`) and type.
        unused: Constants that no node reads.
        external: Files beside the graph that hold weights.
    """

    name: str
    opsets: dict[str, int]
    nodes: int
    operators: dict[str, int]
    inputs: dict[str, str]
    outputs: dict[str, str]
    amounts: Amounts
    parts: dict[str, Amounts]
    unused: list[str]
    external: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return asdict(self)


def read_graph(path: Path, *, post_norm: bool) -> GraphFacts:
    """Read a graph.

    Args:
        path: Of the file.
        post_norm: Of the model, see `PartFinder`.

    Raises:
        BundleError: It is no ONNX file.
    """
    try:
        model = onnx.load(path, load_external_data=False)
        onnx.checker.check_model(path)
    except Exception as error:  # protobuf's and onnx's own, which share no base
        raise BundleError(f"{path} is not an ONNX graph: {str(error).splitlines()[0]}; export it again") from error
    graphs = list(_graphs_of(model.graph))
    nodes = [node for graph in graphs for node in graph.node]
    constants = [tensor for graph in graphs for tensor in graph.initializer]
    finder = PartFinder(model.graph, post_norm=post_norm)
    packed = {node.input[1]: node for node in nodes if node.op_type == "MatMulNBits"}
    parts: dict[str, Amounts] = {}
    for tensor in constants:
        kind, amount = _measure(tensor, packed.get(tensor.name))
        of_part = parts.setdefault(finder.part(tensor.name), {})
        of_part[kind] = of_part.get(kind, Amount()) + amount
    return GraphFacts(
        name=path.name,
        opsets={opset.domain: opset.version for opset in model.opset_import},
        nodes=len(nodes),
        operators=dict(Counter(map(_operator, nodes)).most_common()),
        inputs={value.name: _type_of(value) for value in model.graph.input},
        outputs={value.name: _type_of(value) for value in model.graph.output},
        amounts=total(parts.values()),
        parts={part: parts[part] for part in sorted(parts, key=_order)},
        unused=[tensor.name for tensor in model.graph.initializer if not finder.is_read(tensor.name)],
        external=sorted({entry.value for tensor in constants for entry in tensor.external_data
                         if entry.key == "location"}),
    )  # fmt: skip


def total(amounts: Any) -> Amounts:
    """Return the sum of several amounts by type."""
    sums: Amounts = {}
    for one in amounts:
        for kind, amount in one.items():
            sums[kind] = sums.get(kind, Amount()) + amount
    return sums


def _measure(tensor: TensorProto, product: onnx.NodeProto | None) -> tuple[str, Amount]:
    count = math.prod(tensor.dims)
    name = TensorProto.DataType.Name(tensor.data_type)
    if name in _HALF_BYTES:
        return "4 bits", Amount(count, (count + 1) // 2)
    kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    size = count * kind.itemsize
    if product is not None:
        sizes = {attribute.name: attribute.i for attribute in product.attribute}
        return f"{sizes.get('bits', 4)} bits", Amount(sizes["N"] * sizes["K"], size)
    return str(kind), Amount(count, size)


def _graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all that are nested in it."""
    yield graph
    for node in graph.node:
        for inner in graphs_in(node):
            yield from _graphs_of(inner)


def _operator(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else str(node.op_type)


def _type_of(value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    axes = ", ".join(
        axis.dim_param or (str(axis.dim_value) if axis.HasField("dim_value") else "any") for axis in tensor.shape.dim
    )
    return f"{helper.tensor_dtype_to_np_dtype(tensor.elem_type)} [{axes}]"


def _order(part: str) -> tuple[int, int]:
    """Sort parts as data flows through them."""
    stacks = ("embedding", "encoder.layers", "encoder", "target_embedding", "decoder.layers", "decoder", "output")
    stack, _, layer = part.rpartition(".") if part[-1].isdigit() else (part, "", "-1")
    return (stacks.index(stack) if stack in stacks else len(stacks)), int(layer)
