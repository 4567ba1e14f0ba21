"""The encoder-decoder Transformer ("Attention Is All You Need", figure 1).

Source, target and output share one embedding matrix (3.4). The decoder never sees encoder states,
only the cross-attention keys and values that `cross_keys_values` projects from them: that is what a
server keeps per request, computed once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dragoman.model.attention import KeyValue
from dragoman.model.config import ModelConfig
from dragoman.model.layers import Cache, DecoderLayer, EncoderLayer
from dragoman.model.masks import Mask, ValidLengths, causal_mask, padding_mask
from dragoman.model.positions import sinusoidal_positions


class Embedding(nn.Module):
    """Token embedding times sqrt(E), plus the position encoding (3.4, 3.5)."""

    positions: Tensor

    def __init__(self, config: ModelConfig) -> None:
        """Create the shared matrix [V, E] and the position table."""
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.scale = math.sqrt(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        size = max(config.max_source_tokens, config.max_target_tokens)
        # Not persistent: a formula, so it has no place in a checkpoint.
        self.register_buffer("positions", sinusoidal_positions(size, config.d_model), persistent=False)

    def forward(self, input_ids: Tensor, offsets: Tensor | None = None) -> Tensor:
        """Embed tokens.

        Args:
            input_ids: [B, T] int64.
            offsets: [B] int64, position of each row's first token; None means 0.

        Returns:
            [B, T, E] float.
        """
        positions = torch.arange(input_ids.size(1), device=input_ids.device)
        if offsets is not None:
            positions = offsets[:, None] + positions
        embedded: Tensor = self.dropout(self.tokens(input_ids) * self.scale + self.positions[positions])
        return embedded

    def project(self, states: Tensor) -> Tensor:
        """Return logits [..., V] of states [..., E] with the transposed embedding (3.4)."""
        return states @ self.tokens.weight.T


class Encoder(nn.Module):
    """A stack of encoder layers."""

    def __init__(self, config: ModelConfig) -> None:
        """Create the layers."""
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.norm = nn.LayerNorm(config.d_model) if config.norm_position == "pre" else nn.Identity()

    def forward(self, states: Tensor, mask: Mask) -> Tensor:
        """[B, S, E] -> [B, S, E]."""
        for layer in self.layers:
            states = layer(states, mask)
        result: Tensor = self.norm(states)
        return result


class Decoder(nn.Module):
    """A stack of decoder layers."""

    def __init__(self, config: ModelConfig) -> None:
        """Create the layers."""
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_decoder_layers))
        self.norm = nn.LayerNorm(config.d_model) if config.norm_position == "pre" else nn.Identity()

    def forward(
        self,
        states: Tensor,
        cross: Sequence[KeyValue],
        self_mask: Mask,
        cross_mask: Mask,
        caches: Sequence[Cache] | None = None,
    ) -> tuple[Tensor, list[KeyValue]]:
        """Run all layers; arguments and results are per layer, as in `DecoderLayer.forward`."""
        used: list[KeyValue] = []
        for index, layer in enumerate(self.layers):
            states, keys_values = layer(
                states, cross[index], self_mask, cross_mask, caches[index] if caches is not None else None
            )
            used.append(keys_values)
        return self.norm(states), used


class Transformer(nn.Module):
    """Encoder, decoder and the shared embedding."""

    def __init__(self, config: ModelConfig) -> None:
        """Create and initialise all weights from torch's global random generator."""
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        # Unit variance after the multiplication by sqrt(E), on the scale of the position encoding.
        nn.init.normal_(self.embedding.tokens.weight, std=config.d_model**-0.5)

    def encode(self, source_ids: Tensor, source_mask: Mask) -> list[KeyValue]:
        """Return the cross-attention keys and values of each decoder layer.

        Args:
            source_ids: [B, S] int64, each row ended by EOS and padded.
            source_mask: Covers the padding.

        Returns:
            One pair of [B, H, S, D] per decoder layer.
        """
        states = self.encoder(self.embedding(source_ids), source_mask)
        return [layer.cross_attention.project_key_value(states) for layer in self.decoder.layers]  # type: ignore[union-attr,operator]  # ModuleList erases the layer type

    def decode(self, target_ids: Tensor, cross: Sequence[KeyValue], source_mask: Mask) -> Tensor:
        """Run the full decoder over a target prefix, without a cache.

        Args:
            target_ids: [B, T] int64, the start token first; padding may follow.
            cross: What `encode` returned.
            source_mask: As in `encode`.

        Returns:
            States [B, T, E]; `embedding.project` makes logits of them.
        """
        self_mask = causal_mask(target_ids.size(1), target_ids.device)
        states, _ = self.decoder(self.embedding(target_ids), cross, self_mask, source_mask)
        decoded: Tensor = states
        return decoded

    def decode_step(
        self,
        input_ids: Tensor,
        cross: Sequence[KeyValue],
        source_lengths: Tensor,
        past: Sequence[KeyValue],
        cache_lengths: Tensor,
    ) -> tuple[Tensor, list[KeyValue]]:
        """Run the decoder over the newest Q tokens of rows of any age.

        Args:
            input_ids: [B, Q] int64.
            cross: What `encode` returned, S padded.
            source_lengths: [B] int64.
            past: Cache buffers [B, H, T_max, D] per layer, T_max >= cache_lengths + Q.
            cache_lengths: [B] int64, tokens already in each row's cache.

        Returns:
            States [B, Q, E], and the updated cache buffers.
        """
        valid = ValidLengths(cache_lengths + input_ids.size(1), causal=True)
        caches = [Cache(keys_values, cache_lengths) for keys_values in past]
        states = self.embedding(input_ids, cache_lengths)
        decoded, used = self.decoder(states, cross, valid, ValidLengths(source_lengths), caches)
        return decoded, used

    def forward(self, source_ids: Tensor, source_lengths: Tensor, target_ids: Tensor) -> Tensor:
        """Return decoder states [B, T, E] under teacher forcing.

        Args:
            source_ids: [B, S] int64, padded.
            source_lengths: [B] int64.
            target_ids: [B, T] int64, the target shifted right, padded.
        """
        mask = padding_mask(source_lengths, source_ids.size(1))
        return self.decode(target_ids, self.encode(source_ids, mask), mask)
