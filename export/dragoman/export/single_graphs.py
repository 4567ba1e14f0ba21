"""Models of one stack as graphs: a language model that reads its prefix and goes on, and an encoder.

    language model   input_ids [B,Q] int64, cache_lengths [B] int64, the state of each layer
                     -> next_ids [B,Q], logits [B,Q,V], the updated state of each layer; on request
                        candidates and log_normalizer
    encoder          input_ids [B,S] int64, source_lengths [B] int64 -> states [B,S,E]

Names, states and the meaning of cache_lengths are those of `bundle`'s decoder: one graph reads a prompt (Q tokens at
once) and makes the steps behind it (Q = 1). They are files of their own; a bundle translates and has two stacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from onnxscript import ir
from torch import Tensor, nn
from torch.export import Dim

from dragoman.export import bundle
from dragoman.export.activations import largest
from dragoman.export.graphs import vocabulary_logits
from dragoman.export.half import to_half
from dragoman.export.precision import Precision, adapt
from dragoman.export.reductions import add_reductions
from dragoman.export.storage import save
from dragoman.export.to_onnx import export, shape_of
from dragoman.model.masks import ValidLengths
from dragoman.model.search import generation_bias
from dragoman.model.single_stack import DecoderOnly, EncoderOnly
from dragoman.model.transformer import flatten_states, unflatten_states
from dragoman.model.vocab import SpecialIds

STATES = "states"


class _LanguageModelGraph(nn.Module):
    """One step, or a whole prompt, for rows of any age."""

    bias: Tensor

    def __init__(self, model: DecoderOnly, special: SpecialIds) -> None:
        super().__init__()
        self.model = model
        bias = generation_bias(model.config.vocab_size, special)
        if model.output.bias is not None:
            bias = bias + model.output.bias.detach()
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, input_ids: Tensor, cache_lengths: Tensor, states: Sequence[Tensor]) -> list[Tensor]:
        past = unflatten_states(self.model.config, states)
        hidden, updated = self.model.step(input_ids, past, cache_lengths)
        logits = vocabulary_logits(self.model.output.scale(hidden), self.model.output_weight, self.bias)
        return [logits, *flatten_states(updated)]


class _EncoderGraph(nn.Module):
    """Token ids to states."""

    def __init__(self, model: EncoderOnly) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, source_lengths: Tensor) -> Tensor:
        states: Tensor = self.model(input_ids, ValidLengths(source_lengths))
        return states


def write_language_model(model: DecoderOnly, special: SpecialIds, path: Path, precision: Precision) -> list[Path]:
    """Write a decoder-only model as one graph.

    Args:
        model: In evaluation mode.
        special: Ids that are never generated.
        path: Of the file.
        precision: Of weights and products.

    Returns:
        The files written.

    Raises:
        ExportError: The model's numbers are too large for the precision.
    """
    shape = shape_of(model.config)
    layers = range(shape.num_decoder_layers)
    batch, new, cache = Dim("batch"), Dim("new"), Dim("cache")
    states = flatten_states(model.initial_state(2, 7))
    names = [name for i in layers for name in shape.state_names(i)]
    axes = {0: batch} if shape.decoder_layer == bundle.SSRU else {0: batch, 2: cache}
    graph = export(
        _LanguageModelGraph(model, special),
        (torch.full((2, 3), special.start), torch.tensor([2, 0]), states),
        inputs=[bundle.INPUT_IDS, bundle.CACHE_LENGTHS, *names],
        outputs=[bundle.LOGITS, *(name for i in layers for name in shape.updated_state_names(i))],
        shapes=({0: batch, 1: new}, {0: batch}, [axes for _ in states]),
    )
    bias = model.output.bias
    add_reductions(graph, model.config, None if bias is None else bias.detach().numpy())
    ids = _random_ids(model.config.vocab_size, model.config.max_target_tokens)
    empty = [state.numpy() for state in flatten_states(model.initial_state(*ids.shape))]
    feeds = {bundle.INPUT_IDS: ids, bundle.CACHE_LENGTHS: np.zeros(len(ids), np.int64)}
    return _write(graph, {**feeds, **dict(zip(names, empty, strict=True))}, path, precision)


def write_encoder(model: EncoderOnly, path: Path, precision: Precision) -> list[Path]:
    """Write an encoder-only model; arguments, result and errors are those of `write_language_model`."""
    batch, source = Dim("batch"), Dim("source")
    graph = export(
        _EncoderGraph(model),
        (torch.full((2, 5), 4), torch.tensor([5, 3])),
        inputs=[bundle.INPUT_IDS, bundle.SOURCE_LENGTHS],
        outputs=[STATES],
        shapes=({0: batch, 1: source}, {0: batch}),
        merge=precision != "int8",
    )
    ids = _random_ids(model.config.vocab_size, model.config.max_source_tokens)
    feeds = {bundle.INPUT_IDS: ids, bundle.SOURCE_LENGTHS: np.full(len(ids), ids.shape[1])}
    return _write(graph, feeds, path, precision)


def _write(graph: ir.Model, feeds: dict[str, np.ndarray], path: Path, precision: Precision) -> list[Path]:
    if precision == "fp16":
        to_half(graph, largest(graph, feeds)[0])
    adapt(graph, precision)
    return save(graph, path)


def _random_ids(vocab_size: int, longest: int) -> np.ndarray:
    return np.random.default_rng(0).integers(4, vocab_size, (2, longest))
