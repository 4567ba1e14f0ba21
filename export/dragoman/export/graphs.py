"""The two graphs as torch modules with flat tensor arguments, ready for the exporter."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dragoman.model.attention import KeyValue
from dragoman.model.masks import ValidLengths
from dragoman.model.search import generation_bias
from dragoman.model.transformer import Transformer, flatten_states, unflatten_states
from dragoman.model.vocab import SpecialIds


class EncoderGraph(nn.Module):
    """Source tokens to the cross-attention keys and values of every decoder layer."""

    def __init__(self, model: Transformer) -> None:
        """Wrap `model`; weights are shared."""
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, source_lengths: Tensor) -> list[Tensor]:
        """Return key, value, key, value, ... in layer order; shapes in `bundle`."""
        cross = self.model.encode(input_ids, ValidLengths(source_lengths))
        return [tensor for keys_values in cross for tensor in keys_values]


class DecoderGraph(nn.Module):
    """One decode step for rows of any age."""

    bias: Tensor

    def __init__(self, model: Transformer, special: SpecialIds) -> None:
        """Wrap `model`; weights are shared."""
        super().__init__()
        self.model = model
        bias = generation_bias(model.config.vocab_size, special)
        if model.output_bias is not None:
            bias = bias + model.output_bias.detach()
        self.register_buffer("bias", bias, persistent=False)

    def forward(
        self,
        input_ids: Tensor,
        source_lengths: Tensor,
        cache_lengths: Tensor,
        states: Sequence[Tensor],
        cross: Sequence[Tensor],
    ) -> list[Tensor]:
        """Run one step.

        Args:
            input_ids: [B, Q] int64.
            source_lengths: [B] int64.
            cache_lengths: [B] int64.
            states: Tensors of the layer states in the order of `bundle.Shape.state_names`.
            cross: Key, value, key, value, ... [B, H, S, D].

        Returns:
            logits [B, Q, V] (-inf for ids that are never generated), then the updated states in the
            order of `states`.
        """
        past = unflatten_states(self.model.config, states)
        hidden, updated = self.model.decode_step(input_ids, pair_up(cross), source_lengths, past, cache_lengths)
        logits = vocabulary_logits(self.model.output.scale(hidden), self.model.output_weight, self.bias)
        return [logits, *flatten_states(updated)]


@torch.library.custom_op("dragoman::vocabulary_logits", mutates_args=())
def vocabulary_logits(states: Tensor, table: Tensor, bias: Tensor) -> Tensor:
    """Return states [B, Q, E] times table [V, E] transposed, plus bias [V].

    An operator of its own, because the exporter would otherwise store the table a second time, transposed.
    """
    return torch.nn.functional.linear(states, table, bias)


@vocabulary_logits.register_fake
def _(states: Tensor, table: Tensor, bias: Tensor) -> Tensor:  # noqa: ARG001  # the operator's signature
    return states.new_empty(*states.shape[:-1], table.size(0))


def pair_up(tensors: Sequence[Tensor]) -> list[KeyValue]:
    """Turn key, value, key, value, ... into pairs."""
    return [KeyValue(key, value) for key, value in zip(tensors[::2], tensors[1::2], strict=True)]
