"""The encoder-decoder Transformer ("Attention Is All You Need", figure 1).

The decoder never sees encoder states, only the cross-attention keys and values that `encode`
projects from them: that is what a server keeps per request, computed once.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from dragoman.model.attention import KeyValue
from dragoman.model.config import ModelConfig
from dragoman.model.embedding import TokenEmbedding
from dragoman.model.layers import Cell, LayerState
from dragoman.model.masks import Mask, ValidLengths, padding_mask
from dragoman.model.output import Output
from dragoman.model.stacks import Decoder, Encoder, initialise


class Transformer(nn.Module):
    """Encoder, decoder, and the embeddings that they share or not."""

    def __init__(self, config: ModelConfig) -> None:
        """Create and initialise all weights from torch's global random generator."""
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        initialise(self.encoder, config)
        initialise(self.decoder, config)
        tied = config.tied_embeddings
        self.embedding = TokenEmbedding(config.source_vocab_size or config.vocab_size, config)
        # A matrix that is shared is registered once, so that a checkpoint holds it once.
        own_target = tied not in ("all", "source-target")
        self.target_embedding = TokenEmbedding(config.vocab_size, config) if own_target else None
        self.output = Output(config, own_weight=tied in ("source-target", "none"))

    @property
    def output_weight(self) -> Tensor:
        """[V, E], the matrix that makes logits of states."""
        if self.output.weight is not None:
            return self.output.weight
        shared = self.embedding if self.config.tied_embeddings == "source-output" else self.target_table
        return shared.tokens.weight

    @property
    def output_bias(self) -> Tensor | None:
        """[V] added to the logits, or None."""
        return self.output.bias

    @property
    def target_table(self) -> TokenEmbedding:
        """The embedding of target tokens."""
        return self.embedding if self.target_embedding is None else self.target_embedding

    def project(self, states: Tensor) -> Tensor:
        """Return logits [..., V] of decoder states [..., E]."""
        return self.output.project(states, self.output_weight)

    def encode(self, source_ids: Tensor, source_mask: Mask) -> list[KeyValue]:
        """Return the cross-attention keys and values of each decoder layer.

        Args:
            source_ids: [B, S] int64, each row ended by EOS and padded.
            source_mask: Covers the padding.

        Returns:
            One pair of [B, H_kv, S, D] per decoder layer.
        """
        states = self.encoder(self.embedding(source_ids), source_mask)
        return [layer.cross_attention.project_key_value(states) for layer in self.decoder.layers]  # type: ignore[union-attr,operator]  # ModuleList erases the layer type

    def decode(self, target_ids: Tensor, cross: Sequence[KeyValue], source_mask: Mask) -> Tensor:
        """Run the full decoder over a target prefix, without a state.

        Args:
            target_ids: [B, T] int64, the start token first; padding may follow.
            cross: What `encode` returned.
            source_mask: As in `encode`.

        Returns:
            States [B, T, E]; `project` makes logits of them.
        """
        states: Tensor = self.decoder(self.target_table(target_ids), cross, source_mask)
        return states

    def decode_step(
        self,
        input_ids: Tensor,
        cross: Sequence[KeyValue],
        source_lengths: Tensor,
        past: Sequence[LayerState],
        cache_lengths: Tensor,
    ) -> tuple[Tensor, list[LayerState]]:
        """Run the decoder over the newest Q tokens of rows of any age.

        Args:
            input_ids: [B, Q] int64.
            cross: What `encode` returned, S padded.
            source_lengths: [B] int64.
            past: Per layer: buffers [B, H_kv, T_max, D] with T_max >= cache_lengths + Q, or a
                recurrent layer's cell [B, E]. `initial_state` makes them.
            cache_lengths: [B] int64, tokens that each row has read already.

        Returns:
            States [B, Q, E], and the layer states after these tokens.
        """
        return self.decoder.step(self.target_table(input_ids), past, cache_lengths, cross, ValidLengths(source_lengths))

    def initial_state(self, rows: int, size: int) -> list[LayerState]:
        """Return the layer states of `rows` rows that have read nothing, for up to `size` tokens."""
        return initial_state(self.config, rows, size, self.output_weight)

    def forward(self, source_ids: Tensor, source_lengths: Tensor, target_ids: Tensor) -> Tensor:
        """Return decoder states [B, T, E] under teacher forcing.

        Args:
            source_ids: [B, S] int64, padded.
            source_lengths: [B] int64.
            target_ids: [B, T] int64, the target shifted right, padded.
        """
        mask = padding_mask(source_lengths, source_ids.size(1))
        return self.decode(target_ids, self.encode(source_ids, mask), mask)


def initial_state(config: ModelConfig, rows: int, size: int, like: Tensor) -> list[LayerState]:
    """Return one empty state per decoder layer, with dtype and device of `like`."""
    layers = range(config.num_decoder_layers)
    if config.decoder_layer == "ssru":
        return [Cell(like.new_zeros(rows, config.d_model)) for _ in layers]
    shape = (rows, config.key_value_heads, size, config.head_dim)
    return [KeyValue(like.new_zeros(shape), like.new_zeros(shape)) for _ in layers]


def flatten_states(states: Sequence[LayerState]) -> list[Tensor]:
    """Return all tensors of the layer states in order."""
    return [tensor for state in states for tensor in state]


def unflatten_states(config: ModelConfig, tensors: Sequence[Tensor]) -> list[LayerState]:
    """Turn what `flatten_states` returned back into layer states."""
    if config.decoder_layer == "ssru":
        return [Cell(tensor) for tensor in tensors]
    return [KeyValue(key, value) for key, value in zip(tensors[::2], tensors[1::2], strict=True)]


def count_parameters(module: nn.Module) -> int:
    """Return the number of weights, shared ones once."""
    return sum(parameter.numel() for parameter in module.parameters())
