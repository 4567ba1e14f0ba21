"""What is done to a graph once, at export, so that no server has to do it at each start.

    merged products      Matrices that multiply the same activation stand side by side in one: query, key and
                         value; the two halves of a gated layer; cross-attention keys and values of all layers.
    sizes                Reshapes copy the leading sizes of their input instead of computing them.
    look-ups             A table of positions is read by Gather, or by Slice where they are 0, 1, 2, ...
    names                A matrix is called as in the checkpoint; what the exporter noted about the source code,
                         paths of the exporting machine included, is dropped.

All of them leave every number as it was, up to the order of additions inside a product.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx_ir.passes import common as passes
from onnxscript import ir

from dragoman.export import bundle
from dragoman.export.rewriting import (
    Writer,
    array_of,
    constant,
    is_matrix,
    only_reader,
    remove_unused,
    required,
    size_of,
    take_the_place,
    unused_name,
)

_HEADS_FIRST = [0, 2, 1, 3]
_SCOPES = "pkg.torch.onnx.name_scopes"


def optimize(model: ir.Model, *, merge: bool = True) -> None:
    """Rewrite a graph that the exporter made, in place.

    Args:
        model: The graph.
        merge: Merge products.
    """
    graph = model.graph
    _name_matrices(graph)
    _copy_sizes(graph)
    if merge:
        _merge_products(graph)
    _look_up_plainly(graph)
    remove_unused(model)
    passes.ClearMetadataAndDocStringPass()(model)
    for value in (*graph.inputs, *graph.outputs, *graph.initializers.values()):
        value.metadata_props.clear()
    model.producer_name, model.producer_version = "dragoman", None


def keep_sums_apart(model: ir.Model) -> None:
    """Write the sum in front of a layer norm as Sum, for CPUs.

    ONNX Runtime fuses Add and LayerNormalization into one operator whose CPU kernel is slower than the two.
    """
    for node in model.graph:
        if node.op_type == "LayerNormalization":
            add = required(node.inputs[0]).producer()
            if add is not None and add.op_type == "Add" and only_reader(add.outputs[0], node.op_type):
                add.op_type = "Sum"


def keep_lengths_on_device(model: ir.Model) -> None:
    """Let `cache_lengths` + Q be computed where the cache is, for GPUs.

    Q is the size of a tensor, and ONNX Runtime adds to sizes on the CPU: it would fetch the lengths in every step.
    """
    graph = model.graph
    lengths = next((value for value in graph.inputs if value.name == bundle.CACHE_LENGTHS), None)
    for node in list(lengths.consumers()) if lengths else []:
        new = next((value for value in node.inputs if value is not lengths), None) if node.op_type == "Add" else None
        if new is None or required(new.producer()).op_type != "Squeeze":
            continue
        write = Writer(graph, node)
        zero, one = (write.constant(f"number_{number}", np.array(number, np.int64)) for number in (0, 1))
        numbers = write("Range", [zero, new, one], "new_positions", dtype=ir.DataType.INT64)
        last = write("Gather", [numbers, write.constant("number_-1", np.array(-1, np.int64))], "last_new_position")
        count = write("Add", [last, one], "new_count", dtype=ir.DataType.INT64)
        node.replace_input_with(1 - node.inputs.index(lengths), count)


def _name_matrices(graph: ir.Graph) -> None:
    """Give each transposed matrix and each table of positions the name of its module: the exporter calls it val_17."""
    for node in graph:
        which, part = {"MatMul": (1, "weight"), "GatherND": (0, "table")}.get(node.op_type, (0, ""))
        if not part or not is_matrix(node.inputs[which]) or _SCOPES not in node.metadata_props:
            continue
        matrix, scopes = required(node.inputs[which]), ast.literal_eval(node.metadata_props[_SCOPES])
        if len(scopes) > 2 and len(matrix.uses()) == 1:
            name = unused_name(graph, f"{scopes[-2]}.{part}")
            del graph.initializers[str(matrix.name)]
            matrix.name = name
            graph.register_initializer(matrix)


def _copy_sizes(graph: ir.Graph) -> None:
    """Let a Reshape that keeps the first two sizes say so with zeros."""
    for node in graph:
        if node.op_type != "Reshape" or array_of(node.inputs[1]) is not None:
            continue
        before, after = node.inputs[0].shape if node.inputs[0] else None, node.outputs[0].shape
        if before is None or after is None or len(before) < 3 or len(after) < 3 or before[:2] != after[:2]:
            continue
        sizes = list(after)[2:]
        if all(isinstance(size, int) for size in sizes):
            wanted = [0, 0, *(int(size) for size in sizes)]  # type: ignore[arg-type]  # all are numbers
            name = "sizes_" + "_".join(map(str, wanted[2:]))
            node.replace_input_with(1, constant(graph, name, np.array(wanted, np.int64)))
            node.attributes.pop("allowzero", None)


@dataclass(frozen=True, slots=True)
class _Heads:
    """How a projection [B, K, H * D] becomes [B, H, K, D]."""

    nodes: tuple[ir.Node, ir.Node]
    heads: int
    head_dim: int

    @property
    def output(self) -> ir.Value:
        return self.nodes[1].outputs[0]


@dataclass(frozen=True, slots=True)
class _Product:
    """One product with a matrix, its bias, and the split into heads behind it."""

    node: ir.Node
    matrix: ir.Value
    add: ir.Node | None
    bias: ir.Value | None
    heads: _Heads | None

    @property
    def nodes(self) -> list[ir.Node]:
        behind = self.heads.nodes if self.heads else ()
        return [node for node in (self.node, self.add, *behind) if node is not None]

    @property
    def output(self) -> ir.Value:
        return self.nodes[-1].outputs[0]

    @property
    def width(self) -> int:
        return required(size_of(self.matrix))[1]


def _merge_products(graph: ir.Graph) -> None:
    order = {node: index for index, node in enumerate(graph)}
    activations = list(dict.fromkeys(node.inputs[0] for node in graph if node.op_type == "MatMul" and node.inputs[0]))
    for activation in activations:
        nodes = [
            node
            for node in activation.consumers()
            if node.op_type == "MatMul" and node.inputs[0] is activation and is_matrix(node.inputs[1])
        ]
        if len(nodes) > 1:
            _merge(graph, [_product(node) for node in sorted(nodes, key=order.__getitem__)])


def _product(node: ir.Node) -> _Product:
    matrix, output = required(node.inputs[1]), node.outputs[0]
    add = only_reader(output, "Add")
    bias = None
    if add is not None:
        bias = next((value for value in add.inputs if value is not output), None)
        values = array_of(bias)
        if values is None or values.ndim != 1:
            add = bias = None
    if add is not None:
        output = add.outputs[0]
    return _Product(node, matrix, add, bias, _heads(output))


def _heads(value: ir.Value) -> _Heads | None:
    reshape = only_reader(value, "Reshape")
    transpose = only_reader(reshape.outputs[0], "Transpose") if reshape else None
    if reshape is None or transpose is None or list(transpose.attributes["perm"].as_ints()) != _HEADS_FIRST:
        return None
    sizes = array_of(reshape.inputs[1])
    if sizes is None or len(sizes) != 4 or list(sizes[:2]) != [0, 0]:
        return None
    return _Heads((reshape, transpose), int(sizes[2]), int(sizes[3]))


def _merge(graph: ir.Graph, products: Sequence[_Product]) -> None:
    """Put one product in the place of several."""
    first, widths = products[0], [product.width for product in products]
    activation = required(first.node.inputs[0])
    name = _common_name([product.matrix.name or "" for product in products])
    write = Writer(graph, first.node)
    matrix = np.concatenate([required(array_of(product.matrix)) for product in products], axis=1)
    wide = write(
        "MatMul",
        [activation, write.constant(unused_name(graph, f"{name}.weight"), matrix)],
        f"{first.node.outputs[0].name}_merged",
        like=activation,
        size=[*required(activation.shape)[:-1], sum(widths)],
    )
    if any(product.bias is not None for product in products):
        biases = [required(array_of(p.bias)) if p.bias else np.zeros(p.width, matrix.dtype) for p in products]
        bias = write.constant(unused_name(graph, f"{name}.bias"), np.concatenate(biases))
        wide = write("Add", [wide, bias], f"{wide.name}_biased", like=wide)
    heads = [product.heads for product in products if product.heads is not None]
    if len(heads) == len(products) and len({part.head_dim for part in heads}) == 1:
        wide = _into_heads(write, wide, sum(part.heads for part in heads), heads[0].head_dim)
        axis, widths, outputs = 1, [part.heads for part in heads], [part.output for part in heads]
        old = [node for product in products for node in product.nodes]
    else:
        axis, outputs = -1, [(product.add or product.node).outputs[0] for product in products]
        old = [node for product in products for node in (product.node, product.add) if node is not None]
    sizes = write.constant("split_" + "_".join(map(str, widths)), np.array(widths, np.int64))
    parts = write.several("Split", [wide, sizes], [f"{o.name}_part" for o in outputs], attributes={"axis": axis})
    take_the_place(outputs, parts)
    graph.remove(reversed(old), safe=True)


def _into_heads(write: Writer, wide: ir.Value, heads: int, head_dim: int) -> ir.Value:
    batch, length = required(wide.shape)[:2]
    sizes = write.constant(f"sizes_{heads}_{head_dim}", np.array([0, 0, heads, head_dim], np.int64))
    split = write("Reshape", [wide, sizes], f"{wide.name}_split", like=wide, size=[batch, length, heads, head_dim])
    return write(
        "Transpose",
        [split],
        f"{wide.name}_heads",
        attributes={"perm": _HEADS_FIRST},
        like=wide,
        size=[batch, heads, length, head_dim],
    )


def _common_name(names: Sequence[str]) -> str:
    """["a.0.query.weight", "a.0.key.weight"] -> "a.0.query_key"; what several layers share has no number."""
    modules = [name.removesuffix(".weight").split(".") for name in names]
    if len({tuple(filter(str.isdigit, module)) for module in modules}) > 1:
        modules = [[part for part in module if not part.isdigit()] for module in modules]
    shared = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*modules, strict=False))
    start = len(list(shared))
    own = ["_".join(module[start:]) for module in modules]
    return ".".join([*modules[0][:start], "_".join(dict.fromkeys(own))])


def _look_up_plainly(graph: ir.Graph) -> None:
    """The exporter indexes a table by GatherND with indices in vectors of one."""
    for node in list(graph):
        if node.op_type != "GatherND" or not is_matrix(node.inputs[0]):
            continue
        unsqueeze = required(node.inputs[1]).producer()
        if unsqueeze is None or unsqueeze.op_type != "Unsqueeze":
            continue
        write, name, indices = Writer(graph, node), f"{node.outputs[0].name}_rows", required(unsqueeze.inputs[0])
        size = _counted_size(indices)
        if size is None:
            found = write("Gather", [node.inputs[0], indices], name)
        else:
            start = write.constant("axis_0", np.zeros(1, np.int64))
            found = write("Slice", [node.inputs[0], start, size, start], name)
        take_the_place(node.outputs, [found])
        graph.remove(node, safe=True)


def _counted_size(indices: ir.Value) -> ir.Value | None:
    """Return n [1] if the indices are 0, 1, ... n - 1, where n is a size of a tensor; else None."""
    count = indices.producer()
    if count is None or count.op_type != "Range":
        return None
    first, limit, step = map(required, count.inputs)
    squeeze = limit.producer()
    if squeeze is None or squeeze.op_type != "Squeeze" or array_of(first) != 0 or array_of(step) != 1:
        return None
    return squeeze.inputs[0]
