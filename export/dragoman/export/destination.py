"""Where a folder may be written, and what to do where it cannot."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from dragoman.export import bundle
from dragoman.export.errors import ExportError
from dragoman.model.folder_kinds import replaced_as_a_whole

_NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NO_FOLDER = (errno.ENOTDIR, errno.EEXIST)
_MOST_NAMED = 3


def require_destination(out: Path, may_be_replaced: Callable[[Path], bool], kind: str) -> None:
    """Refuse a place where writing would destroy something, or would be destroyed.

    Args:
        out: Absolute path of the folder that is going to be written.
        may_be_replaced: Whether an existing folder holds nothing that would be missed.
        kind: What such a folder is, with its article.

    Raises:
        ExportError: Says what is there and what to do.
    """
    for parent in out.parents:
        if parent.exists() and not parent.is_dir():
            raise ExportError(f"cannot write {out}: {parent} is not a folder; choose another --out")
        if reason := replaced_as_a_whole(parent):
            raise ExportError(f"cannot write {out}: {reason}; choose another --out, such as {parent.parent / out.name}")
    if not out.exists():
        return
    if not out.is_dir():
        raise ExportError(f"cannot write {out}: there is a file of that name; choose another --out or remove it")
    names = sorted(path.name for path in out.iterdir())
    if not names or may_be_replaced(out):
        return
    if surplus := _surplus(out, names):
        more = f" and {len(surplus) - _MOST_NAMED} more" if surplus[_MOST_NAMED:] else ""
        raise ExportError(
            f"cannot replace {out}: besides a bundle it holds {', '.join(surplus[:_MOST_NAMED])}{more}, which would be "
            "lost; move that elsewhere or choose another --out"
        )
    raise ExportError(f"{out} exists and is not {kind}; choose another --out or remove it")


@contextlib.contextmanager
def writing(out: Path) -> Iterator[None]:
    """Turn what the system refuses in the block into sentences.

    Args:
        out: What is being written.

    Raises:
        ExportError: Says what to do.
    """
    try:
        yield
    except OSError as error:
        raise ExportError(f"cannot write {out}: {_reason(error, out)}") from error


def _reason(error: OSError, out: Path) -> str:
    where = error.filename or out.parent
    if error.errno in _NO_RIGHT:
        return f"{os.strerror(error.errno)} for {where}; choose a folder that you may write to with --out"
    if error.errno in _NO_ROOM:
        return "the disk is full; make room there or choose another --out. Nothing was replaced"
    if error.errno in _NO_FOLDER:
        return f"{where} is not a folder; choose another --out"
    if error.errno == errno.ENAMETOOLONG:
        return "the name is too long; choose a shorter --out"
    return f"{error.strerror or error} ({where})"


def _surplus(out: Path, names: list[str]) -> list[str]:
    """Return what lies in a whole bundle besides its own files."""
    try:
        manifest = bundle.load_manifest(out)
    except ExportError:
        return []
    return [name for name in names if name not in {bundle.MANIFEST, *manifest.files}]
