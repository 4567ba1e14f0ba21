"""Lines of a text file, one at a time, with their numbers.

A line ends at a line feed only: U+2028 and its kin are white space inside a text. A byte order mark and
carriage returns are dropped.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dragoman.model.readers.record import MAX_RECORD_BYTES, Problem
from dragoman.model.readers.stream import STREAM_ERRORS, open_stream, stream_reason

# What people hand over by mistake; each would otherwise be reported as a thousand bad lines.
_SIGNATURES = (
    (b"\x1f\x8b", "gzip data; let the file's name end in .gz"),
    (codecs.BOM_UTF16_LE, "UTF-16 text; convert it to UTF-8"),
    (codecs.BOM_UTF16_BE, "UTF-16 text; convert it to UTF-8"),
    (b"PK\x03\x04", "a zip archive or a spreadsheet; unpack it or export it as text"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text.

    Attributes:
        number: From 1.
        text: Without the line end.
    """

    number: int
    text: str


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[Line | Problem]:
    """Yield a line, or what is wrong with it, for each line of a file.

    Args:
        path: Text file, compressed if its name ends in .gz.
        encoding: A codec in which a line feed is the byte 0x0A.
    """
    number = offset = 0
    try:
        with open_stream(path) as stream:
            while raw := stream.readline(MAX_RECORD_BYTES + 1):
                number += 1
                if number == 1 and (kind := next((k for start, k in _SIGNATURES if raw.startswith(start)), "")):
                    yield Problem(path, "", kind, final=True)
                    return
                if len(raw) > MAX_RECORD_BYTES and not raw.endswith(b"\n"):
                    size = len(raw) + _skip_line(stream)
                    yield Problem(path, f"line {number}", f"{size:,} bytes; at most {MAX_RECORD_BYTES:,} are allowed")
                else:
                    size = len(raw)
                    yield _decode(path, number, raw, encoding, offset)
                offset += size
    except STREAM_ERRORS as error:
        yield Problem(path, f"line {number + 1}", stream_reason(error), final=True)


def encoding_reason(data: bytes, error: UnicodeError, encoding: str, offset: int = 0) -> str:
    """Say which byte cannot be decoded.

    Args:
        data: What was decoded.
        error: What decoding raised.
        encoding: Name of the codec.
        offset: Of `data` in the (decompressed) file, in bytes.
    """
    start = error.start if isinstance(error, UnicodeDecodeError) else 0
    return f"not {encoding.upper()}: byte 0x{data[start]:02x} at offset {offset + start} of the file"


def _decode(path: Path, number: int, raw: bytes, encoding: str, offset: int) -> Line | Problem:
    try:
        text = raw.decode(encoding)
    except UnicodeError as error:
        return Problem(path, f"line {number}", encoding_reason(raw, error, encoding, offset))
    if "\0" in text:
        return Problem(path, f"line {number}", "holds a zero byte; text is expected, not binary data or UTF-16")
    if number == 1:
        text = text.removeprefix("\ufeff")
    return Line(number, text.rstrip("\r\n"))


def _skip_line(stream: BinaryIO) -> int:
    """Read to the end of a line without keeping it; return the number of bytes, line end excluded."""
    size = 0
    while part := stream.readline(MAX_RECORD_BYTES):
        size += len(part)
        if part.endswith(b"\n"):
            return size - 1
    return size
