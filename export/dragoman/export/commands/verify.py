"""`dragoman verify`: compare a bundle with the checkpoint it was made from; exit code 1 if they differ."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from dragoman.export.errors import ExportError
from dragoman.export.verify import verify
from dragoman.model.checkpoint import load_checkpoint
from dragoman.model.errors import ModelError
from dragoman.model.readers import read_pairs

HELP = "compare a bundle with its checkpoint"
ERRORS: tuple[type[Exception], ...] = (ExportError, ModelError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("bundle", type=Path, help="bundle folder")
    parser.add_argument("--checkpoint", type=Path, required=True, help="the --out folder of `dragoman train`")
    parser.add_argument("--data", type=Path, help="held-out TSV; default: 200 random sources, no quality numbers")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    """Verify and report."""
    report = verify(args.bundle, load_checkpoint(args.checkpoint), list(read_pairs(args.data)) if args.data else None)
    print(json.dumps({**report.to_dict(), "problems": report.problems}) if args.json else report.table())
    return 1 if report.problems else 0
