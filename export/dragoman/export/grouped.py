"""Attention of a decode step over what a row really has, not over the length of its neighbours: for CPUs.

`Attention` (opset 24) computes over the whole buffer on the CPU and masks what lies behind a row's length, so one long
text slows every row. The contrib operator `GroupQueryAttention` reads each row up to its own length, writes the new
key and value in place, and takes its inputs without splitting heads apart.

It always appends, so attention to the source appends what is there already: the key and value of the last source
token go where they stand, and the source's buffers are outputs that never change. They come as an input of their own,
`cross_last`: to fetch them from the buffers would take 4 to 6 % of a step. A graph that was rewritten takes one new
token per call.

Keys and values with scales are 8-bit integers. The operator rounds what it appends, for the source to what stands there
but where a number lies within a rounding of the middle between two integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from onnxscript import ir

from dragoman.export import bundle
from dragoman.export.cache_scales import CacheScales
from dragoman.export.rewriting import (
    CONTRIB,
    Writer,
    array_of,
    before_heads,
    only_reader,
    remove_unused,
    required,
    take_the_place,
)
from dragoman.model.config import ModelConfig

_INT32 = ir.DataType.INT32
_BIAS = 3  # input of Attention
_ABSENT = 5  # inputs of GroupQueryAttention between the lengths and the scales
_HEAD_STEP = 8  # a head must be a multiple of it


def use_grouped_attention(decoder: ir.Model, config: ModelConfig, scales: CacheScales | None = None) -> bool:
    """Rewrite a decoder in place; with biases of positions, or heads the operator has no kernel for, it stays as it is.

    Args:
        decoder: Graph of `to_onnx`, in any precision for CPUs.
        config: Of its model.
        scales: Of the keys and values that become 8-bit integers.

    Returns:
        Whether it was rewritten, and so reads `bundle.CROSS_LAST`, which `last_source.hand_over` adds to the encoder.
    """
    nodes = [node for node in decoder.graph if node.op_type == "Attention"]
    if config.head_dim % _HEAD_STEP or any(node.inputs[_BIAS] is not None for node in nodes):
        return False
    decoder.opset_imports.setdefault(CONTRIB, 1)
    rewrite = _Rewrite(decoder.graph, config, scales or {})
    for node in nodes:
        rewrite.attention(node)
    rewrite.take_one_token()
    remove_unused(decoder)
    return True


@dataclass(frozen=True, slots=True)
class _Caches:
    """What one attention appends, and to what.

    Attributes:
        buffers: Key and value [B, H, T, D], inputs of the graph.
        new: Key and value [B, 1, H * D], to be appended.
        before: [B] int32, what each row has already.
        updated: Names of the graph's outputs.
        scatters: Nodes that wrote the buffers.
    """

    buffers: list[ir.Value]
    new: list[ir.Value]
    before: ir.Value
    updated: list[str]
    scatters: list[ir.Node]


class _Rewrite:
    """Replaces the attention nodes of one graph."""

    def __init__(self, graph: ir.Graph, config: ModelConfig, scales: CacheScales) -> None:
        self._graph, self._scales = graph, scales
        self._heads, self._groups, self._dim = config.num_heads, config.key_value_heads, config.head_dim
        self._layers = config.num_decoder_layers
        self._inputs = {str(value.name): value for value in graph.inputs}
        self._first = next(iter(graph))
        self._shared: dict[str, ir.Value] = {}

    def attention(self, node: ir.Node) -> None:
        """Replace a node, the write to its cache in front of it, and the joining of heads behind it."""
        turn = required(only_reader(node.outputs[0], "Transpose"))
        join = required(only_reader(turn.outputs[0], "Reshape"))
        write, output = Writer(self._graph, node), join.outputs[0]
        caches = self._caches(write, node)
        scales, quantised = self._scales_of(write, caches.buffers)
        query = self._flat(write, required(node.inputs[0]), self._heads)
        size = self._size(str(caches.buffers[0].name))
        attended, *updated = write.several(
            "GroupQueryAttention",
            [query, *caches.new, *caches.buffers, caches.before, size, *scales],
            [f"{output.name}_grouped", *(f"{name}_grouped" for name in caches.updated)],
            attributes={
                "num_heads": self._heads,
                "kv_num_heads": self._groups,
                "scale": node.attributes["scale"].as_float(),
                **quantised,
            },
            domain=CONTRIB,
        )
        attended.shape, attended.type = output.shape, output.type
        take_the_place([output], [attended])
        if caches.scatters:
            take_the_place([scatter.outputs[0] for scatter in caches.scatters], updated)
        else:
            for name, result in zip(caches.updated, updated, strict=True):
                result.name = name
                self._graph.outputs.append(result)
        self._graph.remove([join, turn, node, *caches.scatters], safe=True)
        for buffer, result in zip(caches.buffers, updated, strict=True):
            if scales:
                self._store_integers(buffer)
            result.shape, result.type = buffer.shape, buffer.type

    def take_one_token(self) -> None:
        """Let the graph say that it takes one new token."""
        ids = self._inputs[bundle.INPUT_IDS]
        ids.shape = ir.Shape([required(ids.shape)[0], 1])

    def _caches(self, write: Writer, node: ir.Node) -> _Caches:
        buffers = [required(value) for value in node.inputs[1:3]]
        if buffers[0].is_graph_input():
            layer = int(str(buffers[0].name).rpartition(".")[2])
            new = self._last_of_source()[2 * layer : 2 * layer + 2]
            return _Caches(buffers, new, self._source_lengths(), list(bundle.updated_cross_names(layer)), [])
        scatters = [required(buffer.producer()) for buffer in buffers]
        new = [self._flat(write, required(scatter.inputs[1]), self._groups) for scatter in scatters]
        names = [str(scatter.outputs[0].name) for scatter in scatters]
        return _Caches(
            [required(scatter.inputs[0]) for scatter in scatters], new, self._cache_lengths(), names, scatters
        )

    def _scales_of(self, write: Writer, buffers: list[ir.Value]) -> tuple[list[ir.Value | None], dict[str, str | int]]:
        """Return the last inputs and the attributes of an attention to integers; neither if it has no scales."""
        if str(buffers[0].name) not in self._scales:
            return [], {}
        scales = [self._scale(write, buffer) for buffer in buffers]
        kind = "PER_CHANNEL"
        return [None] * _ABSENT + scales, {"k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": 8}

    def _scale(self, write: Writer, buffer: ir.Value) -> ir.Value:
        """Return the scales of a buffer, [1, H, 1, D]."""
        return write.constant(f"{buffer.name}_scale", self._scales[str(buffer.name)][None, :, None])

    def _store_integers(self, buffer: ir.Value) -> None:
        """Let a buffer have integers, and multiply by their scales what alignments read of it."""
        buffer.type = ir.TensorType(ir.DataType.INT8)
        for cast in [reader for reader in buffer.consumers() if reader.op_type == "Cast"]:
            steps, branch = cast.outputs[0], required(cast.graph)
            [reader] = steps.consumers()
            write = Writer(self._graph, reader, branch=branch if isinstance(branch, ir.Graph) else None)
            values = write("Mul", [steps, self._scale(write, buffer)], f"{steps.name}_values")
            reader.replace_input_with(list(reader.inputs).index(steps), values)

    def _flat(self, write: Writer, split: ir.Value, heads: int) -> ir.Value:
        """Return [B, heads, 1, D] as [B, 1, heads * D]: from before the heads were split apart, if possible."""
        producer = split.producer()
        if producer is not None and producer.op_type == "Split":
            joined = before_heads(producer.inputs[0])
            if joined is not None:
                return self._split_flat(producer, joined)[list(producer.outputs).index(split)]
        joined = before_heads(split)
        if joined is not None:
            return joined
        width = heads * self._dim
        sizes = write.constant(f"sizes_1_{width}", np.array([-1, 1, width], np.int64))
        return write("Reshape", [split, sizes], f"{split.name}_flat", size=[None, 1, width], dtype=split.dtype)

    def _split_flat(self, node: ir.Node, joined: ir.Value) -> list[ir.Value]:
        names = [f"{output.name}_flat" for output in node.outputs]
        if names[0] not in self._shared:
            write, parts = Writer(self._graph, node), required(array_of(node.inputs[1])) * self._dim
            for name, output in zip(names, self._split(write, joined, parts, names, axis=-1), strict=True):
                self._shared[name] = output
        return [self._shared[name] for name in names]

    def _last_of_source(self) -> list[ir.Value]:
        """Return the key, value, key, value, ... of all layers at each row's last source position, [B, 1, H * D]."""
        parts = np.ones(2 * self._layers, np.int64)
        names = [f"last_{name}" for layer in range(self._layers) for name in bundle.cross_names(layer)]
        if names[0] not in self._shared:
            last, width = ir.Value(name=bundle.CROSS_LAST), self._groups * self._dim
            batch = required(self._inputs[bundle.SOURCE_LENGTHS].shape)[0]
            last.shape, last.type = ir.Shape([batch, len(parts), width]), ir.TensorType(ir.DataType.FLOAT)
            behind = self._inputs[bundle.cross_names(self._layers - 1)[1]]
            self._graph.inputs.insert(list(self._graph.inputs).index(behind) + 1, last)
            write = Writer(self._graph, self._first)
            for name, output in zip(names, self._split(write, last, parts, names, axis=1), strict=True):
                self._shared[name] = output
        return [self._shared[name] for name in names]

    @staticmethod
    def _split(write: Writer, whole: ir.Value, parts: np.ndarray, names: list[str], *, axis: int) -> list[ir.Value]:
        """Split [B, K, N] into parts of these sizes."""
        sizes = write.constant("split_" + "_".join(map(str, parts)), parts)
        outputs = list(write.several("Split", [whole, sizes], names, attributes={"axis": axis}))
        for output, part in zip(outputs, parts.tolist(), strict=True):
            size = list(required(whole.shape))
            size[axis] = part
            output.shape, output.type = ir.Shape(size), whole.type
        return outputs

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
