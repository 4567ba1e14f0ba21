"""Checkpoints: one folder with weights, configuration, tokenizer and training state.

A folder is written under a temporary name and renamed when complete, so a checkpoint either exists
whole or not at all; the previous one is deleted only after that. Weights are safetensors and the
training state is loaded with `weights_only=True`: no checkpoint can run code.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from dragoman.model.config import ModelConfig
from dragoman.model.errors import CheckpointError
from dragoman.model.tokenizer import Tokenizer
from dragoman.model.transformer import Transformer

FORMAT_VERSION = 1
LOG = "log.jsonl"
_PREFIX = "checkpoint-"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint.

    Attributes:
        path: Its folder.
        model: In evaluation mode.
        tokenizer: The one it was trained with.
        source_language: BCP-47 tag.
        target_language: BCP-47 tag.
        step: Updates done.
    """

    path: Path
    model: Transformer
    tokenizer: Tokenizer
    source_language: str
    target_language: str
    step: int


def save_checkpoint(
    run: Path,
    model: Transformer,
    tokenizer: Tokenizer,
    *,
    languages: tuple[str, str],
    step: int,
    training_state: dict[str, Any],
) -> Path:
    """Write `run/checkpoint-<step>` and delete older ones; a step that is saved already is left alone.

    Raises:
        CheckpointError: The disk refused; older checkpoints are untouched.
    """
    target = run / f"{_PREFIX}{step:08d}"
    temporary = run / f".{target.name}.partial"
    if target.exists():
        return target
    meta = {
        "format_version": FORMAT_VERSION,
        "model": model.config.to_dict(),
        "source_language": languages[0],
        "target_language": languages[1],
        "step": step,
    }
    try:
        for stale in run.glob(f".{_PREFIX}*.partial"):
            shutil.rmtree(stale, ignore_errors=True)
        temporary.mkdir(parents=True)
        weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
        safetensors.torch.save_file(weights, temporary / "model.safetensors")
        (temporary / "tokenizer.model").write_bytes(tokenizer.model)
        (temporary / "config.json").write_text(json.dumps(meta, indent=2) + "\n", "utf-8")
        torch.save(training_state, temporary / "training.pt")
        os.replace(temporary, target)
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(f"cannot write {target}: {error}; earlier checkpoints are unchanged") from error
    for old in _checkpoints(run):
        if old != target:
            shutil.rmtree(old, ignore_errors=True)
    return target


def delete_run(run: Path) -> None:
    """Delete what training wrote into a run folder, and nothing else that may lie there."""
    for folder in (*_checkpoints(run), *run.glob(f".{_PREFIX}*.partial")):
        shutil.rmtree(folder)
    (run / LOG).unlink(missing_ok=True)


def latest_checkpoint(run: Path) -> Path | None:
    """Return the newest checkpoint folder of a training run, or None."""
    found = _checkpoints(run)
    return found[-1] if found else None


def load_checkpoint(path: Path) -> Checkpoint:
    """Load a checkpoint folder, or the newest one of a training run.

    Raises:
        CheckpointError: Nothing usable there; says what is wrong.
    """
    folder = path if (path / "config.json").exists() else latest_checkpoint(path)
    if folder is None:
        raise CheckpointError(f"{path} holds no checkpoint; give the --out folder of `dragoman train`")
    try:
        meta = json.loads((folder / "config.json").read_text("utf-8"))
        if meta["format_version"] != FORMAT_VERSION:
            raise CheckpointError(
                f"{folder} has checkpoint format {meta['format_version']}; this version reads {FORMAT_VERSION}"
            )
        model = Transformer(ModelConfig.from_dict(meta["model"]))
        weights = safetensors.torch.load_file(folder / "model.safetensors")
        tokenizer = Tokenizer.load(folder / "tokenizer.model")
    except (OSError, KeyError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"cannot read the checkpoint {folder}: {error}") from error
    missing, surplus = model.load_state_dict(weights, strict=False)
    if missing or surplus:
        raise CheckpointError(f"{folder}: missing tensors {missing}, surplus tensors {surplus}")
    return Checkpoint(folder, model.eval(), tokenizer, meta["source_language"], meta["target_language"], meta["step"])


def load_training_state(folder: Path) -> dict[str, Any]:
    """Load what `save_checkpoint` was given as `training_state`."""
    try:
        state: dict[str, Any] = torch.load(folder / "training.pt", weights_only=True)
    except (OSError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"cannot read the training state of {folder}: {error}") from error
    return state


def _checkpoints(run: Path) -> list[Path]:
    return sorted(p for p in run.glob(f"{_PREFIX}*") if (p / "config.json").exists())
