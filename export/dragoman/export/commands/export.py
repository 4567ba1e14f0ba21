"""`dragoman export`: checkpoint -> verified bundle."""

from __future__ import annotations

import argparse
from pathlib import Path

from dragoman.export.commands.publish import add_publish_arguments, check_publish_options, publish
from dragoman.export.commands.verify import add_verification_arguments, held_out_pairs
from dragoman.export.ctranslate2 import verify_ctranslate2, write_ctranslate2
from dragoman.export.errors import ExportError
from dragoman.model.checkpoint import Checkpoint, load_checkpoint
from dragoman.model.errors import ModelError

HELP = "write a bundle from a checkpoint"
ERRORS: tuple[type[Exception], ...] = (ExportError, ModelError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--checkpoint", type=Path, required=True, help="the --out folder of `dragoman train`")
    parser.add_argument("--out", type=Path, required=True, help="bundle folder to write")
    parser.add_argument(
        "--format",
        choices=("dragoman", "ctranslate2"),
        default="dragoman",
        help="ctranslate2: a model folder of that engine instead of a bundle (default: dragoman)",
    )
    add_publish_arguments(parser)
    add_verification_arguments(parser)
    parser.add_argument(
        "--no-verify", action="store_true", help="write the bundle without comparing it; for experiments"
    )


def run(args: argparse.Namespace) -> int:
    """Export and verify."""
    if args.format == "ctranslate2":
        return _export_ctranslate2(args)
    check_publish_options(args)
    if args.report is not None and args.no_verify:
        raise ExportError("--report is about the verification that --no-verify leaves out; give one of them")
    checkpoint = _load(args.checkpoint)
    pairs = held_out_pairs(args, checkpoint)
    publish(checkpoint, args, pairs)
    return 0


def _export_ctranslate2(args: argparse.Namespace) -> int:
    if args.device is not None:
        raise ExportError("--device is about bundles: a CTranslate2 model runs on any device; leave it out")
    checkpoint = _load(args.checkpoint)

    def check(folder: Path) -> None:
        print(verify_ctranslate2(folder, checkpoint, precision=args.precision))

    write_ctranslate2(checkpoint, args.out, precision=args.precision, verify=None if args.no_verify else check)
    size = sum(path.stat().st_size for path in args.out.iterdir())
    print(f"{args.out}: CTranslate2 model, {args.precision}, {size / 1e6:.1f} MB")
    return 0


def _load(path: Path) -> Checkpoint:
    """Load the checkpoint, and say which one of a run it is."""
    checkpoint = load_checkpoint(path)
    print(f"{checkpoint.path}: checkpoint of step {checkpoint.step}")
    return checkpoint
