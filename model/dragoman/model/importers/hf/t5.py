"""T5, T5 v1.1 and mT5: relative positions, RMS norms, no biases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.model.config import ModelConfig
from dragoman.model.importers.hf.bart import ACTIVATIONS, settle_config
from dragoman.model.importers.hf.embeddings import take_embeddings
from dragoman.model.importers.hf.values import Values
from dragoman.model.importers.tensors import Tensors, load_weights
from dragoman.model.transformer import Transformer

FAMILIES = ("t5", "mt5")

_ATTENTION = {"q": "query", "k": "key", "v": "value", "o": "output"}
_GATED = "gated-"


def read_config(name: str, values: Values, *, max_tokens: int) -> ModelConfig:
    """Return the configuration, without what only the tensors tell.

    Args:
        name: "t5" or "mt5".
        values: Content of `config.json`.
        max_tokens: Longest source and target; relative positions have no limit of their own.

    Raises:
        ImportFailed: Names every setting that we do not support.
    """
    values.only("is_encoder_decoder", True)
    values.only("is_decoder", False)
    projection = values.get("feed_forward_proj", str, "relu" if name == "t5" else "gated-gelu")
    gated = projection.startswith(_GATED)
    # "gated-gelu" has always meant the approximation.
    activation = "gelu_new" if projection == "gated-gelu" else projection.removeprefix(_GATED)
    if activation not in ACTIVATIONS:
        values.refuse("feed_forward_proj", projection, *ACTIVATIONS, *(f"{_GATED}{a}" for a in ACTIVATIONS))
    values.only("is_gated_act", gated)
    if (said := values.get("dense_act_fn", str, activation)) != activation:
        values.refuse("dense_act_fn", said, activation)
    encoder_layers = values.count("num_layers")
    tied = values.get("tie_word_embeddings", bool, True)
    dropout = values.get("dropout_rate", float, 0.1)
    found: dict[str, Any] = {
        "vocab_size": values.count("vocab_size"),
        "d_model": values.count("d_model"),
        "d_head": values.count("d_kv"),
        "d_ff": values.count("d_ff"),
        "num_heads": values.count("num_heads"),
        "num_encoder_layers": encoder_layers,
        "num_decoder_layers": values.count("num_decoder_layers", max(encoder_layers, 1)),
        "relative_buckets": values.count("relative_attention_num_buckets", 32),
        "relative_max_distance": values.count("relative_attention_max_distance", 128),
        "norm_epsilon": values.get("layer_norm_epsilon", float, 1e-6),
        # mT5 was never trained with it, whatever its files say about tied matrices.
        "scale_output": name == "t5" and values.get("scale_decoder_outputs", bool, tied),
    }
    values.finish()
    return ModelConfig(
        **found,
        norm_position="pre",
        norm="rms",
        bias=False,
        positions="relative",
        activation=ACTIVATIONS[activation],
        gated=gated,
        dropout=dropout,
        scale_attention=False,
        scale_embedding=False,
        max_source_tokens=max_tokens,
        max_target_tokens=max_tokens,
        tied_embeddings="none",
    )


def build_model(config: ModelConfig, held: dict[str, Tensor], origin: Path) -> Transformer:
    """Return the model in evaluation mode.

    Args:
        config: What `read_config` returned.
        held: Tensors by their names in the checkpoint.
        origin: For messages.

    Raises:
        ImportFailed: Names all tensors that are missing, left over or of another shape.
    """
    tensors = Tensors(held, origin)
    # Early versions saved it, no version has ever used it.
    tensors.ignore("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight")
    tied, weights = take_embeddings(
        tensors, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight", ("shared.weight",)
    )
    for stack, layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
        for theirs, ours in _modules(stack, layers, gated=config.gated).items():
            weights[f"{stack}.{ours}.weight"] = tensors.take(f"{stack}.{theirs}.weight")
    tensors.finish()
    return load_weights(Transformer(settle_config(config, {"tied_embeddings": tied})), weights, origin)


def _modules(stack: str, layers: int, *, gated: bool) -> dict[str, str]:
    """Return our name of each module of a stack by theirs."""
    modules = {"final_layer_norm": "norm", "block.0.layer.0.SelfAttention.relative_attention_bias": "relative.weights"}
    blocks = [("SelfAttention", "self_attention")]
    if stack == "decoder":
        blocks.append(("EncDecAttention", "cross_attention"))
    expand = {"wi_0": "expand", "wi_1": "gate"} if gated else {"wi": "expand"}
    for i in range(layers):
        for place, (theirs, ours) in enumerate(blocks):
            layer = f"block.{i}.layer.{place}"
            modules |= {f"{layer}.{theirs}.{t}": f"layers.{i}.{ours}.{o}" for t, o in _ATTENTION.items()}
            modules[f"{layer}.layer_norm"] = f"layers.{i}.{ours}_sublayer.norm"
        layer = f"block.{i}.layer.{len(blocks)}"
        dense = {**expand, "wo": "contract"}
        modules |= {f"{layer}.DenseReluDense.{t}": f"layers.{i}.feed_forward.{o}" for t, o in dense.items()}
        modules[f"{layer}.layer_norm"] = f"layers.{i}.feed_forward_sublayer.norm"
    return modules
