"""Attention of a decode step over what a row really has, not over the length of its neighbours: for CPUs.

`Attention` (opset 24) computes over the whole buffer on the CPU and masks what lies behind a row's length, so one long
text slows every row. The contrib operator `GroupQueryAttention` reads each row up to its own length, writes the new
key and value in place, and takes its inputs without splitting heads apart.

It always appends, so attention to the source appends what is there already: the key and value of the last source
token go where they stand, and the source's buffers are outputs that never change. A graph that was rewritten takes one
new token per call.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnxscript import ir

from dragoman.export import bundle
from dragoman.export.rewriting import CONTRIB, Writer, array_of, only_reader, remove_unused, required, take_the_place
from dragoman.model.config import ModelConfig

_INT32 = ir.DataType.INT32
_HEADS_FIRST = [0, 2, 1, 3]
_BIAS = 3  # input of Attention
_HEAD_STEP = 8  # a head must be a multiple of it


def use_grouped_attention(decoder: ir.Model, config: ModelConfig) -> None:
    """Rewrite a decoder in place; with biases of positions, or heads the operator has no kernel for, it stays as it is.

    Args:
        decoder: Graph of `to_onnx`, in any precision for CPUs.
        config: Of its model.
    """
    nodes = [node for node in decoder.graph if node.op_type == "Attention"]
    if config.head_dim % _HEAD_STEP or any(node.inputs[_BIAS] is not None for node in nodes):
        return
    decoder.opset_imports.setdefault(CONTRIB, 1)
    rewrite = _Rewrite(decoder.graph, config)
    for node in nodes:
        rewrite.attention(node)
    rewrite.take_one_token()
    remove_unused(decoder)


class _Rewrite:
    """Replaces the attention nodes of one graph."""

    def __init__(self, graph: ir.Graph, config: ModelConfig) -> None:
        self._graph = graph
        self._heads, self._groups, self._dim = config.num_heads, config.key_value_heads, config.head_dim
        self._inputs = {str(value.name): value for value in graph.inputs}
        self._first = next(iter(graph))
        self._shared: dict[str, ir.Value] = {}

    def attention(self, node: ir.Node) -> None:
        """Replace a node, the write to its cache in front of it, and the joining of heads behind it."""
        query, key, value = map(required, node.inputs[:3])
        turn = required(only_reader(node.outputs[0], "Transpose"))
        join = required(only_reader(turn.outputs[0], "Reshape"))
        write, output = Writer(self._graph, node), join.outputs[0]
        to_source = key.is_graph_input()
        if to_source:
            buffers = [key, value]
            layer = int(str(key.name).rpartition(".")[2])
            names = list(bundle.updated_cross_names(layer))
            new = [self._last(write, buffer) for buffer in buffers]
            before, size = self._source_lengths(), self._size(bundle.cross_names(0)[0])
        else:
            scatters = [required(buffer.producer()) for buffer in (key, value)]
            buffers = [required(scatter.inputs[0]) for scatter in scatters]
            names = [str(scatter.outputs[0].name) for scatter in scatters]
            new = [self._flat(write, required(scatter.inputs[1]), self._groups) for scatter in scatters]
            before, size = self._cache_lengths(), self._size(str(buffers[0].name))
        attended, *updated = write.several(
            "GroupQueryAttention",
            [self._flat(write, query, self._heads), *new, *buffers, before, size],
            [f"{output.name}_grouped", *(f"{name}_grouped" for name in names)],
            attributes={
                "num_heads": self._heads,
                "kv_num_heads": self._groups,
                "scale": node.attributes["scale"].as_float(),
            },
            domain=CONTRIB,
        )
        attended.shape, attended.type = output.shape, output.type
        for buffer, result in zip(buffers, updated, strict=True):
            result.shape, result.type = buffer.shape, buffer.type
        take_the_place([output], [attended])
        if to_source:
            for name, result in zip(names, updated, strict=True):
                result.name = name
                self._graph.outputs.append(result)
            self._graph.remove([join, turn, node], safe=True)
        else:
            take_the_place([scatter.outputs[0] for scatter in scatters], updated)
            self._graph.remove([join, turn, node, *scatters], safe=True)

    def take_one_token(self) -> None:
        """Let the graph say that it takes one new token."""
        ids = self._inputs[bundle.INPUT_IDS]
        ids.shape = ir.Shape([required(ids.shape)[0], 1])

    def _flat(self, write: Writer, split: ir.Value, heads: int) -> ir.Value:
        """Return [B, heads, 1, D] as [B, 1, heads * D]: from before the heads were split apart, if possible."""
        producer = split.producer()
        if producer is not None and producer.op_type == "Split":
            joined = self._before_heads(producer.inputs[0])
            if joined is not None:
                return self._split_flat(write, producer, joined)[list(producer.outputs).index(split)]
        joined = self._before_heads(split)
        if joined is not None:
            return joined
        return self._joined(write, split, heads, split.dtype)

    def _joined(self, write: Writer, apart: ir.Value, heads: int, dtype: ir.DataType | None) -> ir.Value:
        """Return one position of each row with its heads side by side, [B, 1, heads * D]."""
        width = heads * self._dim
        sizes = write.constant(f"sizes_1_{width}", np.array([-1, 1, width], np.int64))
        return write("Reshape", [apart, sizes], f"{apart.name}_flat", size=[None, 1, width], dtype=dtype)

    def _split_flat(self, write: Writer, node: ir.Node, joined: ir.Value) -> list[ir.Value]:
        names = [f"{output.name}_flat" for output in node.outputs]
        if names[0] not in self._shared:
            parts = required(array_of(node.inputs[1])) * self._dim
            sizes = write.constant("split_" + "_".join(map(str, parts)), parts)
            outputs = Writer(self._graph, node).several("Split", [joined, sizes], names, attributes={"axis": -1})
            for name, output, part in zip(names, outputs, parts.tolist(), strict=True):
                output.shape, output.type = ir.Shape([None, 1, part]), joined.type
                self._shared[name] = output
        return [self._shared[name] for name in names]

    @staticmethod
    def _before_heads(split: ir.Value | None) -> ir.Value | None:
        """Return what became [B, heads, Q, D] by a Reshape and a Transpose, or None."""
        turn = split.producer() if split is not None else None
        if turn is None or turn.op_type != "Transpose" or list(turn.attributes["perm"].as_ints()) != _HEADS_FIRST:
            return None
        apart = required(turn.inputs[0]).producer()
        joined = apart.inputs[0] if apart is not None and apart.op_type == "Reshape" else None
        return joined if joined is not None and joined.shape is not None and len(joined.shape) == 3 else None

    def _last(self, write: Writer, buffer: ir.Value) -> ir.Value:
        """Return the last real position of each row of [B, H, S, D], as [B, 1, H * D]."""
        found = write("GatherND", [buffer, self._last_index()], f"{buffer.name}_last", attributes={"batch_dims": 2})
        return self._joined(write, found, self._groups, buffer.dtype)

    def _last_index(self) -> ir.Value:
        """Return [B, H, 1] int64, source length - 1."""

        def make(write: Writer) -> ir.Value:
            one = write.constant("number_1", np.array(1, np.int64))
            last = write("Sub", [self._inputs[bundle.SOURCE_LENGTHS], one], "last_source", dtype=ir.DataType.INT64)
            axes = write.constant("axes_1_2", np.array([1, 2], np.int64))
            heads = write.constant(f"sizes_1_{self._groups}_1", np.array([1, self._groups, 1], np.int64))
            return write("Expand", [write("Unsqueeze", [last, axes], "last_source_column"), heads], "last_source_index")

        return self._once("last_index", make)

    def _source_lengths(self) -> ir.Value:
        """Return [B] int32, source tokens in front of the last one."""

        def make(write: Writer) -> ir.Value:
            one = write.constant("number_1", np.array(1, np.int64))
            before = write("Sub", [self._inputs[bundle.SOURCE_LENGTHS], one], "source_before_last")
            return write("Cast", [before], "source_before_last_int32", attributes={"to": _INT32}, dtype=_INT32)

        return self._once("source_lengths", make)

    def _cache_lengths(self) -> ir.Value:
        """Return [B] int32."""

        def make(write: Writer) -> ir.Value:
            lengths = self._inputs[bundle.CACHE_LENGTHS]
            return write("Cast", [lengths], "cache_lengths_int32", attributes={"to": _INT32}, dtype=_INT32)

        return self._once("cache_lengths", make)

    def _size(self, name: str) -> ir.Value:
        """Return [1] int32, positions of a buffer; those of all layers are as many."""
        kind = name.rpartition(".")[0]

        def make(write: Writer) -> ir.Value:
            size = write("Shape", [self._inputs[name]], f"{kind}_size", attributes={"start": 2, "end": 3})
            return write("Cast", [size], f"{kind}_size_int32", attributes={"to": _INT32}, dtype=_INT32)

        return self._once(f"size_{kind}", make)

    def _once(self, key: str, make: Callable[[Writer], ir.Value]) -> ir.Value:
        """Make a value in front of everything, the first time that it is needed."""
        if key not in self._shared:
            self._shared[key] = make(Writer(self._graph, self._first))
        return self._shared[key]
