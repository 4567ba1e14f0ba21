"""The tensors of an OpenNMT-py Transformer under our names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.model.config import ModelConfig
from dragoman.model.errors import ConfigError, ImportFailed
from dragoman.model.importers.opennmt_options import bias_kind
from dragoman.model.importers.position_tables import follows_formula, rows_of
from dragoman.model.importers.tensors import Tensors, load_weights
from dragoman.model.importers.weight_map import Bias, WeightMap
from dragoman.model.transformer import Transformer

# Layer norms of version 1 were its own.
_OLD_NORM = re.compile(r"(.*layer_norm(?:_\d+)?)\.(a_2|b_2)")
_LAYERS = {"encoder": "transformer", "decoder": "transformer_layers"}
_HEADS = ("linear_query", "linear_keys", "linear_values", "final_linear")


def rename(model: Mapping[str, Tensor], generator: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return all tensors under the names of version 3, those of the generator with "generator." in front."""
    tensors = {}
    for name, tensor in model.items():
        found = _OLD_NORM.fullmatch(name)
        tensors[f"{found[1]}.{'weight' if found[2] == 'a_2' else 'bias'}" if found else name] = tensor
    return tensors | {f"generator.{name.removeprefix('0.')}": tensor for name, tensor in generator.items()}


def build_model(
    tensors: Mapping[str, Tensor], shape: dict[str, Any], most: int, origin: Path, *, interleaved: bool
) -> Transformer:
    """Return our model with OpenNMT-py's weights.

    Args:
        tensors: As `rename` returns them.
        shape: What the options say.
        most: Longest source and target.
        origin: For messages.
        interleaved: Rotary positions turn neighbouring columns.

    Raises:
        ImportFailed: Names every tensor that is missing, has no place or another size than the options say.
    """
    return _Reader(tensors, shape, most, origin, interleaved).read()


class _Reader:
    """Takes every tensor once."""

    def __init__(
        self, tensors: Mapping[str, Tensor], shape: dict[str, Any], most: int, origin: Path, interleaved: bool
    ) -> None:
        self._all = tensors
        self._tensors = Tensors(tensors, origin)
        self._map = WeightMap(self._tensors)
        self._shape = shape
        self._most = most
        self._origin = origin
        self._turn = shape["positions"] == "rotary" and interleaved
        first = "encoder.transformer.0"
        self._attention_bias: Bias = bias_kind(f"{first}.self_attn.linear_query.bias", tensors)
        self._forward_bias: Bias = bias_kind(f"{first}.feed_forward.w_1.bias", tensors)
        self._norm_bias: Bias = "none" if shape["norm"] == "rms" else "copied"

    def read(self) -> Transformer:
        for stack in ("encoder", "decoder"):
            for number in range(self._shape[f"num_{stack}_layers"]):
                self._layer(stack, f"{stack}.layers.{number}", f"{stack}.{_LAYERS[stack]}.{number}")
            self._map.affine(f"{stack}.norm", f"{stack}.layer_norm", self._norm_bias)
        source, target = (
            self._tensors.take(f"{stack}.embeddings.make_embedding.emb_luts.0.weight")
            for stack in ("encoder", "decoder")
        )
        output = self._tensors.take("generator.weight")
        self._map.copy("output.bias", "generator.bias")
        tables = self._position_tables()
        self._tensors.ignore("decoder.transformer_layers.*.mask")  # of version 1: which positions come later
        self._tensors.finish()
        try:
            config = ModelConfig(
                vocab_size=len(target),
                source_vocab_size=0 if len(source) == len(target) else len(source),
                max_source_tokens=self._most,
                max_target_tokens=self._most,
                tied_embeddings=self._map.tables(source, target, output),
                **self._shape,
            )
        except ConfigError as error:
            raise ImportFailed(f"{self._origin}: {error}") from error
        self._check_tables(tables)
        return load_weights(Transformer(config), self._map.weights, self._origin)

    def _layer(self, stack: str, ours: str, theirs: str) -> None:
        norms = {"self_attention": "layer_norm"}
        self._attention(f"{ours}.self_attention", f"{theirs}.self_attn", turn=self._turn)
        if stack == "decoder":
            norms = {"self_attention": "layer_norm_1", "cross_attention": "layer_norm_2"}
            self._attention(f"{ours}.cross_attention", f"{theirs}.context_attn", turn=False)
        norms["feed_forward"] = "feed_forward.layer_norm"
        for mine, name in norms.items():
            self._map.affine(f"{ours}.{mine}_sublayer.norm", f"{theirs}.{name}", self._norm_bias)
        parts = {"expand": "w_1", "contract": "w_2"} | ({"gate": "w_3"} if self._shape["gated"] else {})
        for mine, name in parts.items():
            self._map.affine(f"{ours}.feed_forward.{mine}", f"{theirs}.feed_forward.{name}", self._forward_bias)

    def _attention(self, ours: str, theirs: str, *, turn: bool) -> None:
        self._map.attention(ours, [f"{theirs}.{head}" for head in _HEADS], self._attention_bias)
        if turn:
            size = self._shape["d_model"] // self._shape["num_heads"]
            for name in [f"{ours}.{part}" for part in ("query.weight", "query.bias", "key.weight", "key.bias")]:
                rows = self._map.weights[name]
                if len(rows) % size == 0:
                    self._map.weights[name] = _halves(rows, size)

    def _position_tables(self) -> dict[str, Tensor]:
        """Take the tables of the formula, which are saved with the weights."""
        names = [f"{stack}.embeddings.make_embedding.pe.pe" for stack in ("encoder", "decoder")]
        if not self._shape["positions"].startswith("sinusoidal"):
            return {}
        return {name: rows_of(self._tensors.take(name)) for name in names}

    def _check_tables(self, tables: dict[str, Tensor]) -> None:
        for name, table in tables.items():
            if not follows_formula(table, self._shape["positions"], self._most):
                raise ImportFailed(f"{self._origin}: {name} is not the formula that position_encoding_type names")


def _halves(rows: Tensor, size: int) -> Tensor:
    """Return [H * D, ..] with the columns 0, 2, 4, ... of each head in front of 1, 3, 5, ..."""
    heads = rows.unflatten(0, (-1, size // 2, 2))  # type: ignore[no-untyped-call]  # torch has no types for it
    turned: Tensor = heads.transpose(1, 2).flatten(0, 2).contiguous()
    return turned
