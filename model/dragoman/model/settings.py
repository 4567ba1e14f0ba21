"""Checks that all settings share. Standard library only."""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from dragoman.model.errors import ConfigError

Settings = TypeVar("Settings")


def build(cls: type[Settings], what: str, values: dict[str, Any]) -> Settings:
    """Return `cls(**values)`.

    Raises:
        ConfigError: A key is unknown or missing, or a value is wrong.
    """
    given = known(cls, what, values)
    needed = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]  # type: ignore[arg-type]
    missing = [name for name in needed if name not in given]
    if missing:
        raise ConfigError(f"{what} configuration: {', '.join(missing)} must be given")
    return cls(**given)


def known(cls: type, what: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `values`.

    Raises:
        ConfigError: `values` is not a table, or has a key that `cls` has no field for; lists those it has.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{what} configuration is {values!r}; it must be a table of settings")
    allowed = {f.name for f in fields(cls)}
    unknown = sorted(set(values) - allowed)
    if unknown:
        raise ConfigError(f"unknown {what} setting {unknown}; allowed are {sorted(allowed)}")
    return dict(values)


def wrong_types(settings: Any) -> list[str]:
    """Return a problem for each field whose value is not of its type; an int will do for a float, NaN will not."""
    hints = get_type_hints(type(settings))
    return [
        f"{f.name} is {value!r}; {_wanted(hints[f.name], value)}"
        for f in fields(settings)
        if not _fits(value := getattr(settings, f.name), hints[f.name])
    ]


def raise_all(what: str, problems: list[str]) -> None:
    """Raise one ConfigError about all problems, if there are any."""
    if problems:
        raise ConfigError(f"{what} configuration: " + "; ".join(problems))


def _fits(value: Any, hint: Any) -> bool:
    kind, arguments = get_origin(hint), get_args(hint)
    if kind is Literal:
        return value in arguments
    if kind is UnionType:
        return any(_fits(value, argument) for argument in arguments)
    if kind is tuple:
        return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
    if kind is dict:
        return isinstance(value, dict) and all(
            _fits(k, arguments[0]) and _fits(v, arguments[1]) for k, v in value.items()
        )
    if hint is float:
        return _is_number(value) and _is_finite(value)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def _wanted(hint: Any, value: Any) -> str:
    kind, arguments = get_origin(hint), get_args(hint)
    if kind is Literal:
        return f"choose one of {', '.join(map(str, arguments))}"
    if kind is UnionType:
        return " or ".join(_wanted(argument, value) for argument in arguments if argument is not type(None))
    if hint is float and _is_number(value):
        return "it must be finite"
    names = {
        int: "it must be a whole number", float: "it must be a number", bool: "it must be true or false",
        str: "it must be a text", tuple: "it must be a list", dict: "it must be a table of numbers",
    }  # fmt: skip
    return names.get(kind or hint, f"it must be a {getattr(hint, '__name__', hint)}")
