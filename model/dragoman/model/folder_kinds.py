"""What a folder or file is that is not what a command wants, and which command wants it; where nothing may be written.

Standard library only.

Looks at names, and into config.json; a guess that is wrong costs one sentence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TRAINED = "a checkpoint is the --out folder of `dragoman train`, or what `dragoman import ... --checkpoint` saves"
_MANIFEST = "manifest.json"
_CHECKPOINT = re.compile(r"checkpoint-\d{8}")
_BUNDLE_GRAPHS = frozenset({"encoder.onnx", "decoder.onnx"})
_OPTIMUM_GRAPHS = frozenset({"encoder_model.onnx", "decoder_model.onnx", "decoder_model_merged.onnx"})
_WEIGHTS = (".pt", ".pth", ".ckpt", ".safetensors", ".bin")


def no_bundle(path: Path) -> str:
    """Return what an existing path without a manifest is, and how to get a bundle: one sentence without its subject."""
    if not path.is_dir():
        if (path.parent / _MANIFEST).exists():
            return f"is one file of a bundle; give the folder {path.parent}"
        if "format_version" in _read_settings(path.parent):
            return f"is one file of a checkpoint; {_exported(path.parent)}"
        return next(_kinds(path.parent, {path.name}, path), f"is a file, and a bundle is a folder with {_MANIFEST}")
    saved = [settings.parent for settings in path.glob("checkpoint-*/config.json")]
    folder = max(saved) if saved and not (path / "config.json").exists() else path
    names = {entry.name for entry in folder.iterdir()}
    if "format_version" in _read_settings(folder) and "model.safetensors" in names:
        return f"holds a checkpoint; {_exported(path)}"
    nothing = f"has no {_MANIFEST}" if names else "is empty"
    return next(_kinds(folder, names, folder), f"{nothing}; `dragoman export` and `dragoman import` write bundles")


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


def replaced_as_a_whole(folder: Path) -> str:
    """Return why a folder is no place for anything else, a sentence without its end, or ""."""
    if _has_files(folder, _MANIFEST, *_BUNDLE_GRAPHS):
        kind = "a bundle"
    elif is_ctranslate2_model(folder):
        kind = "a model of CTranslate2"
    elif _CHECKPOINT.fullmatch(folder.name) and _has_files(folder, "config.json"):
        kind = "a checkpoint"
    else:
        return ""
    return f"{folder} is {kind}, which is replaced or deleted as a whole, with all that lies in it"


def is_ctranslate2_model(folder: Path) -> bool:
    """Whether a folder holds a model of CTranslate2."""
    return _has_files(folder, "model.bin", "config.json")


def _has_files(folder: Path, *names: str) -> bool:
    return all((folder / name).is_file() for name in names)


def _kinds(folder: Path, names: set[str], given: Path) -> Iterator[str]:
    """Yield what files of these names are, the surest first."""

    def has(*suffixes: str) -> bool:
        return any(name.endswith(suffixes) for name in names)

    settings = _read_settings(folder) if "config.json" in names else {}
    if {_MANIFEST, "encoder.onnx"} <= names:
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
            "checkpoint that it was converted from, or `dragoman export` if that is one of Dragoman"
        )
    if has(".onnx") and not has(*_WEIGHTS):
        yield _graphs(names)
    if "model_type" in settings or "architectures" in settings:
        yield _foreign("a checkpoint of Hugging Face", "hf", given)
    if "snapshots" in names and "refs" in names:
        yield _foreign("a model in the cache of Hugging Face", "hf", given / "snapshots" / "...")
    if has(".ckpt") and has("config.yaml", "_vocab.txt"):
        yield _foreign("a model of JoeyNMT", "joeynmt", given)
    if has(".pt") and any(name.startswith("dict.") for name in names):
        yield _foreign("a checkpoint of fairseq", "fairseq", given)
    if has(*_WEIGHTS):
        yield (
            "holds weights of something else and no checkpoint of Dragoman; `dragoman import --help` lists the "
            "libraries whose checkpoints can be read"
        )
    if "log.jsonl" in names:
        yield "is a training run that has not saved a checkpoint yet; let `dragoman train` go on"


def _graphs(names: set[str]) -> str:
    """Return what ONNX graphs of these names are, which lie beside no weights."""
    other = (
        "which cannot be served: a bundle's have other inputs. Run `dragoman import` on the checkpoint that they were "
        "made from, for one of Hugging Face: `dragoman import hf CHECKPOINT -o BUNDLE`"
    )
    if names >= _BUNDLE_GRAPHS:
        return (
            f"has graphs named like a bundle's, but no {_MANIFEST}: copy the bundle again from where it is whole, or "
            f"export it again. Or they are of another program, {other}"
        )
    return f"holds ONNX graphs of {'Optimum' if names & _OPTIMUM_GRAPHS else 'another program'}, {other}"


def _exported(path: Path) -> str:
    return f"`dragoman export --checkpoint {path} --out BUNDLE` makes a bundle of it"


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
