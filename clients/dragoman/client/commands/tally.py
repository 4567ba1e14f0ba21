"""Counts what became of the lines, and names those that a user should look at."""

from __future__ import annotations

from collections.abc import Callable

from dragoman.client.commands.lines import Line, Skipped
from dragoman.client.commands.report import place, places
from dragoman.client.results import FinishReason

SKIPPED = 3  # exit code

_MOST_NAMED = 10


class Tally:
    """Of one run; its memory does not grow with the input.

    Args:
        say: Tells the user one sentence.
        limit_advice: What else bounds the limit on new tokens, to follow the name of the flag.
    """

    def __init__(self, say: Callable[[str], None], *, limit_advice: str = "") -> None:
        self._say = say
        self._limit_advice = limit_advice
        self._num_lines = 0
        self._num_skipped = 0
        self._num_cut = 0
        self._cut: list[Line] = []  # the first of them

    def add(self, line: Line, reason: FinishReason = FinishReason.UNSPECIFIED) -> None:
        """Count a line that has a result."""
        self._num_lines += 1
        if reason is FinishReason.LENGTH:
            self._num_cut += 1
            if len(self._cut) < _MOST_NAMED:
                self._cut.append(line)

    def skip(self, line: Line, skipped: Skipped) -> None:
        """Count a line that has none, and say why."""
        self._num_lines += 1
        self._num_skipped += 1
        self._say(f"{place([line])} skipped: {skipped.reason}")

    def exit_code(self) -> int:
        """Say what is noteworthy of the whole run, and return the exit code."""
        if self._num_cut:
            more = self._num_cut - len(self._cut)
            named = places(self._cut) + (f" and {more} more (--json says which)" if more else "")
            self._say(
                f"{self._num_cut} of {self._num_lines} translations reached the limit on new tokens and may be "
                f"incomplete: {named}; --max-new-tokens sets it{self._limit_advice}"
            )
        if self._num_skipped:
            self._say(f"{self._num_skipped} of {self._num_lines} lines were skipped; the output is empty there")
        return SKIPPED if self._num_skipped else 0
