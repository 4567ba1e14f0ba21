"""What `dragoman translate` and `dragoman score` say when a call fails: which lines, why, and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from dragoman.client.commands.lines import Line
from dragoman.client.errors import (
    CallError,
    CommandError,
    DeadlineExceededError,
    FieldViolation,
    InvalidRequestError,
    MessageTooLargeError,
    OverloadedError,
    UnavailableError,
)

_TEXT_FIELD = re.compile(r"(?<!\w)(texts|target_prefixes|pairs)\[(\d+)\](?:\.(source|target))?")
# The one text of a stream has no index.
_LINE_FIELD = re.compile(r"(?:texts|pairs)\[(\d+)\](?:\.(?:source|target))?|text")


def failure(
    error: CallError,
    lines: Sequence[Line],
    *,
    server: str,
    timeout_s: float,
    done: str = "translated",
    goes_on: bool = False,
) -> CommandError:
    """Return the error for the user; the caller raises it `from error`.

    Args:
        error: Why the call failed.
        lines: What was sent, one line per text.
        server: Address that was called.
        timeout_s: Deadline of the call.
        done: What should have been done with the lines.
        goes_on: The command has --on-error and --wait, which are named where they would help.
    """
    advice = _advice(error, lines) if goes_on else ""
    return CommandError(f"{place(lines)} not {done}: {_reason(error, lines, server, timeout_s)}{advice}")


def unreachable(error: CallError, *, server: str, timeout_s: float) -> CommandError:
    """Return the error for the user if already a question about the model failed; the caller raises it `from error`."""
    return CommandError(f"nothing was translated: {_reason(error, (), server, timeout_s)}")


def refused_lines(error: CallError, lines: Sequence[Line]) -> dict[int, str]:
    """Return why the server refuses lines, by their index; empty if it refuses the call for anything else.

    Args:
        error: Why the call failed.
        lines: What was sent, one line per text.
    """
    if not isinstance(error, InvalidRequestError):
        return {}
    reasons: dict[int, str] = {}
    for violation in error.field_violations:
        match = _LINE_FIELD.fullmatch(violation.field)
        index = int(match[1] or 0) if match else len(lines)
        if index >= len(lines):
            return {}
        reasons[index] = _with_places(violation.description, lines)
    return reasons


def place(lines: Sequence[Line]) -> str:
    """Name the first and last of some lines."""
    first, last = lines[0], lines[-1]
    if first == last:
        return _place(first)
    if first.source != last.source:
        return f"{_place(first)} to {_place(last)}"
    if first.source == "argument":
        return f"arguments {first.number}-{last.number}"
    return f"{first.source}: lines {first.number}-{last.number}"


def places(lines: Sequence[Line]) -> str:
    """Name each of some lines, in their order."""
    parts: list[str] = []
    for source, group in groupby(lines, key=lambda line: line.source):
        numbers = [str(line.number) for line in group]
        several = "s" if numbers[1:] else ""
        where = f"argument{several}" if source == "argument" else f"{source}: line{several}"
        parts.append(f"{where} {', '.join(numbers)}")
    return "; ".join(parts)


def _place(line: Line) -> str:
    return f"argument {line.number}" if line.source == "argument" else f"{line.source}: line {line.number}"


def _advice(error: CallError, lines: Sequence[Line]) -> str:
    if refused_lines(error, lines):
        return ". With --on-error skip, such a line is left empty and the others are done"
    if isinstance(error, (UnavailableError, OverloadedError)):
        return ". --wait S keeps trying for S seconds"
    return ""


def _reason(error: CallError, lines: Sequence[Line], server: str, timeout_s: float) -> str:
    match error:
        case UnavailableError():
            return (
                f"{server} is not available ({error}). "
                "Start a server with `dragoman serve`, or name another one with --server HOST:PORT"
            )
        case DeadlineExceededError():
            return f"{server} gave no answer within {timeout_s:g} s ({error}). Raise --timeout or lower --batch"
        case OverloadedError():
            return f"{server} stayed overloaded ({error}). Raise --timeout to wait longer, or lower --batch"
        case MessageTooLargeError():
            return f"{error}. Lower --batch"
        case InvalidRequestError() if error.field_violations:
            return "; ".join(_violation(violation, lines) for violation in error.field_violations)
        case _:
            return _with_places(str(error), lines)


def _violation(violation: FieldViolation, lines: Sequence[Line]) -> str:
    described = _with_places(violation.description, lines)
    if violation.field in ("texts", "pairs"):
        return f"{described} (--batch sets how many are sent at once)"
    if violation.field in violation.description:
        return described
    return f"{_with_places(violation.field, lines)}: {described}"


def _with_places(text: str, lines: Sequence[Line]) -> str:
    """Say "corpus.en: line 12" instead of "texts[3]", which means nothing to a user of files."""

    def named(match: re.Match[str]) -> str:
        field, index, side = match[1], int(match[2]), match[3]
        if index >= len(lines):
            return match[0]
        side = "--target-prefix" if field == "target_prefixes" else side
        return f"{side} of {_place(lines[index])}" if side else _place(lines[index])

    return _TEXT_FIELD.sub(named, text)
