"""Keep two commands from using one folder at the same time. Standard library only."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_WITHOUT_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


class FolderInUse(Exception):
    """Another process holds the folder.

    Attributes:
        holder: Its process id, or "unknown".
    """

    def __init__(self, holder: str) -> None:
        """Keep the process id."""
        super().__init__(f"in use by process {holder}")
        self.holder = holder


@contextmanager
def hold_folder(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Hold a folder until the end of the `with` block.

    The lock file stays: deleting it would let a third process lock a new file while a second one still
    waits on the old. The kernel releases the lock when the process ends, however it ends. A file system
    that has no locks protects from nothing.

    Args:
        folder: Folder to hold; created if missing.
        name: Name of the lock file.

    Raises:
        FolderInUse: Another process holds the folder.
        OSError: The folder cannot be created or written into.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("a+", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            raise FolderInUse(handle.read().strip() or "unknown") from None
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        yield
