"""Shape of a Transformer: one frozen dataclass, saved as JSON.

Standard library only, so that export and tests can read a configuration without torch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from dragoman.model.settings import build, raise_all, wrong_types


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of one Transformer.

    Attributes:
        vocab_size: V, of the target, and of the source unless `source_vocab_size` says otherwise.
        d_model: E, width of the residual stream.
        d_ff: F, width of the feed-forward layer.
        num_heads: H, heads of queries.
        num_encoder_layers: Depth of the encoder; not used by a decoder-only model.
        num_decoder_layers: Depth of the decoder; its cost is paid once per generated token. Not
            used by an encoder-only model.
        norm_position: "post" is the paper's Norm(x + f(x)); "pre" is x + f(Norm(x)) with a final
            norm, which trains without care about warm-up.
        dropout: On sublayer outputs and embedded tokens.
        max_source_tokens: Longest source the positions cover, EOS included.
        max_target_tokens: Longest target the positions cover, EOS included.
        source_vocab_size: Of a source vocabulary of its own; 0 means the shared one.
        num_key_value_heads: Heads of keys and values, a divisor of `num_heads` (grouped-query
            attention); 0 means as many as of queries.
        d_head: D, width of a head; 0 means d_model / num_heads.
        positions: "sinusoidal" (interleaved, as in the paper), "sinusoidal-half" (sines in the first
            half of the columns, as Marian and fairseq have it), "sinusoidal-half-paper" (likewise with the
            paper's rates, as Hugging Face's Marian has it), "learned", "rotary", "relative" (T5's bias per
            distance), "none".
        first_position: Where the sinusoidal formulas start to count; fairseq begins behind the id of its padding.
        embedding_norm: A norm on the embedded tokens behind their positions, one for each stack (BART).
        relative_buckets: Number of distances that "relative" tells apart.
        relative_max_distance: From here on all distances share the last bucket.
        activation: Of the feed-forward layer.
        gated: Multiply the activation by a second projection (GLU, SwiGLU, ...).
        norm: "layer" subtracts the mean, "rms" does not.
        norm_epsilon: Added to the variance.
        final_norm: A norm behind the last layer; None means only with norm_position "pre".
        bias: Projections and layer norms have a bias.
        scale_attention: Divide scores by sqrt(D); T5 does not.
        scale_embedding: Multiply embedded tokens by sqrt(E) (paper, 3.4).
        tied_embeddings: Which of the source, target and output matrices are one.
        output_bias: Add a vector [V] of its own to the logits.
        scale_output: Multiply states by 1 / sqrt(E) before the output matrix (T5's tied form).
        decoder_layer: "self-attention", or "ssru", a recurrent cell with a state of constant size.
        attention_dropout: On attention weights; None means as `dropout`.
        feed_forward_dropout: On feed-forward activations; None means as `dropout`.
    """

    vocab_size: int
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    norm_position: Literal["pre", "post"] = "pre"
    dropout: float = 0.1
    max_source_tokens: int = 256
    max_target_tokens: int = 256
    source_vocab_size: int = 0
    num_key_value_heads: int = 0
    d_head: int = 0
    positions: Literal[
        "sinusoidal", "sinusoidal-half", "sinusoidal-half-paper", "learned", "rotary", "relative", "none"
    ] = "sinusoidal"
    first_position: int = 0
    embedding_norm: bool = False
    relative_buckets: int = 32
    relative_max_distance: int = 128
    activation: Literal["relu", "gelu", "gelu-tanh", "silu"] = "relu"
    gated: bool = False
    norm: Literal["layer", "rms"] = "layer"
    norm_epsilon: float = 1e-5
    final_norm: bool | None = None
    bias: bool = True
    scale_attention: bool = True
    scale_embedding: bool = True
    tied_embeddings: Literal["all", "source-target", "target-output", "source-output", "none"] = "all"
    output_bias: bool = False
    scale_output: bool = False
    decoder_layer: Literal["self-attention", "ssru"] = "self-attention"
    attention_dropout: float | None = None
    feed_forward_dropout: float | None = None

    def __post_init__(self) -> None:
        """Check the values together.

        Raises:
            ConfigError: Names every wrong setting.
        """
        raise_all("model", wrong_types(self))
        problems = [
            f"{name} is {getattr(self, name)}; it must be at least 1"
            for name in (
                "d_model", "d_ff", "num_heads", "num_encoder_layers", "num_decoder_layers",
                "max_source_tokens", "max_target_tokens", "relative_buckets", "relative_max_distance",
            )
            if getattr(self, name) < 1
        ]  # fmt: skip
        problems += [
            f"{name} is {getattr(self, name)}; it must not be negative"
            for name in ("source_vocab_size", "num_key_value_heads", "d_head", "first_position")
            if getattr(self, name) < 0
        ]
        sizes_fit = not problems
        problems += [
            f"{name} is {value}; it must be in [0, 1)"
            for name in ("dropout", "attention_dropout", "feed_forward_dropout")
            if (value := getattr(self, name)) is not None and not 0.0 <= value < 1.0
        ]
        problems += self._conflicts() if sizes_fit else []
        raise_all("model", problems)

    def _conflicts(self) -> list[str]:
        """Return what is wrong with settings that are right on their own."""
        problems = []
        if self.vocab_size < 5:
            problems.append(f"vocab_size is {self.vocab_size}; the four special tokens need 5 or more")
        if not self.d_head and self.d_model % self.num_heads:
            problems.append(
                f"d_model {self.d_model} is not a multiple of num_heads {self.num_heads}; set d_head if that is meant"
            )
        if self.num_key_value_heads and self.num_heads % self.num_key_value_heads:
            problems.append(
                f"num_heads {self.num_heads} is not a multiple of num_key_value_heads {self.num_key_value_heads}"
            )
        if self.positions.startswith("sinusoidal") and self.d_model % 2:
            problems.append(f"d_model is {self.d_model}; sinusoidal positions need an even number")
        if self.first_position and not self.positions.startswith("sinusoidal"):
            problems.append(f"first_position is {self.first_position}; positions {self.positions!r} have no use for it")
        if self.positions == "rotary" and self.head_dim % 2:
            problems.append(f"the width of a head is {self.head_dim}; rotary positions need an even number")
        if self.positions == "relative" and self.relative_max_distance <= self.relative_buckets // 2:
            problems.append(
                f"relative_max_distance is {self.relative_max_distance}; it must exceed half the "
                f"{self.relative_buckets} relative_buckets"
            )
        if self.positions == "relative" and self.relative_buckets < 4:
            problems.append(f"relative_buckets is {self.relative_buckets}; it must be at least 4")
        if self.norm_epsilon <= 0:
            problems.append(f"norm_epsilon is {self.norm_epsilon}; it must be greater than 0")
        separate = self.source_vocab_size not in (0, self.vocab_size)
        if separate and self.tied_embeddings in ("all", "source-target", "source-output"):
            problems.append(
                f"tied_embeddings is {self.tied_embeddings!r}, but the source has {self.source_vocab_size} tokens and "
                f"the target {self.vocab_size}; choose 'target-output' or 'none'"
            )
        return problems

    @property
    def head_dim(self) -> int:
        """D, width of one attention head."""
        return self.d_head or self.d_model // self.num_heads

    @property
    def key_value_heads(self) -> int:
        """H_kv, heads of keys and values."""
        return self.num_key_value_heads or self.num_heads

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm follows the last layer."""
        return self.norm_position == "pre" if self.final_norm is None else self.final_norm

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelConfig:
        """Read what `to_dict` wrote; an unknown key is an error."""
        return build(cls, "model", values)
