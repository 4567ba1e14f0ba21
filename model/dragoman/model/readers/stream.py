"""Bytes of a file, decompressed if its name ends in .gz."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

STREAM_ERRORS = (OSError, EOFError, zlib.error)
"""What opening and reading a stream can raise; `stream_reason` says it in words."""


@contextmanager
def open_stream(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading bytes.

    Raises:
        OSError: The file cannot be read, or is no gzip data although its name says so.
    """
    if path.suffix.lower() == ".gz":
        with gzip.open(path, "rb") as stream:
            yield cast(BinaryIO, stream)
    else:
        with path.open("rb") as file:
            yield file


def stream_reason(error: Exception) -> str:
    """Say what one of `STREAM_ERRORS` means and what to do."""
    if isinstance(error, EOFError):
        return "the compressed data ends too early (truncated gzip); copy or compress the file again"
    if isinstance(error, gzip.BadGzipFile) and str(error).startswith("Not a gzipped file"):
        return "no gzip data, although the name ends in .gz; rename or compress the file"
    if isinstance(error, gzip.BadGzipFile | zlib.error):
        return f"the compressed data is damaged ({error}); copy or compress the file again"
    return f"cannot be read: {getattr(error, 'strerror', None) or error}"
