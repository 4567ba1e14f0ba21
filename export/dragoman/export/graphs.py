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
    output_weight: Tensor

    def __init__(self, model: Transformer, special: SpecialIds) -> None:
        """Wrap `model`; weights are shared."""
        super().__init__()
        self.model = model
        # Transposed here, not in the graph: only a matrix product with a constant can be quantised.
        output_weight = model.output_weight.detach().T.contiguous()
        bias = generation_bias(model.config.vocab_size, special)
        if model.output_bias is not None:
            bias = bias + model.output_bias.detach()
        self.register_buffer("output_weight", output_weight, persistent=False)
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
            next_ids [B, Q], logits [B, Q, V] (-inf for ids that are never generated), then the
            updated states in the order of `states`.
        """
        past = unflatten_states(self.model.config, states)
        hidden, updated = self.model.decode_step(input_ids, pair_up(cross), source_lengths, past, cache_lengths)
        logits = self.model.output.scale(hidden) @ self.output_weight + self.bias
        return [torch.argmax(logits, dim=-1), logits, *flatten_states(updated)]


def pair_up(tensors: Sequence[Tensor]) -> list[KeyValue]:
    """Turn key, value, key, value, ... into pairs."""
    return [KeyValue(key, value) for key, value in zip(tensors[::2], tensors[1::2], strict=True)]
