r"""The lines that `dragoman translate` reads: from arguments, files and pipes, in bounded memory.

A line ends with a line feed, nothing else; "\r\n" belongs to the ending and comes back in the output.
Text must be UTF-8; a byte order mark at the start of a file is dropped. Files follow one another, and
one without a line feed at its end still ends its last line there.

Iterators of lines yield None where the input makes them wait, so that what was read until then can be
sent at once: whoever types a line sees its translation before typing the next.
"""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import BinaryIO

from dragoman.client.errors import InputError

STDIN = "-"

_CHUNK_BYTES = 2**16
_MAX_LINE_BYTES = 2**20  # far more than any model takes; without a limit a binary file would fill the memory
_TOO_LONG = f"is longer than {_MAX_LINE_BYTES} bytes; is it text?"
_MAX_BATCH_CHARACTERS = 2**18  # at most 1 MiB as UTF-8, well below the message limit of any server
_LINGER_S = 0.02  # a producer that pauses no longer than this is waited for


@dataclass(frozen=True, slots=True)
class Line:
    r"""One line to translate.

    Attributes:
        text: Without its ending.
        ending: "\n", "\r\n", or "" for a last line that has none.
        source: Where it comes from: a path, "stdin" or "argument".
        number: Counted from 1 in each source.
        problem: Why it cannot be sent, or "".
    """

    text: str
    ending: str
    source: str
    number: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Skipped:
    """What a line has instead of a result.

    Attributes:
        reason: Why there is none.
    """

    reason: str


def argument_lines(texts: Sequence[str]) -> Iterator[Line]:
    """Return each argument as one line.

    Raises:
        InputError: An argument is not UTF-8.
    """
    for number, text in enumerate(texts, start=1):
        try:
            text.encode()
        except UnicodeEncodeError as error:  # Python hides undecodable bytes of arguments in surrogates
            raise InputError(f"argument {number}: character {error.start + 1} is not UTF-8") from error
        yield Line(text, "\n", "argument", number)


def file_lines(paths: Sequence[str], *, skips: bool = False) -> Iterator[Line | None]:
    """Read files one after the other; "-" is stdin.

    Args:
        paths: The files.
        skips: Lines that are no text come with a `problem` and without their text, instead of ending everything.

    Raises:
        InputError: A file cannot be read, is not UTF-8, or has a line that is too long.
    """
    unended: Line | None = None
    for path in paths:
        for line in _lines_of(path, skips=skips):
            if line is not None and unended is not None:
                yield replace(unended, ending="\n")
                unended = None
            if line is None or line.ending:
                yield line
            else:
                unended = line
    if unended is not None:
        yield unended


def count_lines(paths: Sequence[str], *, skips: bool = False) -> int | None:
    """Read all files once, so that what is wrong with the last one is known before the first is sent.

    Args:
        paths: The files.
        skips: As in `file_lines`.

    Returns:
        The number of lines; None if an input is not a regular file and can be read only once.

    Raises:
        InputError: As `file_lines`.
    """
    regular = [path for path in paths if path != STDIN and _is_regular(path)]
    total = sum(1 for line in file_lines(regular, skips=skips) if line is not None)
    return total if len(regular) == len(paths) else None


def batches(lines: Iterable[Line | None], *, max_lines: int) -> Iterator[tuple[Line, ...]]:
    """Group lines. A group is full, or all there was when the input made us wait.

    Raises:
        InputError: As `lines`, after the lines before it have been yielded.
    """
    batch: list[Line] = []
    characters = 0
    try:
        for line in lines:
            if batch and (line is None or characters + len(line.text) > _MAX_BATCH_CHARACTERS):
                yield tuple(batch)
                batch, characters = [], 0
            if line is None:
                continue
            batch.append(line)
            characters += len(line.text)
            if len(batch) == max_lines:
                yield tuple(batch)
                batch, characters = [], 0
    except InputError:
        if batch:
            yield tuple(batch)
        raise
    if batch:
        yield tuple(batch)


def _lines_of(path: str, *, skips: bool) -> Iterator[Line | None]:
    name = "stdin" if path == STDIN else path
    number, offset = 0, 0
    parts: list[bytes] = []  # of the line whose end has not been read
    size = 0
    with _open(path) as stream:
        for chunk in _chunks(stream, name):
            if chunk is None:
                yield None
                continue
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                size += len(end)
                number += 1
                yield _line([*parts, end], size, "\n", name, number, offset, skips=skips)
                offset += size + 1
                parts, size = [], 0
            size += len(rest)
            if size <= _MAX_LINE_BYTES:
                parts.append(rest)
            elif skips:
                parts = []
            else:  # its end may never come
                raise InputError(f"{name}: line {number + 1} {_TOO_LONG}")
    if size:
        yield _line(parts, size, "", name, number + 1, offset, skips=skips)


def _line(parts: Sequence[bytes], size: int, ending: str, name: str, number: int, offset: int, *, skips: bool) -> Line:
    """Return the line of the bytes before its line feed, or what is wrong with it.

    Args:
        parts: The bytes, unless they are too many.
        size: How many they are.
        ending: Of the line.
        name: Of the input.
        number: Of the line, from 1.
        offset: Of the line in the input, in bytes.
        skips: Return a line that is no text with its problem.

    Raises:
        InputError: It is no text.
    """
    if size > _MAX_LINE_BYTES:
        text, problem = "", _TOO_LONG
    else:
        raw = b"".join(parts)
        if ending and raw.endswith(b"\r"):
            raw, ending = raw[:-1], "\r\n"
        text, problem = _decoded(raw, offset)
    if problem and not skips:
        raise InputError(f"{name}: line {number} {problem}. Nothing from this line on was sent")
    return Line(text.removeprefix("\ufeff") if number == 1 else text, ending, name, number, problem)


def _decoded(raw: bytes, offset: int) -> tuple[str, str]:
    try:
        return raw.decode(), ""
    except UnicodeDecodeError as error:
        return "", (
            f"is not UTF-8: byte 0x{raw[error.start]:02x} at byte {error.start + 1} of the line, "
            f"offset {offset + error.start} of the input"
        )


@contextmanager
def _open(path: str) -> Iterator[BinaryIO]:
    if path == STDIN:
        yield sys.stdin.buffer
        return
    try:
        stream = open(path, "rb", buffering=0)  # noqa: SIM115 - closed below; only opening is guarded here
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    with stream:
        yield stream


def _chunks(stream: BinaryIO, name: str) -> Iterator[bytes | None]:
    descriptor = _descriptor(stream)
    while True:
        if descriptor is not None and not _is_ready(descriptor):
            yield None
        try:
            # Past Python's buffer: a thread that waits inside it at exit stops the interpreter with an error.
            chunk = stream.read(_CHUNK_BYTES) if descriptor is None else os.read(descriptor, _CHUNK_BYTES)
        except OSError as error:
            raise InputError(f"{name}: {error.strerror}") from error
        if not chunk:
            return
        yield chunk


def _descriptor(stream: BinaryIO) -> int | None:
    try:
        return stream.fileno()
    except OSError:  # a stream in memory
        return None


def _is_ready(descriptor: int) -> bool:
    try:
        return bool(select.select([descriptor], [], [], _LINGER_S)[0])
    except (OSError, ValueError):  # not a socket on Windows, or a descriptor too large for select
        return True


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
