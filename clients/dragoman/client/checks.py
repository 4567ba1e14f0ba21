"""Checks of what a caller gives: only what the type system and the wire cannot carry. The server knows the ranges.

Without them, protobuf answers with a TypeError that names no field.
"""

from __future__ import annotations

import enum
import math
import numbers
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

_Item = TypeVar("_Item")

_LARGEST_FLOAT = 3.4028234663852886e38  # of 32 bits


def check_texts(texts: Sequence[str], name: str) -> tuple[str, ...]:
    """Return a list of texts that can be sent.

    Raises:
        TypeError: `texts` is one text instead of a sequence of texts, has no order, or holds something else.
        ValueError: A text cannot be encoded as UTF-8.
    """
    if isinstance(texts, (str, bytes)):
        raise TypeError(f"{name} is one {type(texts).__name__}; it must be a sequence of str, such as [text]")
    given = check_ordered(texts, name, "a sequence of str, such as [text]")
    for index, text in enumerate(given):
        check_text(text, f"{name}[{index}]")
    return given


def check_ordered(items: Iterable[_Item], name: str, allowed: str) -> tuple[_Item, ...]:
    """Return items that have an order; an iterator is read once.

    Raises:
        TypeError: They are none, or a set or a dict, whose order is not what the results belong to.
    """
    if isinstance(items, (set, frozenset, Mapping)) or not isinstance(items, Iterable):
        raise wrong_type(name, items, allowed)
    return tuple(items)


def check_text(text: str, name: str) -> None:
    """Check that a text can be sent.

    Raises:
        TypeError: It is not a str.
        ValueError: It cannot be encoded as UTF-8.
    """
    if not isinstance(text, str):
        raise TypeError(f"{name} is {type(text).__name__}; it must be str")
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} has a lone surrogate, U+{ord(text[error.start]):04X}, at index {error.start}; "
            "it cannot be sent as UTF-8. Decode the text with its real encoding"
        ) from error


def is_integer(value: object) -> bool:
    """Whether a value is a whole number; those of NumPy are, True and False are none."""
    return hasattr(value, "__index__") and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether a value is a number; True and False are none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_integer(name: str, value: int, most: int, allowed: str) -> None:
    """Check a whole number from 0 on.

    Args:
        name: What it is called.
        value: As given.
        most: What the message can carry, which may be more than the server takes.
        allowed: Says the range to the user: what the protocol allows, not what the message can carry.

    Raises:
        TypeError: It is no whole number; those of NumPy are.
        ValueError: It is negative, or more than `most`.
    """
    if not is_integer(value):
        raise wrong_type(name, value, f"int, {allowed}")
    if not 0 <= operator.index(value) <= most:
        raise ValueError(f"{name} is {value}; it must be {allowed}")


def check_number(name: str, value: float) -> None:
    """Check a number; whatever a float of 32 bits can be is the server's to judge.

    Raises:
        TypeError: It is no number.
        ValueError: It is finite, but not as a float of 32 bits.
    """
    if not is_number(value):
        raise wrong_type(name, value, "float or int")
    if abs(value) > _LARGEST_FLOAT and value not in (math.inf, -math.inf):
        raise ValueError(f"{name} is {value}; it must be a number that 32 bits can hold, in the range of the option")


def check_flag(name: str, value: bool) -> None:
    """Check a switch.

    Raises:
        TypeError: It is not a bool.
    """
    if not isinstance(value, bool):
        raise wrong_type(name, value, "True or False")


def check_member(name: str, value: enum.Enum, kind: type[enum.Enum]) -> None:
    """Check a choice.

    Raises:
        TypeError: It is no member of `kind`.
    """
    if not isinstance(value, kind):
        raise wrong_type(name, value, " or ".join(str(member) for member in kind))


def check_instance(name: str, value: object, kind: type[object]) -> None:
    """Check a value of one of our own types.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(value, kind):
        raise wrong_type(name, value, kind.__name__)


def wrong_type(name: str, value: Any, allowed: str) -> TypeError:
    """Return the error that says what was given and what is allowed."""
    return TypeError(f"{name} is {value!r} of type {type(value).__name__}; it must be {allowed}")
