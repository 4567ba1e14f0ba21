"""Types of command line arguments; each refuses a wrong value with an example or a range."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from dragoman.client.channel import server_target
from dragoman.client.retry import MAX_SECONDS

_MOST_DIGITS = 100


def count(text: str) -> int:
    """Return a whole number from 1."""
    return _whole_number(text, 1)


def count_or_zero(text: str) -> int:
    """Return a whole number from 0."""
    return _whole_number(text, 0)


def seed(text: str) -> int:
    """Return a whole number from 0 that a seed may be."""
    return _whole_number(text, 0, 2**63 - 1)


def option_count(text: str) -> int:
    """Return a whole number from 0; how many of something are allowed is the server's to say."""
    return _whole_number(text, 0, allowed="from 0 to what the server allows")


def number(allowed: str) -> Callable[[str], float]:
    """Return a type of finite numbers. Their range is the server's to check.

    Args:
        allowed: What the server takes, for the error of what is no number.
    """

    def parse(text: str) -> float:
        value = _number(text)
        if not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {allowed}")
        return value

    return parse


def server(text: str) -> str:
    """Return an address that gRPC cannot take for something else: it would dial port 443 for a bare host."""
    try:
        return server_target(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def seconds_or_zero(text: str) -> float:
    """Return a number of seconds from 0 to a year."""
    value = _number(text)
    if not 0 <= value <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to {MAX_SECONDS} (a year)")
    return value


def seconds(text: str) -> float:
    """Return a number of seconds above 0, at most a year."""
    value = _number(text)
    if not 0 < value <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0, at most {MAX_SECONDS} (a year)")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _whole_number(text: str, least: int, most: int = 2**32 - 1, *, allowed: str = "") -> int:
    # Python refuses to read thousands of digits, with a message of its own.
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS and least <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {allowed or f'from {least} to {most}'}")
    return int(text)
