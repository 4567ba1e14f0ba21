"""Keep two runs from using one folder at the same time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dragoman.model.corpus.errors import FolderBusyError


@contextmanager
def locked(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Hold a folder until the end of the `with` block.

    The lock file stays: deleting it would let a third run lock a new file
    while a second one still waits on the old. The kernel releases the lock
    when the process ends, however it ends.

    Args:
        folder: Folder to hold; created if missing.
        name: Name of the lock file.

    Raises:
        FolderBusyError: Another run holds the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    with path.open("a+", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.seek(0)
            holder = handle.read().strip() or "unknown"
            raise FolderBusyError(
                f"{folder} is in use by another corpus run (process {holder}); "
                "wait for it to end, or choose another folder with --work or --out"
            ) from None
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        yield
