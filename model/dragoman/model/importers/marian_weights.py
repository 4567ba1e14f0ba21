"""The tensors of a Marian Transformer under our names.

Marian's matrices are [in, out] and its vectors [1, n]. Its decoder begins with an embedding of zeros that no
token has: here the start token is one more row, behind the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from dragoman.model.importers.marian_options import Layout
from dragoman.model.importers.tensors import Tensors, load_weights
from dragoman.model.transformer import Transformer

# As good as impossible; the start token has no share in a softmax, trained or searched, as Marian has no such token.
_NEVER = -100.0


def build_model(tensors: Mapping[str, Tensor], layout: Layout, origin: Path) -> Transformer:
    """Return our model with Marian's weights.

    Args:
        tensors: By Marian's names.
        layout: Of the model.
        origin: For messages.

    Raises:
        ImportFailed: Names every tensor that is missing, has no place or does not have the size that the options say.
    """
    reader = _Reader(tensors, layout, origin)
    return load_weights(Transformer(layout.config), reader.read(), origin)


class _Reader:
    def __init__(self, tensors: Mapping[str, Tensor], layout: Layout, origin: Path) -> None:
        self._tensors = Tensors(tensors, origin)
        self._layout = layout
        self._config = layout.config
        self._pre = layout.config.norm_position == "pre"
        self._weights: dict[str, Tensor] = {}

    def read(self) -> dict[str, Tensor]:
        """Take every tensor once and return all weights."""
        for i in range(self._config.num_encoder_layers):
            ours, theirs = f"encoder.layers.{i}", f"encoder_l{i + 1}"
            self._attention(f"{ours}.self_attention", f"{theirs}_self")
            self._feed_forward(ours, theirs)
        for i, number in enumerate(self._layout.decoder_layers):
            first = self._layout.decoder_layers.index(number)
            if first < i:
                self._copy(f"decoder.layers.{first}.", f"decoder.layers.{i}.")
            else:
                self._decoder_layer(f"decoder.layers.{i}", f"decoder_l{number}")
        if self._config.has_final_norm:
            for stack in ("encoder", "decoder"):
                self._norm(f"{stack}.norm", f"{stack}_top", "")
        self._embeddings()
        # Scales of activations and products, which integer arithmetic of Marian's needs.
        self._tensors.ignore("*_QuantMultA", "*_QuantMultB")
        self._tensors.finish()
        return self._weights

    def _decoder_layer(self, ours: str, theirs: str) -> None:
        if self._config.decoder_layer == "ssru":
            self._matrix(f"{ours}.ssru.value", f"{theirs}_rnn_W")
            self._matrix(f"{ours}.ssru.forget", f"{theirs}_rnn_Wf", f"{theirs}_rnn_bf")
            prefix = f"{theirs}_rnn" if self._pre else f"{theirs}_rnn_ffn"
            self._norm(f"{ours}.self_attention_sublayer.norm", prefix, self._suffix)
        else:
            self._attention(f"{ours}.self_attention", f"{theirs}_self")
        self._attention(f"{ours}.cross_attention", f"{theirs}_context")
        self._feed_forward(ours, theirs)

    def _copy(self, first: str, ours: str) -> None:
        for name in [name for name in self._weights if name.startswith(first)]:
            self._weights[ours + name.removeprefix(first)] = self._weights[name]

    def _attention(self, ours: str, theirs: str) -> None:
        for name, letter in (("query", "q"), ("key", "k"), ("value", "v")):
            self._matrix(f"{ours}.{name}", f"{theirs}_W{letter}", f"{theirs}_b{letter}")
        if self._layout.attention_output:
            self._matrix(f"{ours}.output", f"{theirs}_Wo", f"{theirs}_bo")
        else:
            size = self._config.d_model
            self._weights[f"{ours}.output.weight"] = torch.eye(size)
            self._weights[f"{ours}.output.bias"] = torch.zeros(size)
        self._norm(f"{ours}_sublayer.norm", f"{theirs}_Wo", self._suffix)

    def _feed_forward(self, ours: str, theirs: str) -> None:
        for name, number in (("expand", 1), ("contract", 2)):
            self._matrix(f"{ours}.feed_forward.{name}", f"{theirs}_ffn_W{number}", f"{theirs}_ffn_b{number}")
        self._norm(f"{ours}.feed_forward_sublayer.norm", f"{theirs}_ffn_ffn", self._suffix)

    @property
    def _suffix(self) -> str:
        return "_pre" if self._pre else ""

    def _matrix(self, ours: str, weight: str, bias: str | None = None) -> None:
        self._weights[f"{ours}.weight"] = self._tensors.take(weight, _transposed)
        if bias is not None:
            self._weights[f"{ours}.bias"] = self._tensors.take(bias, torch.flatten)

    def _norm(self, ours: str, theirs: str, suffix: str) -> None:
        if self._config.norm == "rms":
            self._weights[f"{ours}.weight"] = self._tensors.take(f"{theirs}_rms_scale{suffix}", torch.flatten)
            return
        self._weights[f"{ours}.weight"] = self._tensors.take(f"{theirs}_ln_scale{suffix}", torch.flatten)
        self._weights[f"{ours}.bias"] = self._tensors.take(f"{theirs}_ln_bias{suffix}", torch.flatten)

    def _embeddings(self) -> None:
        config = self._config
        if config.tied_embeddings in ("all", "source-target"):
            self._table("embedding.tokens", "Wemb", config.vocab_size)
        else:
            self._table("embedding.tokens", "encoder_Wemb", config.source_vocab_size)
            self._table("target_embedding.tokens", "decoder_Wemb", config.vocab_size)
        out = "decoder_ff_logit_out"
        if config.tied_embeddings in ("source-target", "none"):
            if f"{out}_W" in self._tensors:  # as older versions have it
                self._table("output", f"{out}_W", config.vocab_size, transposed=True)
            else:
                self._table("output", f"{out}_Wt", config.vocab_size)
        bias = torch.zeros(config.vocab_size - 1)
        if self._layout.output_bias:
            bias = self._tensors.take(f"{out}_b", torch.flatten)
        self._weights["output.bias"] = torch.cat((bias, torch.tensor([_NEVER])))

    def _table(self, ours: str, theirs: str, rows: int, *, transposed: bool = False) -> None:
        table = self._tensors.take(theirs, _transposed if transposed else lambda tensor: tensor)
        added = table.new_zeros(max(0, rows - len(table)), *table.shape[1:])
        self._weights[f"{ours}.weight"] = torch.cat((table, added))


def _transposed(matrix: Tensor) -> Tensor:
    return matrix.transpose(0, -1)
