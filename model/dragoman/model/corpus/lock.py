"""Keep two runs from using one folder at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman.model.corpus.errors import FolderBusyError
from dragoman.model.folder_lock import FolderInUse, hold_folder


@contextmanager
def locked(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Hold a folder until the end of the `with` block.

    Args:
        folder: Folder to hold; created if missing.
        name: Name of the lock file.

    Raises:
        FolderBusyError: Another run holds the folder.
    """
    try:
        with hold_folder(folder, name):
            yield
    except FolderInUse as error:
        raise FolderBusyError(
            f"{folder} is in use by another corpus run (process {error.holder}); "
            "wait for it to end, or choose another folder with --work or --out"
        ) from None
