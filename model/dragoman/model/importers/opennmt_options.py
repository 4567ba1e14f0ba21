"""What the options of an OpenNMT-py checkpoint say about its computation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from dragoman.model.importers.foreign_options import ForeignOptions

# Values under which OpenNMT-py computes what we compute.
_ALLOWED: dict[str, tuple[Any, ...]] = {
    "model_type": ("text",),
    "model_task": ("seq2seq",),
    "encoder_type": ("transformer",),
    "decoder_type": ("transformer",),
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "max_relative_positions": (0, -1),
    "relative_positions_buckets": (0,),
    "rotary_theta": (0, 10000),
    "parallel_residual": (False,),
    "shared_layer_norm": (False,),
    "num_experts": (0,),
    "sliding_window": (0,),
    "copy_attn": (False,),
    "generator_function": ("softmax",),
    "n_src_feats": (0,),
    "lora_layers": ([],),
    "lora_embedding": (False,),
    "quant_layers": ([],),
}
_NORMS = {"standard": "layer", "rms": "rms"}
_FORMULAS = {"SinusoidalInterleaved": "sinusoidal", "SinusoidalConcat": "sinusoidal-half"}
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "gated-gelu": "gelu"}
_GATED = ("silu", "gated-gelu")


def read_shape(options: ForeignOptions, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return settings of our model; what we cannot follow becomes a problem of `options`.

    Args:
        options: Of the checkpoint.
        tensors: By name: older versions have no options for which biases there are.
    """
    options.require(_ALLOWED)
    both = options.number("layers", 0) if options.get("layers", -1) > 0 else 0
    # Until version 2 it was called "rnn".
    widths = [options.get(name, -1) for name in ("hidden_size", "rnn_size", "enc_hid_size", "enc_rnn_size")]
    width = next((value for value in widths if isinstance(value, int) and value > 0), 500)
    heads = options.number("heads", 8)
    rotary = options.get("max_relative_positions", 0) == -1
    if rotary and heads and width % heads == 0:
        options.require({"rotary_dim": (0, width // heads)})
    gates = options.get("pos_ffn_activation_fn", "relu")
    formula = options.choice("position_encoding_type", "SinusoidalInterleaved", _FORMULAS)
    absolute = bool(options.get("position_encoding", False))
    return {
        "d_model": width,
        "d_ff": options.number("transformer_ff", 2048),
        "num_heads": heads,
        "num_key_value_heads": options.number("num_kv", 0) or int(bool(options.get("multiquery", False))),
        "num_encoder_layers": both or options.number("enc_layers", 2),
        "num_decoder_layers": both or options.number("dec_layers", 2),
        "norm_position": "pre",
        "norm": options.choice("layer_norm", "standard", _NORMS),
        "norm_epsilon": float(options.get("norm_eps", 1e-6)),
        "positions": "rotary" if rotary else formula if absolute else "none",
        # The table of positions is what scales the embeddings.
        "scale_embedding": absolute,
        "activation": options.choice("pos_ffn_activation_fn", "relu", _ACTIVATIONS),
        "gated": gates in _GATED and "encoder.transformer.0.feed_forward.w_3.weight" in tensors,
        "dropout": 0.0,
        "output_bias": True,
    }


def interleaved(options: ForeignOptions) -> bool:
    """Whether rotary positions turn neighbouring columns, and not those of two halves."""
    return bool(options.get("rotary_interleave", True))


def bias_kind(name: str, tensors: Mapping[str, Tensor]) -> Literal["copied", "zero"]:
    """Return what becomes of the biases of which the one with this name is the first."""
    return "copied" if name in tensors else "zero"
