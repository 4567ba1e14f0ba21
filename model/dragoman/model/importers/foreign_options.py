"""Options that another library saved with a model: read with its defaults, refused by name where we cannot follow."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman.model.errors import ImportFailed


class ForeignOptions:
    """Values by name. What is missing has the library's default; all that is wrong is said at once."""

    def __init__(self, values: Mapping[str, Any], origin: Path) -> None:
        """Begin.

        Args:
            values: As they were saved.
            origin: For messages.
        """
        self._values = values
        self._origin = origin
        self.problems: list[str] = []

    def get(self, name: str, default: Any) -> Any:
        """Return a value as it is, the default if it is missing or None."""
        value = self._values.get(name)
        return default if value is None else value

    def number(self, name: str, default: int) -> int:
        """Return a whole number of at least 0; anything else is a problem."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
            self.problems.append(f"{name} is {value!r}; it must be a whole number")
            return default
        return int(value)

    def same(self, name: str, other: str, default: int, other_default: int | None = None) -> int:
        """Return a number that both stacks must have in common; the default of the other is that of the first."""
        one = self.number(name, default)
        two = self.number(other, one if other_default is None else other_default)
        if one != two:
            self.problems.append(f"{name} is {one} and {other} is {two}; supported is the same for both stacks")
        return one

    def choice(self, name: str, default: str, allowed: Mapping[str, str]) -> str:
        """Return what a value means here; one that is not allowed is a problem."""
        value = self.get(name, default)
        if value not in allowed:
            self.problems.append(f"{name} is {value!r}; supported are {', '.join(allowed)}")
            return allowed[default]
        return allowed[value]

    def require(self, allowed: Mapping[str, Sequence[Any]]) -> None:
        """Note every option whose value is none of those under which the library computes what we compute."""
        for name, values in allowed.items():
            value = self._values.get(name)
            if value is not None and value not in values:
                supported = " or ".join(repr(v) for v in values) if values else "that it is not given"
                self.problems.append(f"{name} is {value!r}; supported is {supported}")

    def finish(self) -> None:
        """Raise if there are problems.

        Raises:
            ImportFailed: Says all of them.
        """
        if self.problems:
            raise ImportFailed(f"{self._origin}: {'; '.join(self.problems)}")


def as_mapping(value: Any) -> Mapping[str, Any] | None:
    """Return options saved as a dictionary or as an `argparse.Namespace`; None for anything else."""
    if isinstance(value, argparse.Namespace):
        return vars(value)
    return value if isinstance(value, Mapping) else None
