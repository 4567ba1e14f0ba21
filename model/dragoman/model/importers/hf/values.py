"""Settings of somebody else's `config.json`, read with their types: what is wrong is collected and said at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from dragoman.model.errors import ImportFailed

Value = TypeVar("Value", int, float, str, bool)

_KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


class Values:
    """Reads settings by name. `null` means that a setting is not given."""

    def __init__(self, values: Mapping[str, Any], origin: Path) -> None:
        """Begin.

        Args:
            values: Content of the file.
            origin: The file, for messages.
        """
        self._values = values
        self._origin = origin
        self._problems: list[str] = []

    def get(self, name: str, kind: type[Value], default: Value | None = None) -> Value:
        """Return a setting; one that is missing and has no default, or is of another type, is a problem."""
        value = self._values.get(name)
        if value is None:
            if default is None:
                self._problems.append(f"{name} is missing")
                return kind()
            return default
        fits = isinstance(value, (int, float)) if kind is float else isinstance(value, kind)
        if not fits or (isinstance(value, bool) and kind is not bool):
            self._problems.append(f"{name} is {value!r}; it must be {_KINDS[kind]}")
            return kind() if default is None else default
        return kind(value)

    def count(self, name: str, default: int | None = None) -> int:
        """Return a whole number of 1 or more."""
        value = self.get(name, int, default)
        if value < 1 and f"{name} is missing" not in self._problems:
            self._problems.append(f"{name} is {value}; it must be at least 1")
        return value

    def same(self, name: str, other: str) -> int:
        """Return a whole number that two settings must agree on."""
        one, two = self.count(name), self.count(other)
        if one != two:
            self._problems.append(f"{name} is {one}, {other} is {two}; they must be equal")
        return one

    def choice(self, name: str, choices: Mapping[str, Value], default: str | None = None) -> Value:
        """Return what a text stands for."""
        text = self.get(name, str, default)
        if text not in choices:
            self.refuse(name, text, *choices)
            return next(iter(choices.values()))
        return choices[text]

    def only(self, name: str, allowed: bool) -> None:
        """Refuse any value but one of a setting that changes the computation; it need not be given."""
        value = self._values.get(name)
        if value is not None and value is not allowed:
            self.refuse(name, value, allowed)

    def refuse(self, name: str, value: object, *allowed: object) -> None:
        """Add the problem that a setting has a value that we do not support."""
        wanted = f"only {', '.join(map(repr, allowed))} is supported" if allowed else "it is not supported"
        self._problems.append(f"{name} is {value!r}; {wanted}")

    def finish(self) -> None:
        """Raise an error about all problems, if there are any.

        Raises:
            ImportFailed: Names each setting and its value.
        """
        if self._problems:
            raise ImportFailed(f"{self._origin}: {'; '.join(dict.fromkeys(self._problems))}")
