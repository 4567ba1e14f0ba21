"""What `dragoman translate` writes: one line per line, and files that are complete or not there."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from dragoman.client.commands.lines import Line
from dragoman.client.errors import OutputError
from dragoman.client.results import Translation

STDOUT = "-"

Write = Callable[[str], None]

_LINE_BREAK = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")  # what Python and editors break lines at


def on_one_line(text: str) -> str:
    """Replace line breaks by spaces, so that line numbers of input and output agree."""
    return _LINE_BREAK.sub(" ", text)


def plain_line(line: Line, translation: Translation) -> str:
    """Return a translation with the line ending of its source."""
    return on_one_line(translation.text) + line.ending


def json_line(line: Line, translation: Translation) -> str:
    """Return source, translation and its numbers as one line of JSON."""
    values = {
        "text": line.text,
        "translation": translation.text,
        "finish_reason": translation.finish_reason.value,
        "source_tokens": translation.source_tokens,
        "target_tokens": translation.target_tokens,
    }
    return json.dumps(values, ensure_ascii=False) + "\n"


@contextmanager
def open_output(path: str) -> Iterator[Write]:
    """Open stdout ("-") or a file, which is replaced only when the block ends without an exception.

    What is not a regular file, such as /dev/null or a pipe, is written as it is.

    Raises:
        OutputError: The output cannot be written.
    """
    if path == STDOUT:
        yield _writer(sys.stdout.buffer, "stdout")
        return
    target = os.path.realpath(path)  # a link stays a link
    is_replaced = _is_absent_or_regular(target)
    temporary = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.{secrets.token_hex(4)}.tmp")
    written = temporary if is_replaced else target
    try:
        stream = open(written, "xb" if is_replaced else "wb")  # noqa: SIM115 - closed below; only opening is guarded here
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error
    try:
        with stream:
            yield _writer(stream, path)
        if is_replaced:
            _replace(temporary, target, path)
    finally:
        if is_replaced:
            with suppress(FileNotFoundError):
                os.unlink(temporary)


def _writer(stream: BinaryIO, name: str) -> Write:
    def write(text: str) -> None:
        try:
            stream.write(text.encode())
            stream.flush()
        except BrokenPipeError:
            raise  # the reader has gone, which is no fault; the command line ends quietly
        except OSError as error:
            raise OutputError(f"{name}: cannot be written: {error.strerror}") from error

    return write


def _replace(temporary: str, target: str, path: str) -> None:
    try:
        if os.path.exists(target):
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


def _is_absent_or_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True
