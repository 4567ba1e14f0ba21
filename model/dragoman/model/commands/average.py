"""`dragoman average`: several checkpoints of a run -> one with the mean of their weights."""

from __future__ import annotations

import argparse
from pathlib import Path

from dragoman.model.average import average_checkpoints
from dragoman.model.checkpoint import checkpoints
from dragoman.model.errors import CheckpointError, ModelError

HELP = "average the last checkpoints of a training run"
ERRORS: tuple[type[Exception], ...] = (ModelError,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--run", type=Path, required=True, help="the --out folder of `dragoman train`")
    parser.add_argument("--last", type=int, default=5, help="how many of the newest checkpoints (default: 5)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the result; usable like a run")


def run(args: argparse.Namespace) -> int:
    """Average and say what went in."""
    found = checkpoints(args.run)
    if not 1 <= args.last <= len(found):
        raise CheckpointError(
            f"--last is {args.last}, but {args.run} holds {len(found)} checkpoints; "
            "a recipe's keep_checkpoints says how many training keeps"
        )
    folder = average_checkpoints(found[-args.last :], args.out)
    print(f"{', '.join(path.name for path in found[-args.last :])} -> {folder}")
    return 0
