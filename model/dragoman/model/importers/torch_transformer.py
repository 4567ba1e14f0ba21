"""Weights of a model around `torch.nn.Transformer`, with a description in YAML of what they do not say."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.model.checkpoint import Checkpoint
from dragoman.model.config import ModelConfig
from dragoman.model.errors import ConfigError, ImportFailed
from dragoman.model.importers.position_tables import follows_formula, rows_of
from dragoman.model.importers.symbol_files import read_bytes
from dragoman.model.importers.tensors import Tensors, load_weights, read_safetensors, read_torch
from dragoman.model.importers.torch_description import Description, read_description
from dragoman.model.importers.weight_map import Bias, WeightMap
from dragoman.model.tokenizers import SymbolSide, SymbolTokenizer
from dragoman.model.transformer import Transformer
from dragoman.model.vocab import SpecialIds

SUMMARY = "PyTorch: weights of a model around torch.nn.Transformer, and a description in YAML"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this format."""
    parser.add_argument(
        "--description",
        type=Path,
        metavar="FILE",
        help="YAML that names the tensors, the vocabularies and the special symbols (default: the weights' name with "
        ".yaml in place of its ending); its settings are listed in importers/torch_description.py",
    )


def import_model(path: Path, arguments: argparse.Namespace) -> Checkpoint:
    """Read a model.

    Args:
        path: What `torch.save` or safetensors wrote.
        arguments: As `add_arguments` declares them.

    Raises:
        ImportFailed: It cannot be read, or the description does not fit it.
    """
    described = arguments.description or path.with_suffix(".yaml")
    if not path.is_file():
        raise ImportFailed(f"{path}: there is no such file; give the file that torch.save or safetensors wrote")
    if not described.exists():
        raise ImportFailed(f"{described}: there is no such file; describe the model in one and name it: --description")
    description = read_description(described)
    tensors = _state_dict(path, description)
    model = _Reader(tensors, description, path).read()
    source, target = description.sides
    return Checkpoint(path, model, _tokenizer(description, path), source.language, target.language, 0)


def _state_dict(path: Path, description: Description) -> dict[str, Tensor]:
    found: Any = read_safetensors(path) if path.suffix == ".safetensors" else read_torch(path)
    reached = "the file"
    for key in filter(None, description.top.state_dict.split(".")):
        if not isinstance(found, Mapping) or key not in found:
            has = ", ".join(map(str, list(found)[:10])) if isinstance(found, Mapping) else type(found).__name__
            raise ImportFailed(f"{path}: {reached} has no {key!r}, which state_dict names; it has {has}")
        found, reached = found[key], f"{key!r}"
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        keys = ", ".join(str(key) for key in list(found)[:10]) if isinstance(found, Mapping) else type(found).__name__
        raise ImportFailed(
            f"{path}: {reached} is no state dict, it holds {keys}; say in the description's state_dict where it is"
        )
    return {str(name).removeprefix(description.top.prefix): tensor for name, tensor in found.items()}


class _Reader:
    """Takes every tensor once."""

    def __init__(self, tensors: dict[str, Tensor], description: Description, path: Path) -> None:
        self._all = tensors
        self._tensors = Tensors(tensors, path)
        self._map = WeightMap(self._tensors)
        self._description = description
        self._names = description.names
        self._path = path
        self._stacks = {
            stack: getattr(self._names, stack) or f"{self._names.transformer}.{stack}"
            for stack in ("encoder", "decoder")
        }
        self._bias: Bias = "copied" if self._has("encoder", ".layers.0.linear1.bias") else "none"

    def read(self) -> Transformer:
        """Return the model with all weights.

        Raises:
            ImportFailed: Tensors are missing, left over or of other sizes than each other.
        """
        sizes = {stack: self._layers(stack) for stack in self._stacks}
        for stack, depth in sizes.items():
            for number in range(depth):
                self._layer(stack, f"{stack}.layers.{number}", f"{self._stacks[stack]}.layers.{number}")
        final = self._final_norms()
        tables = self._tables()
        self._tensors.ignore(*self._description.top.ignore)
        self._tensors.finish()
        source, target, output = tables
        shape = self._description.shape
        limits = self._positions()
        try:
            config = ModelConfig(
                vocab_size=len(target),
                source_vocab_size=0 if len(source) == len(target) else len(source),
                d_model=target.size(-1),
                d_ff=len(self._map.weights["encoder.layers.0.feed_forward.expand.weight"]),
                num_heads=shape.heads,
                num_encoder_layers=sizes["encoder"],
                num_decoder_layers=sizes["decoder"],
                norm_position="pre" if shape.norm_first else "post",
                dropout=0.0,
                max_source_tokens=limits[0],
                max_target_tokens=limits[1],
                positions=shape.positions,
                activation=shape.activation,
                norm_epsilon=shape.norm_epsilon,
                final_norm=final,
                bias=self._bias == "copied",
                scale_embedding=shape.scale_embedding,
                tied_embeddings=self._map.tables(source, target, output),
                output_bias=bool(self._names.output_bias),
            )
        except ConfigError as error:
            raise ImportFailed(f"{self._path}: {error}") from error
        self._check_vocabularies(source, target)
        return load_weights(Transformer(config), self._map.weights, self._path)

    def _has(self, stack: str, rest: str) -> bool:
        return f"{self._stacks[stack]}{rest}" in self._all

    def _layers(self, stack: str) -> int:
        pattern = re.compile(re.escape(self._stacks[stack]) + r"\.layers\.(\d+)\.")
        numbers = {int(found[1]) for name in self._all if (found := pattern.match(name))}
        if not numbers:
            names = ", ".join(list(self._all)[:8])
            raise ImportFailed(
                f"{self._path}: no tensor begins with {self._stacks[stack]}.layers; there are {names}, ... "
                f"({len(self._all)} in all); name the nn.Transformer in the description"
            )
        return max(numbers) + 1

    def _layer(self, stack: str, ours: str, theirs: str) -> None:
        attentions = {"self_attention": "self_attn"}
        norms = ["self_attention", "feed_forward"]
        if stack == "decoder":
            attentions["cross_attention"] = "multihead_attn"
            norms.insert(1, "cross_attention")
        for mine, name in attentions.items():
            self._map.fused(f"{ours}.{mine}", f"{theirs}.{name}.in_proj_weight", "weight")
            if self._bias == "copied":
                self._map.fused(f"{ours}.{mine}", f"{theirs}.{name}.in_proj_bias", "bias")
            self._map.affine(f"{ours}.{mine}.output", f"{theirs}.{name}.out_proj", self._bias)
        self._map.affine(f"{ours}.feed_forward.expand", f"{theirs}.linear1", self._bias)
        self._map.affine(f"{ours}.feed_forward.contract", f"{theirs}.linear2", self._bias)
        for number, mine in enumerate(norms, 1):
            self._map.affine(f"{ours}.{mine}_sublayer.norm", f"{theirs}.norm{number}", self._bias)

    def _final_norms(self) -> bool:
        found = [stack for stack in self._stacks if self._has(stack, ".norm.weight")]
        for stack in found:
            self._map.affine(f"{stack}.norm", f"{self._stacks[stack]}.norm", self._bias)
        if len(found) == 1:
            raise ImportFailed(f"{self._path}: the {found[0]} has a final norm and the other stack has none")
        return bool(found)

    def _tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the matrices of source, target and output; one that is named twice is taken once."""
        names = (self._names.source_embedding, self._names.target_embedding, self._names.output)
        taken = {name: self._tensors.take(name) for name in dict.fromkeys(names)}
        if self._names.output_bias:
            self._map.copy("output.bias", self._names.output_bias)
        given = (self._names.source_positions, self._names.target_positions)
        self._position_tables = {name: rows_of(self._tensors.take(name)) for name in dict.fromkeys(given) if name}
        return taken[names[0]], taken[names[1]], taken[names[2]]

    def _positions(self) -> tuple[int, int]:
        """Put in learned positions, compare others with their formula, and return the longest source and target."""
        shape, names = self._description.shape, self._names
        limits = [shape.max_source_tokens, shape.max_target_tokens]
        for i, (stack, name) in enumerate(
            (("encoder", names.source_positions), ("decoder", names.target_positions)),
        ):
            if not name:
                continue
            table = self._position_tables[name]
            limits[i] = min(limits[i], len(table))
            if shape.positions == "learned":
                self._map.weights[f"{stack}.positions.learned.weight"] = table[: limits[i]].clone()
            elif shape.positions == "none" or not follows_formula(table, shape.positions, limits[i]):
                raise ImportFailed(
                    f"{self._path}: {name} is not what positions {shape.positions!r} say; choose another formula, or "
                    "'learned', which takes the table as it is"
                )
        return limits[0], limits[1]

    def _check_vocabularies(self, source: Tensor, target: Tensor) -> None:
        problems = [
            f"the {where} has {len(symbols)} symbols, its embedding {len(table)}"
            for where, symbols, table in zip(
                ("source", "target"), self._description.symbols, (source, target), strict=True
            )
            if len(symbols) != len(table)
        ]
        if problems:
            raise ImportFailed(f"{self._path}: {'; '.join(problems)}")


def _tokenizer(description: Description, path: Path) -> SymbolTokenizer:
    side, ids = description.sides[0], description.ids[0]
    before, after = (ids.start,) if side.add_start else (), (ids.eos,) if side.add_eos else ()
    of_target = description.ids[1]
    special = SpecialIds(pad=of_target.pad, unk=of_target.unk, start=of_target.start, eos=of_target.eos)
    try:
        return SymbolTokenizer(
            _symbol_side(description, 0, before, after),
            special,
            target=_symbol_side(description, 1, (), (special.eos,)),
        )
    except ValueError as error:
        raise ImportFailed(f"{path}: {error}") from error


def _symbol_side(description: Description, index: int, before: tuple[int, ...], after: tuple[int, ...]) -> SymbolSide:
    side, ids, folder = description.sides[index], description.ids[index], description.folder
    return SymbolSide(
        symbols=description.symbols[index],
        split=side.split,
        unk=ids.unk,
        before=before,
        after=after,
        reserved=(ids.pad, ids.start, ids.eos),
        lowercase=side.lowercase,
        space=side.space,
        codes=None if side.codes is None else read_bytes(folder / side.codes),
        joiner=side.joiner,
        model=None if side.model is None else read_bytes(folder / side.model),
    )
