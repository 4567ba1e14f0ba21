"""Which file a path means."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dragoman.model.errors import ImportFailed


def find_model_file(path: Path, patterns: Sequence[str]) -> Path:
    """Return the model file that a path means.

    Args:
        path: The file itself, or its folder.
        patterns: Names that it may have in a folder, the best first.

    Raises:
        ImportFailed: There is none, or more than one of the first pattern that fits.
    """
    if not path.is_dir():
        if not path.exists():
            raise ImportFailed(f"{path}: there is no such file")
        return path
    for pattern in patterns:
        found = sorted(path.glob(pattern))
        if len(found) == 1:
            return found[0]
        if found:
            raise ImportFailed(f"{path}: has {len(found)} models, name one: {', '.join(f.name for f in found)}")
    raise ImportFailed(f"{path}: has no model; looked for {' and '.join(patterns)}")
