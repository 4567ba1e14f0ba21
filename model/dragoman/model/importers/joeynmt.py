"""JoeyNMT: a model folder with `best.ckpt`, `config.yaml`, `src_vocab.txt` and `trg_vocab.txt`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.model.checkpoint import Checkpoint
from dragoman.model.config import ModelConfig
from dragoman.model.errors import ConfigError, ImportFailed
from dragoman.model.importers.foreign_options import ForeignOptions
from dragoman.model.importers.joeynmt_options import flatten, read_configuration, read_shape
from dragoman.model.importers.joeynmt_vocabulary import (
    add_vocabulary_arguments,
    make_tokenizer,
    read_sides,
    special_ids,
)
from dragoman.model.importers.language_tags import language_tags
from dragoman.model.importers.model_file import find_model_file
from dragoman.model.importers.position_tables import follows_formula, rows_of
from dragoman.model.importers.stand_ins import NUMPY_NUMBERS, read_with_stand_ins
from dragoman.model.importers.tensors import Tensors, load_weights
from dragoman.model.importers.weight_map import WeightMap
from dragoman.model.transformer import Transformer

SUMMARY = "JoeyNMT: a model folder, or a checkpoint in one, with a Transformer"

_HEADS = ("q_layer", "k_layer", "v_layer", "output_layer")
_NAMES = {
    "encoder": {"self_attention": "src_src_att"},
    "decoder": {"self_attention": "trg_trg_att", "cross_attention": "src_trg_att"},
}
_NORMS = {
    "encoder": {"self_attention": "layer_norm", "feed_forward": "feed_forward.layer_norm"},
    "decoder": {
        "self_attention": "x_layer_norm",
        "cross_attention": "dec_layer_norm",
        "feed_forward": "feed_forward.layer_norm",
    },
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this format."""
    add_vocabulary_arguments(parser)
    parser.add_argument(
        "--max-tokens", type=int, default=512, metavar="N", help="longest source and target (default: 512)"
    )


def import_model(path: Path, arguments: argparse.Namespace) -> Checkpoint:
    """Read a model.

    Args:
        path: Its folder, or a checkpoint in it.
        arguments: As `add_arguments` declares them.

    Raises:
        ImportFailed: It cannot be read, or computes something that we do not; says everything that is wrong.
    """
    file = find_model_file(path, ("best.ckpt", "latest.ckpt", "*.ckpt"))
    folder = file.parent
    configuration = read_configuration(folder / "config.yaml")
    state = read_with_stand_ins(file, NUMPY_NUMBERS)
    if not isinstance(state, Mapping) or not isinstance(state.get("model_state"), Mapping):
        raise ImportFailed(f"{file}: has no tensors under 'model_state'; it is no checkpoint of JoeyNMT")
    tensors = {name: tensor for name, tensor in state["model_state"].items() if isinstance(tensor, Tensor)}
    options = ForeignOptions(flatten(configuration["model"]), file)
    shape = read_shape(options, tensors)
    data = configuration["data"]
    sides = read_sides(data, folder, arguments, options.problems)
    options.finish()
    model = _build(tensors, shape, arguments.max_tokens, file)
    rows = model.config.source_vocab_size or model.config.vocab_size, model.config.vocab_size
    for side, name, size in zip(sides, ("src_vocab.txt", "trg_vocab.txt"), rows, strict=True):
        if len(side.symbols) != size:
            raise ImportFailed(f"{folder / name}: has {len(side.symbols)} symbols, the embedding {size}")
    tokenizer = make_tokenizer(sides, special_ids(sides[1].symbols, data), folder)
    tags = language_tags(side.language for side in sides if side.language)
    source, target = (tags.get(side.language, "") for side in sides)
    return Checkpoint(file, model, tokenizer, source, target, 0)


def _build(state: Mapping[str, Tensor], shape: dict[str, Any], most: int, file: Path) -> Transformer:
    """Return our model with JoeyNMT's weights, each tensor taken once."""
    tensors = Tensors(state, file)
    weights = WeightMap(tensors)
    for stack in ("encoder", "decoder"):
        for number in range(shape[f"num_{stack}_layers"]):
            name = f"{stack}.layers.{number}"
            for ours, theirs in _NAMES[stack].items():
                weights.attention(f"{name}.{ours}", [f"{name}.{theirs}.{head}" for head in _HEADS])
            for ours, theirs in _NORMS[stack].items():
                weights.affine(f"{name}.{ours}_sublayer.norm", f"{name}.{theirs}")
            weights.affine(f"{name}.feed_forward.expand", f"{name}.feed_forward.pwff_layer.0")
            weights.affine(f"{name}.feed_forward.contract", f"{name}.feed_forward.pwff_layer.3")
        if shape["norm_position"] == "pre":
            weights.affine(f"{stack}.norm", f"{stack}.layer_norm")
    source, target = (tensors.take(f"{side}_embed.lut.weight") for side in ("src", "trg"))
    output = tensors.take("decoder.output_layer.weight")
    tables = {name: rows_of(tensors.take(name)) for name in ("encoder.pe.pe", "decoder.pe.pe")}
    tensors.finish()
    for name, table in tables.items():
        if not follows_formula(table, "sinusoidal", most):
            raise ImportFailed(f"{file}: {name} is not the formula of JoeyNMT")
    try:
        config = ModelConfig(
            vocab_size=len(target),
            source_vocab_size=0 if len(source) == len(target) else len(source),
            max_source_tokens=most,
            max_target_tokens=most,
            tied_embeddings=weights.tables(source, target, output),
            **shape,
        )
    except ConfigError as error:
        raise ImportFailed(f"{file}: {error}") from error
    return load_weights(Transformer(config), weights.weights, file)
