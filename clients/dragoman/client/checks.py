"""Checks of what a caller gives: only what the type system and the wire cannot carry. The server knows the ranges.

Without them, protobuf answers with a TypeError that names no field.
"""

from __future__ import annotations

import enum
import math
import numbers
import operator
from collections.abc import Sequence
from typing import Any

_LARGEST_FLOAT = 3.4028234663852886e38  # of 32 bits


def check_texts(texts: Sequence[str], name: str) -> tuple[str, ...]:
    """Return a list of texts that can be sent.

    Raises:
        TypeError: `texts` is one text instead of a sequence of texts, or holds something else.
        ValueError: A text cannot be encoded as UTF-8.
    """
    if isinstance(texts, (str, bytes)):
        raise TypeError(f"{name} is one {type(texts).__name__}; it must be a sequence of str, such as [text]")
    try:
        given = tuple(texts)  # once, so that an iterator works too
    except TypeError as error:
        raise wrong_type(name, texts, "a sequence of str, such as [text]") from error
    for index, text in enumerate(given):
        check_text(text, f"{name}[{index}]")
    return given


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


def check_integer(name: str, value: int, most: int) -> None:
    """Check a whole number from 0 on.

    Raises:
        TypeError: It is no whole number; those of NumPy are.
        ValueError: It is negative, or more than `most`.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise wrong_type(name, value, f"int, from 0 (the default) to {most}")
    if not 0 <= operator.index(value) <= most:
        raise ValueError(f"{name} is {value}; it must be from 0 (the default) to {most}")


def check_number(name: str, value: float) -> None:
    """Check a number; whatever a float can be is the server's to judge.

    Raises:
        TypeError: It is no number.
        ValueError: It is finite, but not as a float of 32 bits.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise wrong_type(name, value, "float or int")
    if abs(value) > _LARGEST_FLOAT and value not in (math.inf, -math.inf):
        raise ValueError(f"{name} is {value}; it must be from {-_LARGEST_FLOAT} to {_LARGEST_FLOAT}")


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
