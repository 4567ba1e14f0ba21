"""Gettext .mo files: a header of seven numbers, two tables of (length, offset), and the texts.

Read here rather than by polib, which takes a short read at the end of a truncated file for a shorter
text. The format: "The Format of GNU MO Files" in the manual of GNU gettext.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dragoman.model.readers.catalog import MAX_CATALOG_BYTES, charset_of, entry_pairs
from dragoman.model.readers.lines import encoding_reason
from dragoman.model.readers.record import MAX_RECORD_BYTES, Problem, Record
from dragoman.model.readers.stream import STREAM_ERRORS, open_stream, stream_reason

_BYTE_ORDERS = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}
_HEADER_BYTES = 28
_ROW_BYTES = 8
_CHUNK_BYTES = 1 << 20


class _UnusableError(Exception):
    """The file as a whole cannot be used."""


class _Header(NamedTuple):
    order: str
    size: int
    msgids: int
    msgstrs: int


def read_mo(path: Path) -> Iterator[Record]:
    """Yield the pairs of the translated entries."""
    try:
        with open_stream(path) as stream:
            content = _read_at_most(stream, MAX_CATALOG_BYTES + 1)
    except STREAM_ERRORS as error:
        yield Problem(path, "", stream_reason(error), final=True)
        return
    if not content:
        return
    try:
        header = _header(content)
        charset = _charset(content, header)
    except _UnusableError as error:
        yield Problem(path, "", str(error), final=True)
        return
    for i in range(header.size):
        try:
            msgid = _text(content, header.order, header.msgids + i * _ROW_BYTES, charset)
            msgstr = _text(content, header.order, header.msgstrs + i * _ROW_BYTES, charset)
        except ValueError as error:
            yield Problem(path, f"entry {i + 1}", str(error))
            continue
        if msgid:  # the header entry has none
            singular, _, plural = msgid.rpartition("\x04")[2].partition("\0")
            yield from entry_pairs(singular, plural, msgstr.split("\0") if plural else [msgstr])


def _read_at_most(stream: BinaryIO, limit: int) -> bytes:
    """Read so many bytes or to the end; `read(limit)` would allocate the limit first."""
    content = bytearray()
    while len(content) < limit and (part := stream.read(min(_CHUNK_BYTES, limit - len(content)))):
        content += part
    return bytes(content)


def _header(content: bytes) -> _Header:
    """Read the first seven numbers.

    Raises:
        _UnusableError: The file is no .mo file, of another version, too large or truncated.
    """
    if len(content) > MAX_CATALOG_BYTES:
        raise _UnusableError(f"more than {MAX_CATALOG_BYTES:,} bytes; no catalogue is that large")
    order = _BYTE_ORDERS.get(content[:4])
    if order is None:
        raise _UnusableError(f"starts with {content[:4].hex()}; a .mo file starts with de120495 or 950412de")
    if len(content) < _HEADER_BYTES:
        raise _UnusableError(f"truncated: {len(content)} bytes, the header alone has {_HEADER_BYTES}")
    revision, count, msgids, msgstrs = struct.unpack_from(f"{order}4I", content, 4)
    if revision >> 16 > 1:
        raise _UnusableError(f"format revision {revision >> 16}; 0 and 1 are known")
    end = max(msgids, msgstrs) + count * _ROW_BYTES
    if end > len(content):
        raise _UnusableError(f"truncated: {count} entries need {end:,} bytes for their tables, it has {len(content):,}")
    return _Header(order, count, msgids, msgstrs)


def _charset(content: bytes, header: _Header) -> str:
    """Return the charset that the entry with an empty msgid declares; it sorts first."""
    if not header.size or _bytes(content, header.order, header.msgids):
        return "utf-8"
    try:
        return charset_of(_bytes(content, header.order, header.msgstrs))
    except LookupError as error:
        raise _UnusableError(f"declares the charset {error.args[0]!r}, which no text has") from error


def _bytes(content: bytes, order: str, row: int) -> bytes:
    size, offset = struct.unpack_from(f"{order}2I", content, row)
    return content[offset : offset + min(size, MAX_RECORD_BYTES)]


def _text(content: bytes, order: str, row: int, charset: str) -> str:
    """Return the text that a row of a table points to.

    Raises:
        ValueError: It is not all there, longer than allowed, or not in this charset.
    """
    size, offset = struct.unpack_from(f"{order}2I", content, row)
    if size > MAX_RECORD_BYTES:
        raise ValueError(f"a text of {size:,} bytes; at most {MAX_RECORD_BYTES:,} are allowed")
    if offset + size > len(content):
        raise ValueError(f"truncated: a text ends at byte {offset + size:,}, the file at {len(content):,}")
    data = content[offset : offset + size]
    try:
        return data.decode(charset)
    except UnicodeError as error:
        raise ValueError(encoding_reason(data, error, charset, offset)) from error
