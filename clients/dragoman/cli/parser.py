"""How every command of `dragoman` reads its arguments: errors that fit on a screen, and flags by their full names."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """A parser of a command, and of its subcommands, which argparse makes of the same class.

    Flags cannot be abbreviated: an abbreviation would mean another flag, or none, once a release adds one that begins
    alike.
    """

    def __init__(self, **settings: Any) -> None:
        """Take argparse's settings."""
        super().__init__(**{"allow_abbrev": False, **settings})

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where the usage is; argparse would print all of it, above the error.

        Raises:
            SystemExit: Always, with code 2.
        """
        print(f"{self.prog}: {message}\n`{self.prog} --help` shows the usage", file=sys.stderr)
        sys.exit(2)
