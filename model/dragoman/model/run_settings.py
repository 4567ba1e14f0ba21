"""What a run was trained with, as its checkpoints keep it, and what a later start does otherwise.

Settings that decide what a checkpoint is (the model's shape, the languages, how the vocabulary was made)
must stay. The others may change between two starts of a run, but never unnoticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dragoman.model.readers import PairFiles
from dragoman.model.recipe import Recipe

_SAMPLE_BYTES = 1 << 16
# What the other settings of a vocabulary decide; sample_pairs decides no more than which pairs were counted.
_VOCABULARY = ("split_digits", "user_symbols")


def describe_run(recipe: Recipe, data: Mapping[str, PairFiles]) -> dict[str, Any]:
    """Return what checkpoints keep, JSON-ready.

    Args:
        recipe: Of the run.
        data: Its files by what they are for.
    """
    described = {
        "tokenizer": asdict(recipe.tokenizer),
        "training": asdict(recipe.training),
        "data": {name: [_describe_file(path) for path in files.paths] for name, files in data.items()},
    }
    plain: dict[str, Any] = json.loads(json.dumps(described))  # tuples become lists, as they do in a checkpoint
    return plain


def vocabulary_changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what is different about the making of the vocabulary; nothing if it is not known how it was made."""
    old, new = then.get("tokenizer", {}), now["tokenizer"]
    return [change for name in _VOCABULARY if name in old for change in _change(name, old[name], new[name])]


def changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what is different between two starts of a run, in words; nothing if the first one is not known."""
    found = []
    for part in ("tokenizer", "training"):
        old, new = then.get(part, {}), now[part]
        for name in new:
            if name in old:
                found += _change(name, old[name], new[name])
    for name, files in now["data"].items():
        old_files = then.get("data", {}).get(name)
        if old_files is not None and _contents(old_files) != _contents(files):
            found.append(f"the {name} data was {_file_names(old_files)} and is {_file_names(files)}")
    return found


def _change(name: str, old: Any, new: Any) -> list[str]:
    """Return a sentence if a value differs, and for a table one for each entry that does."""
    if isinstance(old, dict) and isinstance(new, dict):
        entries = [(f"{name}.{key}", old.get(key), new.get(key)) for key in {**old, **new}]
        return [change for entry in entries for change in _change(*entry)]
    return [] if old == new else [f"{name} was {_shown(old)} and is {_shown(new)}"]


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)


def _describe_file(path: Path) -> dict[str, Any]:
    """Return where a file is and what tells its content from another's: its size, and a hash of both ends."""
    if not path.is_file():
        return {"path": str(path)}
    size = path.stat().st_size
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(_SAMPLE_BYTES))
        file.seek(max(0, size - _SAMPLE_BYTES))
        digest.update(file.read(_SAMPLE_BYTES))
    return {"path": str(path), "bytes": size, "sha256": digest.hexdigest()[:16]}


def _contents(files: list[dict[str, Any]]) -> list[Any]:
    # A file that was only moved is the same one.
    return [(file.get("bytes"), file.get("sha256")) for file in files]


def _file_names(files: list[dict[str, Any]]) -> str:
    return " and ".join(f"{file['path']} ({file.get('bytes', '?')} bytes)" for file in files)
