"""The mean of several checkpoints of one run (paper, 6.1: the last 5 for base, 20 for big)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from dragoman.model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from dragoman.model.errors import CheckpointError


def average_checkpoints(folders: Sequence[Path], out: Path) -> Path:
    """Write a checkpoint with the mean of all weights; it can be evaluated and exported, not trained on.

    Args:
        folders: Checkpoints of the same model and tokenizer.
        out: Folder for the result, in the layout of a run.

    Returns:
        The new checkpoint's folder.

    Raises:
        CheckpointError: There are none, they do not belong together, or `out` holds checkpoints.
    """
    if not folders:
        raise CheckpointError("there is no checkpoint to average; train with keep_checkpoints above 1")
    if any(out.glob("checkpoint-*")):
        raise CheckpointError(f"{out} holds checkpoints already; choose another folder")
    first = load_checkpoint(folders[0])
    weights = first.model.state_dict()
    sums = {name: tensor.double() for name, tensor in weights.items()}
    newest = first
    for folder in folders[1:]:
        other = load_checkpoint(folder)
        _check_same(first, other)
        newest = other if other.step > newest.step else newest
        for name, tensor in other.model.state_dict().items():
            sums[name] += tensor
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(sums[name] / len(folders))
    return save_checkpoint(
        out,
        first.model,
        first.tokenizer,
        languages=(first.source_language, first.target_language),
        step=newest.step,
        several=first.languages,
        trained_with=newest.trained_with,
    )


def _check_same(one: Checkpoint, other: Checkpoint) -> None:
    if one.model.config != other.model.config or one.tokenizer.files() != other.tokenizer.files():
        raise CheckpointError(
            f"{one.path} and {other.path} do not belong together: their configuration or their tokenizer differs"
        )
