"""Pictures of a training run: curves from its log, and where the model looks. Needs matplotlib."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # files, not windows

import torch
from matplotlib.figure import Figure
from torch import Tensor

from dragoman.model.checkpoint import LOG, Checkpoint
from dragoman.model.errors import DataError
from dragoman.model.masks import padding_mask

_CURVES = (
    ("loss (nats per token)", ("train_loss", "validation_loss")),
    ("chrF", ("validation_chrf",)),
    ("learning rate", ("learning_rate",)),
    ("target tokens per second", ("target_tokens_per_second",)),
)


def read_log(run: Path) -> list[dict[str, Any]]:
    """Return the entries of a run's log.

    Raises:
        DataError: There is no log, or it has no entries.
    """
    try:
        entries = [json.loads(line) for line in (run / LOG).read_text("utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the log of {run}: {error}") from error
    if not entries:
        raise DataError(f"{run / LOG} has no entries yet; the first one comes with the first checkpoint")
    return entries


def draw_curves(entries: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw loss, chrF, learning rate and speed over the updates; the suffix of `path` decides the format."""
    drawn = [(label, names) for label, names in _CURVES if any(name in e for e in entries for name in names)]
    figure = Figure(figsize=(8, 2.6 * len(drawn)), layout="constrained")
    for axes, (label, names) in zip(figure.subplots(len(drawn), squeeze=False)[:, 0], drawn, strict=True):
        for name in names:
            points = [(entry["step"], entry[name]) for entry in entries if name in entry]
            if points:
                axes.plot(
                    *zip(*points, strict=True), label=name.replace("_", " "), marker="." if len(points) < 50 else ""
                )
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        if len(names) > 1:
            axes.legend()
    figure.axes[-1].set_xlabel("updates")
    figure.savefig(path)


@torch.inference_mode()
def cross_attention(checkpoint: Checkpoint, source: str, target: str) -> tuple[list[str], list[str], Tensor]:
    """Return where each target token looks in the source.

    Args:
        checkpoint: The model.
        source: Text.
        target: Its translation, read under teacher forcing.

    Returns:
        Source pieces (S), target pieces (T), and the weights [T, S] of the last decoder layer, mean
        over its heads; row t is the step that predicts piece t.
    """
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    source_ids, target_ids = tokenizer.encode(source), tokenizer.encode_target(target)
    mask = padding_mask(torch.tensor([len(source_ids)]), len(source_ids))
    cross = model.encode(torch.tensor([source_ids]), mask)
    seen: list[Tensor] = []
    layer: Any = model.decoder.layers[-1]

    def spy(module: Any, arguments: tuple[Any, ...]) -> None:
        states, keys_values, source_mask = arguments
        seen.append(module.weights(states, keys_values, source_mask))

    with layer.cross_attention.register_forward_pre_hook(spy):
        model.decode(torch.tensor([[tokenizer.special.start, *target_ids[:-1]]]), cross, mask)
    return _pieces(tokenizer, source_ids), _pieces(tokenizer, target_ids), seen[0][0].mean(0)


def draw_attention(pieces: tuple[list[str], list[str]], weights: Tensor, path: Path) -> None:
    """Draw weights [T, S] as a heat map with the pieces of source and target at its sides."""
    source, target = pieces
    figure = Figure(figsize=(1.5 + 0.35 * len(source), 1.5 + 0.3 * len(target)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(weights.numpy(), cmap="viridis", vmin=0, aspect="auto")
    axes.set_xticks(range(len(source)), source, rotation=90)
    axes.set_yticks(range(len(target)), target)
    figure.colorbar(image, ax=axes, label="cross-attention weight")
    figure.savefig(path)


def _pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    # A dollar sign would begin a formula.
    return [tokenizer.piece_bytes(i).decode("utf-8", "replace").replace("$", r"\$") or "</s>" for i in ids]
