"""What a folder or file is that is not what a command wants, and which command wants it. Standard library only.

Looks at names, and into config.json; a guess that is wrong costs one sentence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TRAINED = "a checkpoint is the --out folder of `dragoman train`, or what `dragoman import ... --checkpoint` saves"


def no_bundle(path: Path) -> str:
    """Return what an existing path is, if not a bundle, and how to make one: one sentence, or "" if it is unknown."""
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else {path.name}
    if "format_version" in _read_settings(path) or any(name.startswith("checkpoint-") for name in names):
        return f"it holds a checkpoint; `dragoman export --checkpoint {path} --out BUNDLE` makes a bundle of it"
    found = next(_kinds(path if path.is_dir() else path.parent, names, path), "")
    return f"it {found}" if found.startswith("is ") else ""


def what_it_is(path: Path) -> str:
    """Return what a path is, if not a checkpoint of ours, and what to do with it: one sentence without its subject."""
    if not path.exists():
        return f"does not exist; {_TRAINED}"
    if not path.is_dir():
        if "format_version" in _read_settings(path.parent):
            return f"is one file of a checkpoint; give the folder {path.parent}"
        return next(_kinds(path.parent, {path.name}, path), f"is no folder; {_TRAINED}")
    names = {entry.name for entry in path.iterdir()}
    if not names:
        return f"holds no checkpoint, it is empty; {_TRAINED}"
    return next(_kinds(path, names, path), f"holds no checkpoint; {_TRAINED}")


def _kinds(folder: Path, names: set[str], given: Path) -> Iterator[str]:
    """Yield what files of these names are, the surest first."""

    def has(*suffixes: str) -> bool:
        return any(name.endswith(suffixes) for name in names)

    settings = _read_settings(folder) if "config.json" in names else {}
    if {"manifest.json", "encoder.onnx"} <= names:
        yield (
            "is a bundle, written by `dragoman export` or `dragoman import`: `dragoman serve --model`, `inspect` and "
            f"`evaluate --bundle` take it; {_TRAINED}"
        )
    if "format_version" in settings and "model.safetensors" not in names:
        yield "is a checkpoint without its weights, model.safetensors; copy it again from where it is whole"
    if has(".npz"):
        yield _foreign("a model of Marian", "marian", given)
    if any(".intgemm" in name for name in names) or any(name.startswith("lex.") for name in names):
        yield _foreign("a model of Bergamot", "bergamot", given)
    if "model.bin" in names and "model_type" not in settings:
        yield (
            "is a model of CTranslate2, which does not go back into a checkpoint; run `dragoman import` on the "
            "checkpoint that it was converted from"
        )
    if "model_type" in settings or "architectures" in settings:
        yield _foreign("a checkpoint of Hugging Face", "hf", given)
    if "snapshots" in names and "refs" in names:
        yield _foreign("a model in the cache of Hugging Face", "hf", given / "snapshots" / "...")
    if has(".ckpt") and has("config.yaml", "_vocab.txt"):
        yield _foreign("a model of JoeyNMT", "joeynmt", given)
    if has(".pt") and any(name.startswith("dict.") for name in names):
        yield _foreign("a checkpoint of fairseq", "fairseq", given)
    if has(".pt", ".pth", ".ckpt", ".safetensors", ".bin"):
        yield (
            "holds no checkpoint of Dragoman, but weights of something else; `dragoman import --help` lists the "
            "libraries whose checkpoints can be read"
        )
    if "log.jsonl" in names:
        yield "is a training run that has not saved a checkpoint yet; let `dragoman train` go on"


def _foreign(what: str, name: str, path: Path) -> str:
    return (
        f"is {what}: `dragoman import {name} {path} -o BUNDLE` makes a bundle of it, --checkpoint FOLDER a checkpoint"
    )


def _read_settings(folder: Path) -> dict[str, Any]:
    try:
        settings = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}
