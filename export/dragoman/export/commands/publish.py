"""From a checkpoint in memory to a verified bundle: what `dragoman export` and `dragoman import` have in common."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from dragoman.export.calibration import MOST_TEXTS, tokenize
from dragoman.export.commands.verify import chosen_languages, compare
from dragoman.export.errors import ExportError
from dragoman.export.verify import require, requirement
from dragoman.export.write import DEVICES, devices_for, write_bundle
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.readers import Pair

_CALIBRATED = "int8-static"


def add_publish_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that say what kind of bundle is written and what it is measured with."""
    parser.add_argument("--name", help="model name for callers; default: the bundle folder's name")
    parser.add_argument(
        "--precision",
        choices=sorted(DEVICES),
        default="fp32",
        help="int8, int8-static, int8-weights and int4 are for the CPU, fp16 for GPUs (default: fp32)",
    )
    parser.add_argument(
        "--device",
        choices=sorted({device for devices in DEVICES.values() for device in devices}),
        help="what the bundle is for; cpu makes a step of fp32 faster there, and keeps the bundle off GPUs (default: "
        "all devices that the precision can run on)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="held-out TSV for the text comparison; precisions that change the numbers need it to measure quality, and "
        "int8-static takes its scales from the pairs behind the first --sentences",
    )


def check_publish_options(args: argparse.Namespace) -> None:
    """Refuse what cannot work, before anything that takes long.

    Raises:
        ExportError: Says what to give.
    """
    devices_for(args.precision, chosen_devices(args))
    if args.data is not None:
        return
    if args.precision == _CALIBRATED:
        raise ExportError(f"{_CALIBRATED} takes its scales from texts: give --data FILE.tsv with pairs")
    if requirement(args.precision).needs_references and not args.no_verify:
        raise ExportError(
            f"{args.precision} changes the numbers, so its quality must be measured: give --data FILE.tsv with "
            "held-out pairs"
        )


def chosen_devices(args: argparse.Namespace) -> tuple[str, ...] | None:
    """Return what --device says, None where it is not given."""
    return None if args.device is None else (args.device,)


def publish(checkpoint: Checkpoint, args: argparse.Namespace, pairs: Sequence[Pair] | None) -> None:
    """Write the bundle, verify it unless --no-verify, and say what was written.

    Raises:
        ExportError: It cannot be written, or verification failed; nothing is left behind.
    """

    def check(folder: Path) -> dict[str, object]:
        report = compare(args, folder, checkpoint, pairs)
        numbers = require(report)
        print(report.table())
        return numbers

    calibration = []
    if args.precision == _CALIBRATED:
        texts = calibration_texts(pairs or (), args.sentences)
        calibration = tokenize(checkpoint, texts, chosen_languages(args, checkpoint))
    manifest = write_bundle(
        checkpoint,
        args.out,
        name=args.name or args.out.resolve().name,
        precision=args.precision,
        verify=None if args.no_verify else check,
        calibration=calibration,
        devices=chosen_devices(args),
    )
    size = sum(path.stat().st_size for path in args.out.iterdir())
    print(
        f"{args.out}: {manifest.name} {manifest.precision} for {' and '.join(manifest.devices)}, "
        f"version {manifest.version}, {size / 1e6:.1f} MB"
    )


def calibration_texts(pairs: Sequence[Pair], compared: int) -> Sequence[Pair]:
    """Return pairs that quality is not measured on, or where there are few, all of them."""
    others = pairs[compared : compared + MOST_TEXTS]
    return others if len(others) >= compared else pairs[-MOST_TEXTS:]
