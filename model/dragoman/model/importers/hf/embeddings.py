"""The three matrices over a vocabulary, of source, target and output: which of them are one.

transformers shares those that its settings call tied, unless a checkpoint holds different ones; it saves those that
are one under any of their names, or under all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from dragoman.model.importers.tensors import Tensors

Tied = Literal["all", "source-target", "target-output", "source-output", "none"]


def take_embeddings(
    tensors: Tensors, source: str, target: str, output: str, shared: Sequence[str] = (), *, lend_output: bool = True
) -> tuple[Tied, dict[str, Tensor]]:
    """Take the matrices.

    Args:
        tensors: Of the checkpoint.
        source: Name of the source's matrix.
        target: Name of the target's matrix.
        output: Name of the output's matrix.
        shared: Where source and target come from if they are not there.
        lend_output: The output's matrix is the target's, if it is not there itself.

    Returns:
        `ModelConfig.tied_embeddings`, and the weights by our names, each once.
    """
    held = {name: tensors.take(name) for name in (*shared, source, target, output) if name in tensors}
    spare = next(iter(held.values()), tensors.take(shared[0]) if not held else None) if shared else None

    def find(name: str, fallback: Tensor | None) -> Tensor:
        if name in held:
            return held[name]
        return tensors.take(name) if fallback is None else fallback  # the former notes that it is missing

    one, two = find(source, spare), find(target, spare)
    three = find(output, two if lend_output else None)
    tied = _tied(one, two, three)
    weights = {"embedding.tokens.weight": one}
    if tied not in ("all", "source-target"):
        weights["target_embedding.tokens.weight"] = two
    if tied in ("source-target", "none"):
        weights["output.weight"] = three
    return tied, weights


def _tied(source: Tensor, target: Tensor, output: Tensor) -> Tied:
    if torch.equal(source, target):
        return "all" if torch.equal(target, output) else "source-target"
    if torch.equal(target, output):
        return "target-output"
    return "source-output" if torch.equal(source, output) else "none"
