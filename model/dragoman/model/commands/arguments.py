"""Types of command line arguments; each refuses a wrong value with the range it must be in."""

from __future__ import annotations

import argparse
from collections.abc import Callable

MAX_THREADS = 1024
"""More than any machine has; torch takes no number it cannot hold."""


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return a type that takes whole numbers of a range, both ends included."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    return parse
