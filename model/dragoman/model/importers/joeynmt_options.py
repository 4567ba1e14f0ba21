"""What the configuration of a JoeyNMT model says about its computation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from dragoman.model.errors import ImportFailed
from dragoman.model.importers.foreign_options import ForeignOptions, as_mapping

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu"}
_NORMS = {"pre": "pre", "post": "post"}


def read_configuration(path: Path) -> dict[str, Any]:
    """Read `config.yaml`.

    Raises:
        ImportFailed: It cannot be read, or is no configuration of JoeyNMT.
    """
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ImportFailed(f"{path}: cannot be read as YAML: {error}") from error
    sections = [as_mapping(content.get(name)) for name in ("data", "model")] if isinstance(content, dict) else [None]
    if None in sections:
        raise ImportFailed(f"{path}: is no configuration of JoeyNMT, which has the sections 'data' and 'model'")
    return dict(content)


def flatten(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of both stacks as "encoder.num_layers", "decoder.embeddings.scale"."""
    flat = {name: value for name, value in model.items() if as_mapping(value) is None}
    for stack in ("encoder", "decoder"):
        for name, value in (as_mapping(model.get(stack)) or {}).items():
            inner = as_mapping(value)
            if inner is None:
                flat[f"{stack}.{name}"] = value
            else:
                flat |= {f"{stack}.{name}.{key}": part for key, part in inner.items()}
    return flat


def read_shape(options: ForeignOptions, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return settings of our model; what we cannot follow becomes a problem of `options`.

    Args:
        options: As `flatten` returns them.
        tensors: By name: version 1 has no option for the position of norms.
    """
    # Both stacks are recurrent if nothing is said; version 2 says so.
    for stack in ("encoder", "decoder"):
        kind = options.get(f"{stack}.type", "recurrent")
        if kind != "transformer":
            options.problems.append(f"{stack}.type is {kind!r}; supported is 'transformer'")
        options.require({f"{stack}.alpha": (1, 1.0)})
    width = options.same("encoder.hidden_size", "decoder.hidden_size", 512)
    for stack in ("encoder", "decoder"):
        options.require({f"{stack}.embeddings.embedding_dim": (width,)})
    scales = bool(options.get("encoder.embeddings.scale", False))
    if not options.get("tied_embeddings", False):
        options.require({"decoder.embeddings.scale": (scales,)})
        if options.get("decoder.embeddings.scale", False) != scales:
            options.problems.append(f"decoder.embeddings.scale is missing; supported is {scales!r} as of the encoder")
    activation = options.choice("encoder.activation", "relu", _ACTIVATIONS)
    if options.choice("decoder.activation", "relu", _ACTIVATIONS) != activation:
        options.problems.append("encoder.activation and decoder.activation differ; supported is the same")
    return {
        "d_model": width,
        "d_ff": options.same("encoder.ff_size", "decoder.ff_size", 2048),
        "num_heads": options.same("encoder.num_heads", "decoder.num_heads", 4, 8),
        "num_encoder_layers": options.number("encoder.num_layers", 8),
        "num_decoder_layers": options.number("decoder.num_layers", 4),
        "norm_position": _norm_position(options, tensors),
        "norm_epsilon": 1e-6,
        "positions": "sinusoidal",
        "scale_embedding": scales,
        "activation": activation,
        "dropout": 0.0,
    }


def _norm_position(options: ForeignOptions, tensors: Mapping[str, Tensor]) -> str:
    given = [options.get(f"{stack}.layer_norm", "") for stack in ("encoder", "decoder")]
    if given == ["", ""] and "encoder.layer_norm.weight" in tensors and "decoder.layer_norm.weight" in tensors:
        return "pre"  # version 1 knows no other
    if given[0] != given[1] or given[0] not in _NORMS:
        shown = [value or "not given" for value in given]
        options.problems.append(
            f"encoder.layer_norm is {shown[0]!r} and decoder.layer_norm is {shown[1]!r}; supported is 'pre' for both, "
            "or 'post' for both"
        )
        return "pre"
    return str(given[0])
