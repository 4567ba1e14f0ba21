"""`dragoman export`: checkpoint -> verified bundle."""

from __future__ import annotations

import argparse
from pathlib import Path

from dragoman.export.errors import ExportError
from dragoman.export.verify import require, verify
from dragoman.export.write import DEVICES, write_bundle
from dragoman.model.checkpoint import load_checkpoint
from dragoman.model.errors import ModelError
from dragoman.model.readers import read_pairs

HELP = "write a bundle from a checkpoint"
ERRORS: tuple[type[Exception], ...] = (ExportError, ModelError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--checkpoint", type=Path, required=True, help="the --out folder of `dragoman train`")
    parser.add_argument("--out", type=Path, required=True, help="bundle folder to write")
    parser.add_argument("--name", help="model name for callers; default: the folder's name")
    parser.add_argument(
        "--precision", choices=sorted(DEVICES), default="fp32", help="int8 is for the CPU (default: fp32)"
    )
    parser.add_argument(
        "--data", type=Path, help="held-out TSV for the text comparison; int8 needs it to measure quality"
    )
    parser.add_argument(
        "--no-verify", action="store_true", help="write the bundle without comparing it; for experiments"
    )


def run(args: argparse.Namespace) -> int:
    """Export and verify."""
    if args.precision == "int8" and args.data is None and not args.no_verify:
        raise ExportError(
            "int8 changes the numbers, so its quality must be measured: give --data FILE.tsv with held-out pairs"
        )
    checkpoint = load_checkpoint(args.checkpoint)
    pairs = list(read_pairs(args.data)) if args.data else None

    def check(folder: Path) -> dict[str, object]:
        report = verify(folder, checkpoint, pairs)
        numbers = require(report)
        print(report.table())
        return numbers

    manifest = write_bundle(
        checkpoint,
        args.out,
        name=args.name or args.out.resolve().name,
        precision=args.precision,
        verify=None if args.no_verify else check,
    )
    size = sum(path.stat().st_size for path in args.out.iterdir())
    print(f"{args.out}: {manifest.name} {manifest.precision} version {manifest.version}, {size / 1e6:.1f} MB")
    return 0
