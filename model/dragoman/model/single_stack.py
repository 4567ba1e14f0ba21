"""The same blocks as one stack: decoder-only (GPT, LLaMA) and encoder-only (BERT) models."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from dragoman.model.config import ModelConfig
from dragoman.model.embedding import TokenEmbedding
from dragoman.model.layers import LayerState
from dragoman.model.masks import Mask
from dragoman.model.output import Output
from dragoman.model.stacks import Decoder, Encoder, initialise
from dragoman.model.transformer import initial_state


class _SingleStack(nn.Module):
    """One vocabulary, one embedding, tied to the output unless `tied_embeddings` is "none"."""

    def __init__(self, config: ModelConfig, stack: Encoder | Decoder) -> None:
        super().__init__()
        self.config = config
        self.stack = stack
        initialise(stack, config)
        self.embedding = TokenEmbedding(config.vocab_size, config)
        self.output = Output(config, own_weight=config.tied_embeddings == "none")

    @property
    def output_weight(self) -> Tensor:
        """[V, E], the matrix that makes logits of states."""
        return self.embedding.tokens.weight if self.output.weight is None else self.output.weight

    def project(self, states: Tensor) -> Tensor:
        """Return logits [..., V] of states [..., E]."""
        return self.output.project(states, self.output_weight)


class DecoderOnly(_SingleStack):
    """A language model: each position predicts the next token from itself and the earlier ones."""

    stack: Decoder

    def __init__(self, config: ModelConfig) -> None:
        """Create a decoder without cross-attention; the encoder's settings are not used."""
        super().__init__(config, Decoder(config, cross=False))

    def forward(self, input_ids: Tensor) -> Tensor:
        """[B, T] int64 -> states [B, T, E]; padding may follow, never precede."""
        states: Tensor = self.stack(self.embedding(input_ids))
        return states

    def step(
        self, input_ids: Tensor, past: Sequence[LayerState], cache_lengths: Tensor
    ) -> tuple[Tensor, list[LayerState]]:
        """Run over the newest Q tokens, as `Transformer.decode_step` does."""
        return self.stack.step(self.embedding(input_ids), past, cache_lengths)

    def initial_state(self, rows: int, size: int) -> list[LayerState]:
        """Return the layer states of `rows` rows that have read nothing, for up to `size` tokens."""
        return initial_state(self.config, rows, size, self.output_weight)


class EncoderOnly(_SingleStack):
    """A bidirectional encoder: a state per token, each from the whole text."""

    stack: Encoder

    def __init__(self, config: ModelConfig) -> None:
        """Create an encoder; the decoder's settings are not used."""
        super().__init__(config, Encoder(config))

    def forward(self, input_ids: Tensor, mask: Mask) -> Tensor:
        """[B, S] int64 -> states [B, S, E]; `mask` covers the padding."""
        states: Tensor = self.stack(self.embedding(input_ids), mask)
        return states
