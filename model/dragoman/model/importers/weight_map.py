"""Another library's tensors under our names: the parts that every Transformer is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from dragoman.model.importers.tensors import Tensors

Bias = Literal["copied", "zero", "none"]
Tied = Literal["all", "source-target", "target-output", "source-output", "none"]


class WeightMap:
    """Takes tensors and collects weights.

    Attributes:
        weights: By our names, as far as they are collected.
    """

    def __init__(self, tensors: Tensors) -> None:
        """Begin with none."""
        self.weights: dict[str, Tensor] = {}
        self.tensors = tensors

    def copy(self, ours: str, theirs: str, change: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> None:
        """Take one tensor, changed."""
        self.weights[ours] = self.tensors.take(theirs, change)

    def affine(self, ours: str, theirs: str, bias: Bias = "copied") -> None:
        """Take weight and bias of a projection or a norm.

        Args:
            ours: Name without ".weight".
            theirs: Likewise.
            bias: "copied"; or "zero" where they have none but we do; or "none" where neither has one.
        """
        self.copy(f"{ours}.weight", f"{theirs}.weight")
        if bias == "copied":
            self.copy(f"{ours}.bias", f"{theirs}.bias")
        elif bias == "zero":
            self.weights[f"{ours}.bias"] = torch.zeros(len(self.weights[f"{ours}.weight"]))

    def attention(self, ours: str, theirs: Sequence[str], bias: Bias = "copied") -> None:
        """Take the projections of queries, keys, values and the output, in this order."""
        for name, projection in zip(("query", "key", "value", "output"), theirs, strict=True):
            self.affine(f"{ours}.{name}", projection, bias)

    def fused(self, ours: str, theirs: str, kind: str) -> None:
        """Take the projections of queries, keys and values, which are one tensor, [3 E, E] or [3 E].

        Args:
            ours: Name of the attention layer.
            theirs: Name of the tensor.
            kind: "weight" or "bias".
        """
        parts = self.tensors.take(theirs).chunk(3)
        if len(parts) == 3:  # fewer if it is missing, which is reported later
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                self.weights[f"{ours}.{name}.{kind}"] = part.contiguous()

    def tables(self, source: Tensor, target: Tensor, output: Tensor) -> Tied:
        """Put in the matrices of both embeddings and of the output; equal ones once.

        Args:
            source: [V_source, E].
            target: [V, E].
            output: [V, E].

        Returns:
            Which of them are one.
        """
        same_input, same_target, same_source = _same(source, target), _same(target, output), _same(source, output)
        self.weights["embedding.tokens.weight"] = source
        if same_input and same_target:
            return "all"
        if not same_input:
            self.weights["target_embedding.tokens.weight"] = target
        if same_target:
            return "target-output"
        if same_source:
            return "source-output"
        self.weights["output.weight"] = output
        return "source-target" if same_input else "none"


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)
