"""Puts a folder in place whole or not at all, whenever the process ends.

What is written lies in a scratch folder beside the goal until it is complete and on the disk. Then one
system call gives it its name. An existing folder changes places with it in that same call, so that there is
never a moment without one; where the file system cannot do that (NFS, some FUSE ones; Linux, ext4, XFS,
Btrfs, tmpfs and overlayfs can), there is such a moment of two renames, and the next run puts the old folder
back if the process ended in it.

A scratch folder is locked while its process lives. Those that nobody holds are what killed processes left,
and the next run for the same goal deletes them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_REPLACED = "replaced"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# What renameat2 says where it, or the exchange, does not exist.
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


@contextlib.contextmanager
def scratch_beside(goal: Path) -> Iterator[Path]:
    """Yield an empty folder on the file system of `goal`; it and what earlier runs left are deleted.

    Args:
        goal: Absolute path of the folder that is going to be written; its parent is created.
    """
    goal.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{goal.name}.partial-"
    with _locked(goal.parent, wait=True):  # nobody may take a new folder for one that was left
        for left in goal.parent.iterdir():
            if left.name.startswith(prefix):
                _sweep(left, goal)
        scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=goal.parent))
        lock = contextlib.ExitStack()
        lock.enter_context(_locked(scratch, wait=True))
    with lock:
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def put_in_place(folder: Path, goal: Path, scratch: Path) -> None:
    """Make a complete folder the one at `goal`, replacing what is there.

    Args:
        folder: In `scratch`.
        goal: Where it shall be.
        scratch: Takes what is replaced.

    Raises:
        OSError: The disk refused; `goal` is as it was.
    """
    _flush(folder)
    try:
        os.rename(folder, goal)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        _replace(folder, goal, scratch)
    _flush_names(goal.parent)


def _replace(folder: Path, goal: Path, scratch: Path) -> None:
    if _exchange(folder, goal):
        return
    os.rename(goal, scratch / _REPLACED)
    os.rename(folder, goal)
    os.rename(scratch / _REPLACED, folder)  # under another name it is not put back any more


def _sweep(left: Path, goal: Path) -> None:
    """Delete what a killed run left, and put back what it had taken away."""
    with contextlib.suppress(FileNotFoundError), _locked(left, wait=False) as held:
        if not held:
            return
        if (left / _REPLACED).exists() and not goal.exists():
            os.rename(left / _REPLACED, goal)
        shutil.rmtree(left, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change names in one step; False where that cannot be done."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(other))


def _flush(folder: Path) -> None:
    """Wait until files and names are on the disk: a name must not survive a power cut that its content does not."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    _flush_names(folder)


def _flush_names(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # not every file system can do it for folders
            os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _locked(folder: Path, *, wait: bool) -> Iterator[bool]:
    """Hold a folder; yields whether that worked. The kernel lets go when the process ends, however it ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            held = True
        except OSError:  # held by another, or a file system without locks: then nothing is ever swept
            held = False
        yield held
    finally:
        os.close(handle)
