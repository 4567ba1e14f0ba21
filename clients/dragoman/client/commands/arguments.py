"""Types of command line arguments; each refuses a wrong value with an example or a range."""

from __future__ import annotations

import argparse
import math

from dragoman.client.channel import DEFAULT_TARGET

_TARGET_SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:")
_LAST_PORT = 65535


def count(text: str) -> int:
    """Return a whole number from 1."""
    return _whole_number(text, 1)


def count_or_zero(text: str) -> int:
    """Return a whole number from 0."""
    return _whole_number(text, 0)


def seed(text: str) -> int:
    """Return a whole number from 0 that a seed may be."""
    return _whole_number(text, 0, 2**63 - 1)


def number(text: str) -> float:
    """Return a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return value


def _whole_number(text: str, least: int, most: int = 2**32 - 1) -> int:
    if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
    return int(text)


def server(text: str) -> str:
    """Return an address that gRPC cannot take for something else: it would dial port 443 for a bare host."""
    if text.startswith(_TARGET_SCHEMES):
        return text
    host, colon, port = text.rpartition(":") if ":" in text else (text, ":", DEFAULT_TARGET.rpartition(":")[2])
    if not (host and colon and port.isascii() and port.isdecimal() and 1 <= int(port) <= _LAST_PORT) or "/" in host:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not HOST:PORT with a port from 1 to {_LAST_PORT}, for example {DEFAULT_TARGET}"
        )
    return f"{host}:{port}"


def seconds_or_zero(text: str) -> float:
    """Return a finite number from 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0")
    return value


def seconds(text: str) -> float:
    """Return a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value
