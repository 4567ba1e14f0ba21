"""What the commands write: one line per line, and files that are complete or not there."""

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
from dragoman.client.results import Hypothesis, Translation

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
    """Return source, translation, its numbers, and what else was asked for, as one line of JSON."""
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

    def __call__(self, line: Line, translation: Translation) -> str:
        """Return the lines of the next translation."""
        number = self._number
        self._number += 1
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
