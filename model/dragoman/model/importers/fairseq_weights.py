"""The tensors of a fairseq Transformer under our names, those of older versions included."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.model.config import ModelConfig
from dragoman.model.errors import ConfigError, ImportFailed
from dragoman.model.importers.fairseq_options import PADDING
from dragoman.model.importers.tensors import Tensors, load_weights
from dragoman.model.importers.weight_map import WeightMap
from dragoman.model.transformer import Transformer

_NORMS = {"0": "self_attn_layer_norm", "1": "encoder_attn_layer_norm", "2": "final_layer_norm"}
_ENCODER_NORMS = {"0": "self_attn_layer_norm", "1": "final_layer_norm"}
# Copies that the layers of version 0.12 keep for a fast path of PyTorch.
_COPIES = ("in_proj_weight", "in_proj_bias", "out_proj_weight", "out_proj_bias", "fc1_weight", "fc1_bias",
           "fc2_weight", "fc2_bias")  # fmt: skip
# A final norm came with these versions of the two stacks.
_NORMED_SINCE = {"encoder": 2, "decoder": 3}
_STACKS = ("encoder", "decoder")


def build_model(state: Mapping[str, Any], shape: dict[str, Any], most: tuple[int, int], origin: Path) -> Transformer:
    """Return our model with fairseq's weights.

    Args:
        state: The checkpoint's tensors.
        shape: What the options say.
        most: Longest source and target.
        origin: For messages.

    Raises:
        ImportFailed: Names every tensor that is missing, has no place or another size than the options say.
    """
    if not any(name.startswith("encoder.") for name in state):
        raise ImportFailed(f"{origin}: has no encoder; supported are models with encoder and decoder")
    names = {name: _renamed(name) for name in state if isinstance(state[name], Tensor)}
    return _Reader({names[name]: state[name] for name in names}, shape, most, origin).read()


def _renamed(name: str) -> str:
    """Return the name that a tensor of a version before 0.6 has today."""
    parts = name.split(".")
    if len(parts) == 6 and parts[1] == "layers" and parts[3] == "layer_norms":
        norms = _NORMS if parts[0] == "decoder" else _ENCODER_NORMS
        return ".".join((*parts[:3], norms.get(parts[4], parts[4]), parts[5]))
    return name


class _Reader:
    """Takes every tensor once."""

    def __init__(self, tensors: dict[str, Tensor], shape: dict[str, Any], most: tuple[int, int], origin: Path) -> None:
        self._all = tensors
        self._tensors = Tensors(tensors, origin)
        self._map = WeightMap(self._tensors)
        self._shape = shape
        self._most = list(most)
        self._origin = origin

    def read(self) -> Transformer:
        for stack in _STACKS:
            for number in range(self._shape[f"num_{stack}_layers"]):
                self._layer(stack, f"{stack}.layers.{number}")
            if self._shape["embedding_norm"]:
                self._map.affine(f"{stack}.embedding_norm", f"{stack}.layernorm_embedding")
            self._tensors.ignore(f"{stack}.version", f"{stack}.embed_positions._float_tensor")
        final = self._final_norms()
        self._positions()
        source, target, output = self._tables()
        self._tensors.finish()
        try:
            config = ModelConfig(
                vocab_size=len(target),
                source_vocab_size=0 if len(source) == len(target) else len(source),
                max_source_tokens=self._most[0],
                max_target_tokens=self._most[1],
                final_norm=final,
                tied_embeddings=self._map.tables(source, target, output),
                **self._shape,
            )
        except ConfigError as error:
            raise ImportFailed(f"{self._origin}: {error}") from error
        return load_weights(Transformer(config), self._map.weights, self._origin)

    def _layer(self, stack: str, name: str) -> None:
        self._attention(f"{name}.self_attention", f"{name}.self_attn")
        self._map.affine(f"{name}.self_attention_sublayer.norm", f"{name}.self_attn_layer_norm")
        if stack == "decoder":
            self._attention(f"{name}.cross_attention", f"{name}.encoder_attn")
            self._map.affine(f"{name}.cross_attention_sublayer.norm", f"{name}.encoder_attn_layer_norm")
        self._map.affine(f"{name}.feed_forward.expand", f"{name}.fc1")
        self._map.affine(f"{name}.feed_forward.contract", f"{name}.fc2")
        self._map.affine(f"{name}.feed_forward_sublayer.norm", f"{name}.final_layer_norm")
        if stack == "encoder":
            self._tensors.ignore(*(f"{name}.{copy}" for copy in _COPIES))

    def _attention(self, ours: str, theirs: str) -> None:
        if f"{theirs}.in_proj_weight" not in self._tensors:
            self._map.attention(ours, [f"{theirs}.{part}" for part in ("q_proj", "k_proj", "v_proj", "out_proj")])
            return
        self._map.fused(ours, f"{theirs}.in_proj_weight", "weight")
        self._map.fused(ours, f"{theirs}.in_proj_bias", "bias")
        self._map.affine(f"{ours}.output", f"{theirs}.out_proj")

    def _final_norms(self) -> bool:
        if self._shape["norm_position"] == "post":
            return False
        normed = {}
        for stack in _STACKS:
            version = self._all.get(f"{stack}.version")
            normed[stack] = version is not None and float(version.flatten()[0]) >= _NORMED_SINCE[stack]
            normed[stack] = normed[stack] and f"{stack}.layer_norm.weight" in self._tensors
            if normed[stack]:
                self._map.affine(f"{stack}.norm", f"{stack}.layer_norm")
            else:
                self._tensors.ignore(f"{stack}.layer_norm.*")
        if normed["encoder"] != normed["decoder"]:
            raise ImportFailed(f"{self._origin}: one stack ends with a norm and the other does not; supported is both")
        return normed["encoder"]

    def _positions(self) -> None:
        for index, stack in enumerate(_STACKS):
            if self._shape["positions"] == "learned":
                table = self._tensors.take(f"{stack}.embed_positions.weight")[PADDING + 1 :]
                self._most[index] = min(self._most[index], len(table)) or 1
                self._map.weights[f"{stack}.positions.learned.weight"] = table[: self._most[index]].clone()
            else:
                self._tensors.ignore(f"{stack}.embed_positions.weights")

    def _tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the matrices of source, target and output; older versions do not save one that is shared."""
        target = self._tensors.take("decoder.embed_tokens.weight")
        source = self._tensors.take("encoder.embed_tokens.weight")
        for name in ("decoder.output_projection.weight", "decoder.embed_out"):
            if name in self._tensors:
                return source, target, self._tensors.take(name)
        return source, target, target
