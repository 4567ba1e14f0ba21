"""Stacks of layers: the encoder and the decoder, each with its positions and its final norm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dragoman.model.attention import KeyValue
from dragoman.model.config import ModelConfig
from dragoman.model.dropout import Dropout
from dragoman.model.layers import DecoderLayer, EncoderLayer, LayerState, Where
from dragoman.model.masks import Mask, ValidLengths, causal_mask
from dragoman.model.norms import make_norm
from dragoman.model.positions import InputPositions, RelativeBias, token_positions


class Encoder(nn.Module):
    """Embedded source tokens to states: every position sees all others."""

    def __init__(self, config: ModelConfig) -> None:
        """Create the layers."""
        super().__init__()
        self.positions = InputPositions(config, config.max_source_tokens)
        self.embedding_norm = make_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)
        self.relative = RelativeBias(config, causal=False) if config.positions == "relative" else None
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.norm = make_norm(config) if config.has_final_norm else nn.Identity()

    def forward(self, embedded: Tensor, mask: Mask) -> Tensor:
        """[B, S, E] -> [B, S, E]; `mask` covers the padding."""
        size = embedded.size(1)
        positions = token_positions(size, None, embedded.device)
        where = Where(mask, positions, None if self.relative is None else self.relative(positions, size))
        states = self.dropout(self.embedding_norm(self.positions(embedded)))
        for layer in self.layers:
            states = layer(states, where)
        result: Tensor = self.norm(states)
        return result


class Decoder(nn.Module):
    """Embedded target tokens to states: a position sees itself, earlier ones, and the source if there is one."""

    def __init__(self, config: ModelConfig, *, cross: bool = True) -> None:
        """Create the layers.

        Args:
            config: Of the model.
            cross: Attend to a source.
        """
        super().__init__()
        self.positions = InputPositions(config, config.max_target_tokens)
        self.embedding_norm = make_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)
        relative = config.positions == "relative" and config.decoder_layer == "self-attention"
        self.relative = RelativeBias(config, causal=True) if relative else None
        self.layers = nn.ModuleList(DecoderLayer(config, cross=cross) for _ in range(config.num_decoder_layers))
        self.norm = make_norm(config) if config.has_final_norm else nn.Identity()

    def forward(
        self, embedded: Tensor, cross: Sequence[KeyValue] | None = None, cross_mask: Mask | None = None
    ) -> Tensor:
        """Run over whole targets.

        Args:
            embedded: [B, T, E].
            cross: Keys and values of the source, one pair of [B, H_kv, S, D] per layer.
            cross_mask: Covers the source padding.

        Returns:
            [B, T, E].
        """
        size = embedded.size(1)
        positions = token_positions(size, None, embedded.device)
        states, _ = self._run(
            self.positions(embedded),
            Where(causal_mask(size, embedded.device), positions, self._bias(positions, size)),
            cross,
            cross_mask,
            None,
        )
        return states

    def step(
        self,
        embedded: Tensor,
        past: Sequence[LayerState],
        cache_lengths: Tensor,
        cross: Sequence[KeyValue] | None = None,
        cross_mask: Mask | None = None,
    ) -> tuple[Tensor, list[LayerState]]:
        """Run over the newest Q tokens of rows of any age; returns states [B, Q, E] and the new layer states."""
        new = embedded.size(1)
        positions = token_positions(new, cache_lengths, embedded.device)
        bias = None
        if isinstance(past[0], KeyValue):
            bias = self._bias(positions, past[0].key.size(2))
        where = Where(ValidLengths(cache_lengths + new, causal=True), positions, bias, cache_lengths)
        return self._run(self.positions(embedded, cache_lengths), where, cross, cross_mask, past)

    def _bias(self, positions: Tensor, keys: int) -> Tensor | None:
        return None if self.relative is None else self.relative(positions, keys)

    def _run(
        self,
        states: Tensor,
        where: Where,
        cross: Sequence[KeyValue] | None,
        cross_mask: Mask | None,
        past: Sequence[LayerState] | None,
    ) -> tuple[Tensor, list[LayerState]]:
        states = self.dropout(self.embedding_norm(states))
        after: list[LayerState] = []
        for index, layer in enumerate(self.layers):
            states, state = layer(
                states,
                where,
                None if cross is None else cross[index],
                cross_mask,
                None if past is None else past[index],
            )
            after.append(state)
        return self.norm(states), after


def initialise(module: Encoder | Decoder, config: ModelConfig) -> None:
    """Draw all matrices of a stack from Xavier's uniform distribution, biases from torch's defaults.

    Learned positions begin on the scale of the embedded tokens they are added to: 50 times smaller, as
    BERT has them beside tokens that are just as small, they would not be heard.
    """
    for name, parameter in module.named_parameters():
        if parameter.dim() > 1 and not name.startswith(("relative.", "positions.")):
            torch.nn.init.xavier_uniform_(parameter)
    if config.positions == "learned":
        scale = 1.0 if config.scale_embedding else config.d_model**-0.5
        torch.nn.init.normal_(module.positions.learned.weight, std=scale)
