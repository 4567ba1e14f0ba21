"""What the options of a fairseq checkpoint say about its computation and its languages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.model.errors import ImportFailed
from dragoman.model.importers.foreign_options import ForeignOptions, as_mapping

# Values under which fairseq computes what we compute.
_ALLOWED: dict[str, tuple[Any, ...]] = {
    "task": ("translation", "translation_multi_simple_epoch"),
    "tokenizer": ("space",),
    "bpe": ("subword_nmt", "fastbpe", "sentencepiece"),
    "adaptive_input": (False,),
    "adaptive_softmax_cutoff": (),
    "no_cross_attention": (False,),
    "cross_self_attention": (False,),
    "char_inputs": (False,),
    "base_layers": (0,),
    "quant_noise_pq": (0,),
    "encoder_layers_to_keep": (),
    "decoder_layers_to_keep": (),
    "encoder_xformers_att_config": (),
    "decoder_xformers_att_config": (),
    "lang_tok_replacing_bos_eos": (False,),
    "extra_data": ({},),
    "alibi": (False,),
}
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_accurate": "gelu-tanh", "gelu_fast": "gelu-tanh"}
_TOKENS = {"multilingual": "__{}__", "mbart": "[{}]"}
PADDING = 1


def flatten(state: Mapping[str, Any], origin: Path) -> dict[str, Any]:
    """Return all options of a checkpoint under the names that the command line has, "encoder_layers".

    Args:
        state: The checkpoint.
        origin: For messages.

    Raises:
        ImportFailed: It has none.
    """
    given = state.get("args")
    if given is None:
        given = state.get("cfg")
    sections = as_mapping(given)
    if sections is None:
        raise ImportFailed(
            f"{origin}: has no options, neither 'args' nor 'cfg'; it has {', '.join(map(str, state))}. It is no "
            "checkpoint that fairseq's trainer wrote"
        )
    flat: dict[str, Any] = dict(sections)
    for name in ("tokenizer", "bpe"):
        section = as_mapping(flat.get(name))
        if section is not None:
            flat[name] = section.get("_name")
    for name in ("task", "model"):
        section = as_mapping(flat.get(name))
        if section is None:
            continue
        named = {"arch" if name == "model" else "task": section["_name"]} if section.get("_name") else {}
        flat |= dict(section) | named
        for stack in ("encoder", "decoder", "quant_noise"):
            inner = as_mapping(section.get(stack))
            flat |= {f"{stack}_{key}": value for key, value in (inner or {}).items()}
    return flat


def read_shape(options: ForeignOptions) -> dict[str, Any]:
    """Return settings of our model; what we cannot follow becomes a problem of `options`."""
    options.require(_ALLOWED)
    width = options.same("encoder_embed_dim", "decoder_embed_dim", 512)
    for name in ("decoder_input_dim", "decoder_output_dim"):
        options.require({name: (width,)})
    pre = options.get("encoder_normalize_before", False)
    if options.get("decoder_normalize_before", False) != pre:
        options.problems.append("encoder_normalize_before and decoder_normalize_before differ; supported is the same")
    learned = options.get("encoder_learned_pos", False)
    if options.get("decoder_learned_pos", False) != learned:
        options.problems.append("encoder_learned_pos and decoder_learned_pos differ; supported is the same")
    positions = "learned" if learned else "sinusoidal-half"
    if options.get("no_token_positional_embeddings", False):
        positions = "none"
    return {
        "d_model": width,
        "d_ff": options.same("encoder_ffn_embed_dim", "decoder_ffn_embed_dim", 2048),
        "num_heads": options.same("encoder_attention_heads", "decoder_attention_heads", 8, 8),
        "num_encoder_layers": options.number("encoder_layers", 6),
        "num_decoder_layers": options.number("decoder_layers", 6),
        "norm_position": "pre" if pre else "post",
        "positions": positions,
        # fairseq counts from behind the id of the padding.
        "first_position": PADDING + 1 if positions == "sinusoidal-half" else 0,
        "embedding_norm": bool(options.get("layernorm_embedding", False)),
        "activation": options.choice("activation_fn", "relu", _ACTIVATIONS),
        "scale_embedding": not options.get("no_scale_embedding", False),
        "dropout": 0.0,
    }


def limits(options: ForeignOptions) -> tuple[int, int]:
    """Return the longest source and target."""
    both = options.number("max_positions", 1024)
    return options.number("max_source_positions", both), options.number("max_target_positions", both)


def language_symbols(options: ForeignOptions) -> dict[str, str]:
    """Return the symbol of each language of a multilingual model, in the order in which dictionaries get them."""
    if options.get("task", "translation") != "translation_multi_simple_epoch":
        return {}
    pattern = options.choice("lang_tok_style", "multilingual", {key: key for key in _TOKENS})
    pairs = options.get("lang_pairs", [])
    pairs = pairs.split(",") if isinstance(pairs, str) else list(pairs)
    langs = options.get("langs", sorted({name for pair in pairs for name in pair.split("-")}))
    if options.get("lang_dict", None) is not None:
        options.problems.append("lang_dict names a file of another machine; give its languages in the option `langs`")
    options.require({"langtoks_specs": (["main"], ("main",), "main")})
    names = langs.split(",") if isinstance(langs, str) else list(langs)
    return {name: _TOKENS[pattern].format(name) for name in names}
