"""`dragoman translate --stream`: one line after the other, each written piece by piece."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from dragoman.client.client import TranslationStream
from dragoman.client.commands.lines import Line, Skipped
from dragoman.client.commands.outage import Outage
from dragoman.client.commands.output import Write, on_one_line
from dragoman.client.commands.report import refused_lines
from dragoman.client.commands.tally import Tally
from dragoman.client.errors import CallError, CommandError, InternalError
from dragoman.client.results import FinishReason


def stream_lines(
    lines: Iterator[Line | None],
    start: Callable[[str], TranslationStream],
    write: Write,
    tally: Tally,
    *,
    explain: Callable[[CallError, Line], CommandError],
    outage: Outage,
    skips: bool,
) -> None:
    """Translate lines and write the pieces.

    Args:
        lines: None where the input makes us wait.
        start: Starts the translation of a text.
        write: Takes the pieces.
        tally: Counts the lines.
        explain: Turns an error of a call into one for the user.
        outage: What is known of the server's absence.
        skips: Go on without lines that the server refuses.

    Raises:
        CommandError: A line was not translated.
    """
    for line in lines:
        if line is None:
            continue
        try:
            outcome = Skipped(line.problem) if line.problem else _stream_line(line, start, write, outage)
        except CallError as error:
            if not (skips and (refused_lines(error, [line]) or isinstance(error, InternalError))):
                raise explain(error, line) from error
            outcome = Skipped(str(error))
        write(line.ending)
        if isinstance(outcome, Skipped):
            tally.skip(line, outcome)
        else:
            tally.add(line, outcome)


def _stream_line(line: Line, start: Callable[[str], TranslationStream], write: Write, outage: Outage) -> FinishReason:
    patience = outage.patience()
    while True:
        patience.begin()
        has_begun = False
        reason = FinishReason.UNSPECIFIED
        try:
            with start(line.text) as stream:
                for piece in stream:
                    write(on_one_line(piece.text))
                    has_begun = True
                    if piece.end is not None:
                        reason = piece.end.finish_reason
        except CallError as error:
            if has_begun:
                write("\n")  # so that the message does not continue the cut translation
                raise
            pause_s = patience.pause_s(error)
            if pause_s is None:
                raise
        else:
            patience.answered()
            return reason
        time.sleep(pause_s)
