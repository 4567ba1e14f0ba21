"""MarianMT, M2M100 and NLLB, BART, mBART: one layout of tensors, four ways to norm and to count positions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from dragoman.model.config import ModelConfig
from dragoman.model.errors import ImportFailed
from dragoman.model.importers.hf.embeddings import take_embeddings
from dragoman.model.importers.hf.values import Values
from dragoman.model.importers.tensors import Tensors, load_weights
from dragoman.model.positions import sinusoidal_positions
from dragoman.model.transformer import Transformer

Activation = Literal["relu", "gelu", "gelu-tanh", "silu"]
ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
}
_ATTENTION = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
_ENCODER_LAYER = {
    **{f"self_attn.{theirs}": f"self_attention.{ours}" for theirs, ours in _ATTENTION.items()},
    "self_attn_layer_norm": "self_attention_sublayer.norm",
    "fc1": "feed_forward.expand",
    "fc2": "feed_forward.contract",
    "final_layer_norm": "feed_forward_sublayer.norm",
}
_DECODER_LAYER = {
    **_ENCODER_LAYER,
    **{f"encoder_attn.{theirs}": f"cross_attention.{ours}" for theirs, ours in _ATTENTION.items()},
    "encoder_attn_layer_norm": "cross_attention_sublayer.norm",
}
# Rows of the learned positions in front of the first token's.
_OFFSET = 2


@dataclass(frozen=True, slots=True)
class Family:
    """In what the families differ.

    Attributes:
        norm_position: Of every layer.
        positions: Kind.
        embedding_norm: Embedded tokens are normed.
        activation: Default.
        scale_embedding: Default.
    """

    norm_position: Literal["pre", "post"]
    positions: Literal["learned", "sinusoidal-half", "sinusoidal-half-paper"]
    embedding_norm: bool
    activation: str
    scale_embedding: bool


FAMILIES = {
    "marian": Family("post", "sinusoidal-half-paper", embedding_norm=False, activation="gelu", scale_embedding=False),
    "m2m_100": Family("pre", "sinusoidal-half", embedding_norm=False, activation="relu", scale_embedding=True),
    "bart": Family("post", "learned", embedding_norm=True, activation="gelu", scale_embedding=False),
    "mbart": Family("pre", "learned", embedding_norm=True, activation="gelu", scale_embedding=False),
}


def read_config(name: str, values: Values, *, max_tokens: int, pad: int) -> ModelConfig:
    """Return the configuration, without what only the tensors tell.

    Args:
        name: Of the family.
        values: Content of `config.json`.
        max_tokens: Longest source and target.
        pad: Id of the padding, behind which fairseq's positions begin.

    Raises:
        ImportFailed: Names every setting that we do not support.
    """
    family = FAMILIES[name]
    learned = family.positions == "learned"
    values.only("is_encoder_decoder", True)
    values.only("is_decoder", False)
    # Of early checkpoints: what the family does anyway, or something else.
    values.only("normalize_before", family.norm_position == "pre")
    values.only("add_final_layer_norm", family.norm_position == "pre")
    values.only("normalize_embedding", family.embedding_norm)
    values.only("static_position_embeddings", not learned)
    values.only("do_blenderbot_90_layernorm", False)
    own_source = name == "marian" and not values.get("share_encoder_decoder_embeddings", bool, True)
    source_size = values.count("vocab_size")
    dropout = values.get("dropout", float, 0.1)
    found: dict[str, Any] = {
        "vocab_size": values.count("decoder_vocab_size", source_size) if own_source else source_size,
        "source_vocab_size": source_size if own_source else 0,
        "d_model": values.count("d_model"),
        "d_ff": values.same("encoder_ffn_dim", "decoder_ffn_dim"),
        "num_heads": values.same("encoder_attention_heads", "decoder_attention_heads"),
        "num_encoder_layers": values.count("encoder_layers"),
        "num_decoder_layers": values.count("decoder_layers"),
        "activation": values.choice("activation_function", ACTIVATIONS, family.activation),
        "scale_embedding": values.get("scale_embedding", bool, family.scale_embedding),
        "attention_dropout": values.get("attention_dropout", float, 0.0),
        "feed_forward_dropout": values.get("activation_dropout", float, 0.0),
    }
    values.finish()
    return ModelConfig(
        **found,
        norm_position=family.norm_position,
        positions=family.positions,
        first_position=pad + 1 if name == "m2m_100" else 0,
        embedding_norm=family.embedding_norm,
        dropout=dropout,
        max_source_tokens=max_tokens,
        max_target_tokens=max_tokens,
        tied_embeddings="none",
    )


def settle_config(config: ModelConfig, changes: dict[str, object]) -> ModelConfig:
    """Return the configuration with what the tensors told."""
    return ModelConfig.from_dict({**config.to_dict(), **changes})


def build_model(config: ModelConfig, held: dict[str, Tensor], origin: Path, *, tied_output: bool) -> Transformer:
    """Return the model in evaluation mode.

    Args:
        config: What `read_config` returned.
        held: Tensors by their names in the checkpoint.
        origin: For messages.
        tied_output: An output matrix that is missing is the target's.

    Raises:
        ImportFailed: Names all tensors that are missing, left over or of another shape.
    """
    if not any(name.startswith("model.") for name in held):  # saved without its head: BartModel
        held = {name if name == "lm_head.weight" else f"model.{name}": tensor for name, tensor in held.items()}
    tensors = Tensors(held, origin)
    tensors.ignore("model.*coder.version", "model.*coder.embed_positions._float_tensor")
    if config.positions == "sinusoidal-half":
        tensors.ignore("model.*coder.embed_positions.weights")
    own = bool(config.source_vocab_size)
    tied, weights = take_embeddings(
        tensors,
        "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
        "lm_head.weight",
        () if own else ("model.shared.weight",),
        lend_output=tied_output,
    )
    changes: dict[str, object] = {"tied_embeddings": tied}
    if "final_logits_bias" in tensors:
        bias = tensors.take("final_logits_bias", torch.flatten)
        if bias.any():
            weights["output.bias"] = bias
            changes["output_bias"] = True
    for stack, layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
        weights |= _stack(tensors, config, stack, layers, origin)
    tensors.finish()
    return load_weights(Transformer(settle_config(config, changes)), weights, origin)


def _stack(tensors: Tensors, config: ModelConfig, stack: str, layers: int, origin: Path) -> dict[str, Tensor]:
    modules = {
        f"layers.{i}.{theirs}": f"layers.{i}.{ours}"
        for i in range(layers)
        for theirs, ours in (_ENCODER_LAYER if stack == "encoder" else _DECODER_LAYER).items()
    }
    if config.embedding_norm:
        modules["layernorm_embedding"] = "embedding_norm"
    if config.norm_position == "pre":
        modules["layer_norm"] = "norm"
    weights = {
        f"{stack}.{ours}.{part}": tensors.take(f"model.{stack}.{theirs}.{part}")
        for theirs, ours in modules.items()
        for part in ("weight", "bias")
    }
    positions = f"model.{stack}.embed_positions.weight"
    if config.positions == "learned":
        size = config.max_source_tokens if stack == "encoder" else config.max_target_tokens
        weights[f"{stack}.positions.learned.weight"] = tensors.take(positions, lambda t: t[_OFFSET : _OFFSET + size])
    elif positions in tensors:  # a formula that early versions saved as if it had been trained
        _check_formula(tensors.take(positions), f"{origin}: {positions}")
    return weights


def _check_formula(table: Tensor, what: str) -> None:
    if table.dim() != 2 or table.size(1) % 2:
        raise ImportFailed(f"{what} is {list(table.shape)}; positions are two axes, the second even")
    expected = sinusoidal_positions(table.size(0), table.size(1), "sinusoidal-half-paper")
    furthest = float((table - expected).abs().max())
    if furthest > 2e-3:  # half precision rounds by less
        raise ImportFailed(f"{what} is {furthest:.2g} away from the formula; trained positions are not supported here")
