"""Writes a checkpoint as a model folder of CTranslate2, so that people can compare the two and leave again.

The folder holds the same weights, positions as a table, and the tokenizer's own files beside CTranslate2's
vocabulary. Ids that are never generated get -inf as their output bias: CTranslate2 has no list of them. What it
has no form for is refused by name. Its package is an extra of its own, loaded when it is used.
"""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.export.destination import require_destination, writing
from dragoman.export.errors import ExportError, VerificationError
from dragoman.export.staging import put_in_place, scratch_beside
from dragoman.export.token_names import token_names
from dragoman.model.attention import MultiHeadAttention
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.config import ModelConfig
from dragoman.model.feed_forward import FeedForward
from dragoman.model.folder_kinds import is_ctranslate2_model
from dragoman.model.search import generation_bias, greedy
from dragoman.model.stacks import Decoder, Encoder
from dragoman.model.transformer import Transformer

QUANTIZATION: dict[str, str | None] = {"fp32": None, "int8": "int8"}
# Verification: new tokens of a text, and how close two logits are that may swap between two correct engines.
_LONGEST = 40
_TIE = 1e-4
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh", "silu": "SWISH"}
# Every setting that is carried over, or that says nothing about a trained model.
_CARRIED = {
    "vocab_size", "d_model", "d_ff", "num_heads", "num_encoder_layers", "num_decoder_layers", "norm_position",
    "max_source_tokens", "max_target_tokens", "source_vocab_size", "num_key_value_heads", "d_head", "positions",
    "first_position", "embedding_norm", "relative_buckets", "relative_max_distance", "activation", "gated", "norm",
    "norm_epsilon", "final_norm", "bias", "scale_attention", "scale_embedding", "tied_embeddings", "output_bias",
    "scale_output", "dropout", "attention_dropout", "feed_forward_dropout",
}  # fmt: skip

Array = NDArray[np.float32]


def write_ctranslate2(
    checkpoint: Checkpoint,
    out: Path,
    *,
    precision: str,
    verify: Callable[[Path], None] | None = None,
) -> None:
    """Write a CTranslate2 model folder, whole or not at all.

    Args:
        checkpoint: What to export.
        out: Folder; replaced if it is one of CTranslate2 already, or empty.
        precision: Of the weights: "fp32", or "int8" as CTranslate2 does it, per row.
        verify: Gets the finished folder; raises to refuse it.

    Raises:
        ExportError: The package is missing, `out` is in the way or cannot be written, or CTranslate2 has no form for
            the model; names every setting that is the reason.
    """
    specs = load_package("specs")
    if precision not in QUANTIZATION:
        raise ExportError(
            f"a CTranslate2 model is not written in {precision}; choose {' or '.join(QUANTIZATION)}. It makes others "
            "of them when it loads one (compute_type)"
        )
    out = out.resolve()
    require_destination(out, is_ctranslate2_model, "a model folder of CTranslate2")
    if problems := unsupported(checkpoint.model.config):
        raise ExportError(f"CTranslate2 has no form for this model: {'; '.join(problems)}")
    spec = _build(specs, checkpoint)
    spec.validate()
    spec.optimize(quantization=QUANTIZATION[precision])
    with writing(out), scratch_beside(out) as scratch:
        folder = scratch / out.name
        folder.mkdir()
        spec.save(str(folder))
        for name, content in checkpoint.tokenizer.files().items():
            if not (folder / name).exists():
                (folder / name).write_bytes(content)
        if verify is not None:
            verify(folder)
        put_in_place(folder, out, scratch)


def verify_ctranslate2(
    folder: Path, checkpoint: Checkpoint, *, precision: str, sentences: int = 50, seed: int = 0
) -> str:
    """Let CTranslate2 translate random sources, and compare with PyTorch's greedy search.

    Args:
        folder: What `write_ctranslate2` wrote.
        checkpoint: Of the model.
        precision: Of the folder; int8 changes tokens and is only run.
        sentences: How many.
        seed: Of the sources.

    Returns:
        How many texts are equal, in words.

    Raises:
        VerificationError: A token of fp32 differs that is not as probable as ours.
    """
    special, config = checkpoint.tokenizer.special, checkpoint.model.config
    generator = random.Random(seed)  # noqa: S311  # a choice of test sentences, not a secret
    size = config.source_vocab_size or config.vocab_size
    end = checkpoint.tokenizer.encode("")  # EOS, if the model has one
    reserved = {*end, *(special.never_generated if size == config.vocab_size else ())}
    usable = [i for i in range(size) if i not in reserved]
    longest = min(_LONGEST, config.max_source_tokens, config.max_target_tokens)
    plain = [generator.choices(usable, k=generator.randint(1, longest - 1)) for _ in range(sentences)]
    sources = [[*ids, *end] for ids in plain]
    expected = greedy(checkpoint.model, sources, [longest] * sentences, special)
    source_names, names = token_names(checkpoint.tokenizer, checkpoint.languages)
    translator = load_package().Translator(str(folder), device="cpu", intra_threads=1)
    adds_eos = json.loads((folder / "config.json").read_text("utf-8"))["add_source_eos"]
    results = translator.translate_batch(
        [[source_names[i] for i in (ids if adds_eos else source)] for ids, source in zip(plain, sources, strict=True)],
        beam_size=1, max_decoding_length=longest, return_end_token=True, max_input_length=0, min_decoding_length=0,
    )  # fmt: skip
    numbers = {name: i for i, name in enumerate(names)}
    found = [[numbers[name] for name in result.hypotheses[0]] for result in results]
    differing = [i for i in range(sentences) if found[i] != expected[i]]
    wrong = [i for i in differing if not _is_tie(checkpoint, sources[i], expected[i], found[i])]
    if wrong and precision == "fp32":
        raise VerificationError(
            f"CTranslate2 gives other tokens than PyTorch for {len(wrong)} of {sentences} random texts; "
            "please report the model's config.json, the export has a fault"
        )
    return f"{sentences - len(differing)} of {sentences} texts equal PyTorch's"


@torch.inference_mode()
def _is_tie(checkpoint: Checkpoint, source: Sequence[int], expected: Sequence[int], found: Sequence[int]) -> bool:
    """Whether the first token that differs had the same logit as ours."""
    at = next((i for i, (one, other) in enumerate(zip(expected, found, strict=False)) if one != other), None)
    if at is None:  # one text goes on where the other ends
        return False
    model = checkpoint.model
    target = torch.tensor([[checkpoint.tokenizer.special.start, *expected[:at]]])
    logits = model.project(model(torch.tensor([source]), torch.tensor([len(source)]), target)[:, -1])[0]
    return bool((logits[expected[at]] - logits[found[at]]).abs() < _TIE)


def load_package(module: str = "") -> ModuleType:
    """Return the package, or a module of it.

    Raises:
        ExportError: It is not installed.
    """
    try:
        return importlib.import_module(f"ctranslate2.{module}" if module else "ctranslate2")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ctranslate2":
            raise
        raise ExportError(
            "--format ctranslate2 needs the package ctranslate2, which is not installed. "
            "Install the extra 'ctranslate2', in a checkout of Dragoman: pip install '.[export,ctranslate2]'"
        ) from error


def unsupported(config: ModelConfig) -> list[str]:
    """Return what CTranslate2 has no form for, a phrase each."""
    problems = []
    if config.decoder_layer != "self-attention":
        problems.append(f"decoder_layer {config.decoder_layer!r} (its decoders have self-attention)")
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name not in {*_CARRIED, "decoder_layer"} and value != field.default:
            problems.append(f"{field.name} {value!r}")
    return problems


def _build(specs: ModuleType, checkpoint: Checkpoint) -> Any:
    model, tokenizer, languages = checkpoint.model, checkpoint.tokenizer, checkpoint.languages
    config = model.config
    kind = importlib.import_module("ctranslate2.specs.transformer_spec")
    common: dict[str, Any] = {
        "pre_norm": config.norm_position == "pre",
        "activation": getattr(specs.common_spec.Activation, _ACTIVATIONS[config.activation]),
        "layernorm_embedding": config.embedding_norm,
        "relative_attention_bias": config.positions == "relative",
        "ffn_glu": config.gated,
        "rms_norm": config.norm == "rms",
        "num_heads_kv": config.key_value_heads if config.num_key_value_heads else None,
        "head_dim": config.head_dim if config.d_head else None,
        "rotary_dim": config.head_dim if config.positions == "rotary" else None,
        "rotary_interleave": False,  # ours turns column i with column i + D / 2
    }
    # The final norm exists in its specification with pre_norm only, in its engine with both.
    with_norm = {**common, "pre_norm": True} if config.has_final_norm else common
    encoder = kind.TransformerEncoderSpec(
        config.num_encoder_layers, config.num_heads, no_final_norm=not config.has_final_norm, **with_norm
    )
    decoder = kind.TransformerDecoderSpec(
        config.num_decoder_layers, config.num_heads, no_final_norm=not config.has_final_norm, **with_norm
    )
    spec = kind.TransformerSpec(encoder, decoder)
    spec.encoder.embeddings[0].weight = _array(model.embedding.tokens.weight)
    spec.decoder.embeddings.weight = _array(model.target_table.tokens.weight)
    for stack_spec, stack in ((spec.encoder, model.encoder), (spec.decoder, model.decoder)):
        stack_spec.pre_norm = common["pre_norm"]
        stack_spec.scale_embeddings = config.scale_embedding
        _set_stack(stack_spec, stack, config)
    _set_output(spec.decoder, model, checkpoint)
    source, target = token_names(tokenizer, languages)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    special = tokenizer.special
    spec.config.unk_token, spec.config.eos_token = target[special.unk], target[special.eos]
    spec.config.bos_token = spec.config.decoder_start_token = target[special.start]
    spec.config.layer_norm_epsilon = config.norm_epsilon
    behind = languages is not None and any(
        tokens.after_source for side in (languages.sources, languages.targets) for tokens in side.values()
    )
    spec.config.add_source_eos = not behind and [source[i] for i in tokenizer.encode("")] == [target[special.eos]]
    return spec


def _set_output(spec: Any, model: Transformer, checkpoint: Checkpoint) -> None:
    bias = generation_bias(model.config.vocab_size, checkpoint.tokenizer.special)
    if model.output_bias is not None:
        bias = bias + model.output_bias.detach()
    spec.projection.weight = _array(model.output_weight)
    spec.projection.bias = _array(bias)
    if model.config.scale_output:
        spec.scale_outputs = model.config.d_model**-0.5


def _set_stack(spec: Any, stack: Encoder | Decoder, config: ModelConfig) -> None:
    if config.has_final_norm:
        _set_norm(spec.layer_norm, stack.norm)
    if config.embedding_norm:
        _set_norm(spec.layernorm_embedding, stack.embedding_norm)
    if hasattr(spec, "position_encodings") and config.positions not in ("rotary", "relative"):
        spec.position_encodings.encodings = _positions(stack, config)
    layers: Iterable[Any] = stack.layers
    for layer_spec, layer in zip(spec.layer, layers, strict=True):
        attention = layer_spec.self_attention
        _set_attention(attention, layer.self_attention, config, self_attention=True)
        _set_norm(attention.layer_norm, layer.self_attention_sublayer.norm)
        if stack.relative is not None:  # one table, which every layer names
            attention.relative_attention_bias = _array(stack.relative.weights.weight)
            attention.relative_attention_max_distance = np.int32(config.relative_max_distance)
        if hasattr(layer_spec, "attention"):
            _set_attention(layer_spec.attention, layer.cross_attention, config, self_attention=False)
            _set_norm(layer_spec.attention.layer_norm, layer.cross_attention_sublayer.norm)
        _set_feed_forward(layer_spec.ffn, layer.feed_forward)
        _set_norm(layer_spec.ffn.layer_norm, layer.feed_forward_sublayer.norm)


def _positions(stack: Encoder | Decoder, config: ModelConfig) -> Array:
    if config.positions == "none":
        size = config.max_source_tokens if isinstance(stack, Encoder) else config.max_target_tokens
        return np.zeros((size, config.d_model), np.float32)
    return _array(stack.positions.learned.weight if config.positions == "learned" else stack.positions.table)


def _set_attention(spec: Any, attention: MultiHeadAttention, config: ModelConfig, *, self_attention: bool) -> None:
    spec.queries_scale = np.float32(config.head_dim**-0.5 if config.scale_attention else 1.0)
    if self_attention:
        _set_linear(spec.linear[0], attention.query, attention.key, attention.value)
    else:
        _set_linear(spec.linear[0], attention.query)
        _set_linear(spec.linear[1], attention.key, attention.value)
    _set_linear(spec.linear[-1], attention.output)


def _set_feed_forward(spec: Any, feed_forward: FeedForward) -> None:
    _set_linear(spec.linear_0, feed_forward.expand)
    if feed_forward.gate is not None:
        _set_linear(spec.linear_0_noact, feed_forward.gate)
    _set_linear(spec.linear_1, feed_forward.contract)


def _set_linear(spec: Any, *projections: nn.Linear) -> None:
    """Set one projection, or several that read the same states, one below the other."""
    spec.weight = np.concatenate([_array(projection.weight) for projection in projections])
    if projections[0].bias is not None:
        spec.bias = np.concatenate([_array(projection.bias) for projection in projections])


def _set_norm(spec: Any, norm: Any) -> None:
    spec.gamma = _array(norm.weight)
    if hasattr(spec, "beta"):
        bias = getattr(norm, "bias", None)
        spec.beta = np.zeros_like(spec.gamma) if bias is None else _array(bias)


def _array(tensor: Tensor) -> Array:
    """Return a copy, so that a matrix of two uses is compared and stored once by CTranslate2 itself."""
    return np.array(tensor.detach().to(torch.float32).numpy())
