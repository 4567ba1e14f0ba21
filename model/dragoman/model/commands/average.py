"""`dragoman average`: several checkpoints of a run -> one with the mean of their weights."""

from __future__ import annotations

import argparse
from pathlib import Path

from dragoman.model.average import average_checkpoints
from dragoman.model.checkpoint import checkpoints, require_run_folder
from dragoman.model.commands.arguments import whole_number
from dragoman.model.errors import CheckpointError, ModelError

HELP = "average the last checkpoints of a training run"
ERRORS: tuple[type[Exception], ...] = (ModelError,)

_MOST = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--run", type=Path, required=True, help="the --out folder of `dragoman train`")
    parser.add_argument(
        "--last",
        type=whole_number(1, _MOST),
        default=5,
        metavar="N",
        help="how many of the newest checkpoints; the recipe must have had them kept: keep_checkpoints = N or more "
        "(default: %(default)s)",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the result; usable like a run")


def run(args: argparse.Namespace) -> int:
    """Average and say what went in."""
    require_run_folder(args.out, "--out")
    if not args.run.is_dir():
        raise CheckpointError(f"--run {args.run}: there is no such folder; give the --out folder of `dragoman train`")
    found = checkpoints(args.run)
    if not found:
        raise CheckpointError(f"--run {args.run} holds no checkpoint; give the --out folder of `dragoman train`")
    if args.last > len(found):
        raise CheckpointError(
            f"--last is {args.last}, but --run {args.run} holds {len(found)} checkpoint(s). Training keeps "
            f"keep_checkpoints of them (by default 1): train with keep_checkpoints = {args.last} in [training], or "
            f"give --last {len(found)}"
        )
    folder = average_checkpoints(found[-args.last :], args.out)
    print(f"{', '.join(path.name for path in found[-args.last :])} -> {folder}")
    return 0
