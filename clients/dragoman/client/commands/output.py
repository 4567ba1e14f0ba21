"""What the commands write: one line per line, and files that are complete or not there."""

from __future__ import annotations

import errno
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

from dragoman.client.commands.lines import Line, Skipped
from dragoman.client.errors import OutputError
from dragoman.client.results import FinishReason, Hypothesis, Translation

STDOUT = "-"

_NO_RIGHT = "; choose a folder that you may write to"
_ADVICE = {
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.EROFS: _NO_RIGHT,
    errno.ENOSPC: "; make room or choose another disk",
    errno.EDQUOT: "; make room or choose another disk",
    errno.EBADF: "; open the descriptor for writing, for example with 3>FILE",
}

_DESCRIPTORS = re.compile(r"/proc/(\d+)(?:/task/\d+)?/fd|/dev/fd")  # realpath puts a number in place of "self"
_MOST_LINKS = 40  # as the system's own limit

Write = Callable[[str], None]

_LINE_BREAK = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")  # what Python and editors break lines at


def on_one_line(text: str) -> str:
    """Replace line breaks by spaces, so that line numbers of input and output agree."""
    return _LINE_BREAK.sub(" ", text)


def plain_line(line: Line, translation: Translation | Skipped) -> str:
    """Return a translation with the line ending of its source; a line that was skipped is empty."""
    return ("" if isinstance(translation, Skipped) else on_one_line(translation.text)) + line.ending


def json_line(line: Line, translation: Translation | Skipped) -> str:
    """Return source, translation, its numbers, and what else was asked for, as one line of JSON."""
    if isinstance(translation, Skipped):
        return (
            json.dumps({"text": line.text, "translation": "", "error": translation.reason}, ensure_ascii=False) + "\n"
        )
    values: dict[str, object] = {
        "text": line.text,
        "translation": translation.text,
        "finish_reason": translation.finish_reason.value,
        "source_tokens": translation.source_tokens,
        "target_tokens": translation.target_tokens,
    }
    if translation.hypotheses:
        values["hypotheses"] = [_json_hypothesis(hypothesis) for hypothesis in translation.hypotheses]
    if translation.source_pieces:
        values["source_pieces"] = translation.source_pieces
    return json.dumps(values, ensure_ascii=False) + "\n"


def _json_hypothesis(hypothesis: Hypothesis) -> dict[str, object]:
    values = {
        "text": hypothesis.text,
        "finish_reason": hypothesis.finish_reason.value,
        "target_tokens": hypothesis.target_tokens,
        "score": hypothesis.score,
        "log_prob": hypothesis.log_prob,
        "tokens": [{"text": token.text, "log_prob": token.log_prob} for token in hypothesis.tokens] or None,
        "alignment": hypothesis.alignment or None,
        "seed": hypothesis.seed,
    }
    return {name: value for name, value in values.items() if value is not None}


_NOTHING = Hypothesis("", FinishReason.UNSPECIFIED, 0)


class FieldsLine:
    """Writes what belongs to a translation behind it, in the columns of Moses: N ||| text ||| alignment ||| score.

    N, the number of the input line from 0, is there with `n_best`, which writes every hypothesis on a line of its own.
    """

    def __init__(self, *, n_best: bool, alignment: bool, scores: bool) -> None:
        """Choose the columns besides the text."""
        self._n_best = n_best
        self._alignment = alignment
        self._scores = scores
        self._number = 0

    def __call__(self, line: Line, translation: Translation | Skipped) -> str:
        """Return the lines of the next translation; of one that was skipped, a line without text."""
        number = self._number
        self._number += 1
        if isinstance(translation, Skipped):
            return f"{number} ||| {self._columns(_NOTHING)}\n" if self._n_best else line.ending
        if not self._n_best:
            return self._columns(translation.hypotheses[0]) + line.ending
        return "".join(f"{number} ||| {self._columns(hypothesis)}\n" for hypothesis in translation.hypotheses)

    def _columns(self, hypothesis: Hypothesis) -> str:
        columns = [on_one_line(hypothesis.text)]
        if self._alignment:
            columns.append(" ".join(f"{source}-{target}" for source, target in hypothesis.aligned_pairs))
        if self._scores:
            columns.append("" if hypothesis.score is None else f"{hypothesis.score:.6f}")
        return " ||| ".join(columns)


@contextmanager
def open_output(path: str) -> Iterator[Write]:
    """Open stdout ("-") or a file, which is replaced only when the block ends without an exception.

    What is not a regular file, such as /dev/null or a pipe, is written as it is; so is an open descriptor, such as
    /dev/stdout or /dev/fd/3, at its position and whatever file is behind it.

    Raises:
        OutputError: The output cannot be written.
    """
    if path == STDOUT:
        yield _writer(sys.stdout.buffer, "stdout")
        return
    if (descriptor := descriptor_of(path)) is not None:
        with _closed(_reopened(descriptor, path), path) as stream:
            yield _writer(stream, path)
        return
    target = _target(path)
    is_replaced = _is_absent_or_regular(target)
    temporary = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.{secrets.token_hex(4)}.tmp")
    written = temporary if is_replaced else target
    try:
        stream = open(written, "xb" if is_replaced else "wb")  # noqa: SIM115 - closed below; only opening is guarded here
    except OSError as error:
        raise _refusal(path, error) from error
    try:
        with _closed(stream, path):
            yield _writer(stream, path)
        if is_replaced:
            _replace(temporary, target, path)
    finally:
        if is_replaced:
            with suppress(FileNotFoundError):
                os.unlink(temporary)


def is_replaced_when_complete(path: str) -> bool:
    """Whether an output is a file that appears only once it is complete, so that a failed command leaves nothing."""
    return path != STDOUT and descriptor_of(path) is None and _is_absent_or_regular(path)


def is_terminal(path: str) -> bool:
    """Whether an output is drawn on a terminal."""
    if path == STDOUT:
        return sys.stdout.isatty()
    descriptor = descriptor_of(path)
    return descriptor is not None and os.isatty(descriptor)


def descriptor_of(path: str) -> int | None:
    """Return the descriptor of this process that a path names, None if it names a file.

    What such a path is a link to is the file behind a redirection: replacing or truncating it would destroy what other
    commands have written there.

    Raises:
        OutputError: It names a descriptor of another process, whose position cannot be shared.
    """
    link = path
    for _ in range(_MOST_LINKS):
        folder, name = os.path.split(os.path.abspath(link))
        folder = os.path.realpath(folder)
        match = _DESCRIPTORS.fullmatch(folder)
        if match and name.isascii() and name.isdecimal():
            if match[1] and int(match[1]) != os.getpid():
                raise OutputError(f"--output {path} is a descriptor of another process; name a file, or - for stdout")
            return int(name)
        link = os.path.join(folder, name)
        if not os.path.islink(link):
            return None
        link = os.path.join(folder, os.readlink(link))
    return None


def _reopened(descriptor: int, path: str) -> BinaryIO:
    """Return a stream that shares a descriptor's position and may be closed.

    Raises:
        OutputError: It is not open.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        return open(os.dup(descriptor), "wb")
    except OSError as error:
        raise _refusal(path, error) from error


def _target(path: str) -> str:
    """Return where a path leads: a link stays a link.

    Raises:
        OutputError: There can be no file of that name.
    """
    target = os.path.realpath(path)
    parent = os.path.dirname(target)
    if not path or os.path.isdir(target):
        raise OutputError(f"--output {path or repr(path)} is a folder; name a file in it")
    if not os.path.isdir(parent):
        raise OutputError(f"--output {path} cannot be written: there is no folder {parent}; make it first (mkdir -p)")
    return target


def _refusal(name: str, error: OSError) -> OutputError:
    """Return the error for the user: what the system says, and what to do where that is known."""
    advice = _ADVICE.get(error.errno or 0, "")
    return OutputError(f"{name} cannot be written: {error.strerror}{advice}")


@contextmanager
def _closed(stream: BinaryIO, name: str) -> Iterator[BinaryIO]:
    """Close a file at the end of the block; it tries to write once more what could not be written before."""
    try:
        yield stream
    except BaseException:
        with suppress(OSError):
            stream.close()
        raise
    try:
        stream.close()
    except OSError as error:
        raise _refusal(name, error) from error


def _writer(stream: BinaryIO, name: str) -> Write:
    def write(text: str) -> None:
        try:
            stream.write(text.encode())
            stream.flush()
        except BrokenPipeError:
            raise  # the reader has gone, which is no fault; the command line ends quietly
        except OSError as error:
            raise _refusal(name, error) from error

    return write


def _replace(temporary: str, target: str, path: str) -> None:
    try:
        if os.path.exists(target):
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except OSError as error:
        raise _refusal(path, error) from error


def _is_absent_or_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True
