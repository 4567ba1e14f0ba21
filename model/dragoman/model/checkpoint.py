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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from dragoman.model.config import ModelConfig
from dragoman.model.errors import CheckpointError, ConfigError
from dragoman.model.folder_kinds import replaced_as_a_whole, what_it_is
from dragoman.model.languages import Languages
from dragoman.model.tokenizers import Tokenizer, describe_tokenizer, load_tokenizer
from dragoman.model.transformer import Transformer
from dragoman.model.vocab import SPECIAL_IDS, SpecialIds

FORMAT_VERSION = 1
LOG = "log.jsonl"
_PREFIX = "checkpoint-"
_WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A loaded checkpoint.

    Attributes:
        path: Its folder.
        model: In evaluation mode.
        tokenizer: The one it was trained with.
        source_language: BCP-47 tag; of a model of several languages, what callers get who name none, or "".
        target_language: BCP-47 tag, likewise.
        step: Updates done.
        languages: Of a model of several languages; None for one pair.
        trained_with: Settings of the training, see `run_settings`; empty if they are not known.
    """

    path: Path
    model: Transformer
    tokenizer: Tokenizer
    source_language: str
    target_language: str
    step: int
    languages: Languages | None = None
    trained_with: dict[str, Any] = field(default_factory=dict)


def require_run_folder(run: Path, flag: str) -> None:
    """Refuse a folder where a run would be lost together with what is there already.

    Args:
        run: Folder that checkpoints are going to be saved into.
        flag: That names it.

    Raises:
        CheckpointError: It is, or lies in, a folder that other commands replace or delete as a whole.
    """
    place = run.resolve()
    for folder in (place, *place.parents):
        if reason := replaced_as_a_whole(folder):
            raise CheckpointError(
                f"cannot save checkpoints into {run}: {reason}; choose another {flag}, such as "
                f"{folder.with_name(f'{folder.name}.run')}"
            )


def save_checkpoint(
    run: Path,
    model: Transformer,
    tokenizer: Tokenizer,
    *,
    languages: tuple[str, str],
    step: int,
    training_state: dict[str, Any] | None = None,
    keep: int = 1,
    best: bool = True,
    several: Languages | None = None,
    trained_with: dict[str, Any] | None = None,
) -> Path:
    """Write `run/checkpoint-<step>` and delete older ones; a step that is saved already is left alone.

    Args:
        run: Folder of the training run.
        model: Its weights and configuration are saved.
        tokenizer: Saved beside them.
        languages: BCP-47 tags of source and target.
        step: Updates done.
        training_state: What a resumed run needs besides the weights; None for one that is not trained on.
        keep: How many of the newest stay.
        best: This one is the best of the run so far, by its validation score: it stays until there is a better one.
        several: Of a model of several languages.
        trained_with: Settings to be kept beside the weights, JSON-ready.

    Returns:
        The folder.

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
        "best": best,
    }
    if description := describe_tokenizer(tokenizer):
        meta["tokenizer"] = description
    if description or tokenizer.special != SPECIAL_IDS:
        meta["special"] = tokenizer.special.to_dict()
    if several is not None:
        meta["languages"] = several.to_dict()
    if trained_with:
        meta["trained_with"] = trained_with
    try:
        for stale in run.glob(f".{_PREFIX}*.partial"):
            shutil.rmtree(stale, ignore_errors=True)
        temporary.mkdir(parents=True)
        weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
        safetensors.torch.save_file(weights, temporary / _WEIGHTS)
        for name, content in tokenizer.files().items():
            (temporary / name).write_bytes(content)
        (temporary / "config.json").write_text(json.dumps(meta, indent=2) + "\n", "utf-8")
        if training_state is not None:
            torch.save(training_state, temporary / "training.pt")
        os.replace(temporary, target)
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        kept = "; earlier checkpoints are unchanged" if checkpoints(run) else ""
        raise CheckpointError(f"cannot write {target}: {error}{kept}") from error
    found = checkpoints(run)
    for old in set(found[:-keep]) - {best_checkpoint(run)}:
        shutil.rmtree(old, ignore_errors=True)
    return target


def delete_run(run: Path) -> None:
    """Delete what training wrote into a run folder, and nothing else that may lie there."""
    for folder in (*checkpoints(run), *run.glob(f".{_PREFIX}*.partial")):
        shutil.rmtree(folder)
    for file in (LOG, *(f"{name}.{suffix}" for name in ("curves", "attention") for suffix in ("png", "svg"))):
        (run / file).unlink(missing_ok=True)
    shutil.rmtree(run / "tensorboard", ignore_errors=True)


def forget_log_behind(run: Path, step: int) -> None:
    """Delete the log's entries of updates behind `step`: a killed run that goes on makes them again."""
    try:
        lines = (run / LOG).read_text("utf-8").splitlines()
    except FileNotFoundError:
        return
    kept = []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:  # cut by the kill
            continue
        if entry["step"] <= step:
            kept.append(f"{line}\n")
    (run / LOG).write_text("".join(kept), "utf-8")


def latest_checkpoint(run: Path) -> Path | None:
    """Return the newest checkpoint folder of a training run, or None."""
    found = checkpoints(run)
    return found[-1] if found else None


def best_checkpoint(run: Path) -> Path | None:
    """Return the newest checkpoint that was the best when it was written, else the newest, or None."""
    found = checkpoints(run)
    return next((folder for folder in reversed(found) if _meta(folder).get("best", True)), found[-1] if found else None)


def load_checkpoint(path: Path) -> Checkpoint:
    """Load a checkpoint folder, or the best one of a training run.

    Raises:
        CheckpointError: Nothing usable there; says what is wrong.
    """
    folder = path if (path / "config.json").exists() else best_checkpoint(path)
    if folder is None:
        raise CheckpointError(f"{path} {what_it_is(path)}")
    meta = _meta(folder)
    if "format_version" not in meta or not (folder / _WEIGHTS).is_file():
        raise CheckpointError(f"{folder} {what_it_is(folder)}")
    try:
        if meta["format_version"] != FORMAT_VERSION:
            raise CheckpointError(
                f"{folder} has checkpoint format {meta['format_version']}; this version reads {FORMAT_VERSION}"
            )
        model = Transformer(ModelConfig.from_dict(meta["model"]))
        weights = safetensors.torch.load_file(folder / _WEIGHTS)
        special = SpecialIds.from_dict(meta["special"]) if "special" in meta else SPECIAL_IDS
        tokenizer = load_tokenizer(folder, meta.get("tokenizer", {}), special)
        languages = Languages.from_dict(meta["languages"]) if "languages" in meta else None
        known = meta["source_language"], meta["target_language"], meta["step"]
    except KeyError as error:
        raise CheckpointError(f"cannot read the checkpoint {folder}: its config.json has no {error}") from error
    except (
        OSError,
        ConfigError,
        TypeError,
        AttributeError,
        ValueError,
        RuntimeError,
        safetensors.SafetensorError,
    ) as error:
        raise CheckpointError(f"cannot read the checkpoint {folder}: {error}") from error
    try:
        missing, surplus = model.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        text = f"{folder}: {_WEIGHTS} and config.json are not of the same model: {error}"
        raise CheckpointError(text) from error
    if missing or surplus:
        raise CheckpointError(f"{folder}: missing tensors {missing}, surplus tensors {surplus}")
    return Checkpoint(
        folder,
        model.eval(),
        tokenizer,
        *known,
        languages,
        meta.get("trained_with", {}),
    )


def load_training_state(folder: Path) -> dict[str, Any]:
    """Load what `save_checkpoint` was given as `training_state`.

    Raises:
        CheckpointError: There is none, or it is damaged.
    """
    if not (folder / "training.pt").exists():
        raise CheckpointError(f"{folder} has no training state: it can be evaluated and exported, not trained on")
    try:
        state: dict[str, Any] = torch.load(folder / "training.pt", map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"cannot read the training state of {folder}: {error}") from error
    return state


def _meta(folder: Path) -> dict[str, Any]:
    try:
        meta = json.loads((folder / "config.json").read_text("utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot read the checkpoint {folder}: config.json: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"cannot read the checkpoint {folder}: config.json is damaged: {error}") from error
    if not isinstance(meta, dict):
        raise CheckpointError(f"cannot read the checkpoint {folder}: config.json holds no JSON object")
    return meta


def checkpoints(run: Path) -> list[Path]:
    """Return the checkpoint folders of a training run, oldest first."""
    return sorted(p for p in run.glob(f"{_PREFIX}*") if (p / "config.json").exists())
