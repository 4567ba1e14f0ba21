"""Torch modules to ONNX, opset 24: the in-place cache operators, names and dynamic axes.

The exporter must not bake the example's sizes in, so examples have batch 2 and unequal lengths, and
every size that may change is declared. The custom operators of `dragoman.model.cache_ops` become one
standard operator each: TensorScatter writes the cache where it lies, Attention reads the valid part.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from onnxscript import ir
from onnxscript.onnx_opset import opset24 as op
from torch import nn
from torch.export import Dim

from dragoman.export import bundle
from dragoman.export.bundle import Shape
from dragoman.export.graphs import DecoderGraph, EncoderGraph
from dragoman.export.optimize import optimize
from dragoman.model.config import ModelConfig
from dragoman.model.transformer import Transformer, flatten_states
from dragoman.model.vocab import SpecialIds

OPSET = 24


def _cache_write(cache: Any, update: Any, cache_lengths: Any) -> Any:
    return op.TensorScatter(cache, update, cache_lengths, axis=-2, mode="linear")


def _attend_valid(query: Any, key: Any, value: Any, lengths: Any, causal: bool, bias: Any, scale: float) -> Any:
    return op.Attention(query, key, value, bias, None, None, lengths, is_causal=int(causal), scale=scale)[0]


def _log_sigmoid(gate: Any) -> Any:
    # The exporter's own Log(Sigmoid(x)) is -inf below x = -17 in ONNX Runtime, and the difference of two of them NaN.
    return op.Neg(op.Softplus(op.Neg(gate)))


def _vocabulary_logits(states: Any, table: Any, bias: Any) -> Any:
    # Gemm multiplies with the transposed table where it lies, so that a tied one is stored once.
    vocab_size, width = table.shape
    rows: Any = op.Constant(value_ints=[-1, width])
    last: Any = op.Constant(value_ints=[vocab_size])
    flat = op.Gemm(op.Reshape(states, rows), table, bias, transB=1)
    return op.Reshape(flat, op.Concat(op.Shape(states, start=0, end=2), last, axis=0))


_TRANSLATIONS: dict[Any, Any] = {
    torch.ops.aten.log_sigmoid.default: _log_sigmoid,
    torch.ops.dragoman.cache_write.default: _cache_write,
    torch.ops.dragoman.attend_valid.default: _attend_valid,
    torch.ops.dragoman.vocabulary_logits.default: _vocabulary_logits,
}


def shape_of(config: ModelConfig) -> Shape:
    """Return the sizes that the manifest states."""
    return Shape(
        config.vocab_size,
        config.key_value_heads,
        config.head_dim,
        config.num_decoder_layers,
        config.decoder_layer,
        config.d_model if config.decoder_layer == bundle.SSRU else 0,
    )


def encoder_graph(model: Transformer, *, merge: bool = True) -> ir.Model:
    """Return the encoder in fp32; names and shapes in `bundle`.

    Args:
        model: In evaluation mode.
        merge: Merge products that read the same activation.
    """
    layers = range(model.config.num_decoder_layers)
    batch, source = Dim("batch"), Dim("source")
    return export(
        EncoderGraph(model),
        (torch.full((2, 5), 4), torch.tensor([5, 3])),
        inputs=[bundle.INPUT_IDS, bundle.SOURCE_LENGTHS],
        outputs=[name for i in layers for name in bundle.cross_names(i)],
        shapes=({0: batch, 1: source}, {0: batch}),
        merge=merge,
    )


def decoder_graph(model: Transformer, special: SpecialIds) -> ir.Model:
    """Return the decoder in fp32, without what `reductions` adds; names and shapes in `bundle`."""
    shape = shape_of(model.config)
    layers = range(shape.num_decoder_layers)
    batch, new, source, cache = Dim("batch"), Dim("new"), Dim("source"), Dim("cache")
    states = flatten_states(model.initial_state(2, 7))
    cross = [torch.zeros(2, shape.num_heads, 5, shape.head_dim) for _ in layers for _ in range(2)]
    return export(
        DecoderGraph(model, special),
        (
            torch.full((2, 3), special.start),  # a size of 1 would be baked in
            torch.tensor([5, 3]),
            torch.tensor([2, 0]),
            states,
            cross,
        ),
        inputs=[
            bundle.INPUT_IDS,
            bundle.SOURCE_LENGTHS,
            bundle.CACHE_LENGTHS,
            *(name for i in layers for name in shape.state_names(i)),
            *(name for i in layers for name in bundle.cross_names(i)),
        ],
        outputs=[
            bundle.LOGITS,
            *(name for i in layers for name in shape.updated_state_names(i)),
        ],
        shapes=(
            {0: batch, 1: new},
            {0: batch},
            {0: batch},
            [{0: batch} if shape.decoder_layer == bundle.SSRU else {0: batch, 2: cache} for _ in states],
            [{0: batch, 2: source} for _ in cross],
        ),
    )


def export(
    module: nn.Module,
    example: tuple[Any, ...],
    *,
    inputs: list[str],
    outputs: list[str],
    shapes: tuple[Any, ...],
    merge: bool = True,
) -> ir.Model:
    """Return an optimised graph of a module.

    Args:
        module: Takes and returns tensors, or lists of them.
        example: Arguments; sizes of 1 and equal ones would be baked in.
        inputs: Names, lists laid flat.
        outputs: Names, likewise.
        shapes: Of each argument, the axes that may change.
        merge: Merge products that read the same activation.
    """
    # It reports missing torchvision operators, which no model of ours has.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporter warns about its own internals
        program = torch.onnx.export(
            module.eval(),
            example,
            dynamo=True,
            opset_version=OPSET,
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes=shapes,
            custom_translation_table=_TRANSLATIONS,
            optimize=True,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("the exporter returned nothing")
    _drop_unused_outputs(program.model)
    optimize(program.model, merge=merge)
    return program.model


def _drop_unused_outputs(model: ir.Model) -> None:
    """Cut Attention's optional outputs, which the runtime would otherwise compute."""
    for node in model.graph:
        if node.op_type != "Attention":
            continue
        while len(node.outputs) > 1 and not node.outputs[-1].uses():
            node.resize_outputs(len(node.outputs) - 1)
