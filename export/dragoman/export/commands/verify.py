"""`dragoman verify`: compare a bundle with the checkpoint it was made from; exit code 1 if they differ."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from dragoman.export import bundle
from dragoman.export.errors import ExportError
from dragoman.export.verify import SENTENCES, Report, first_languages, verify
from dragoman.model.checkpoint import Checkpoint, load_checkpoint
from dragoman.model.errors import ModelError
from dragoman.model.languages import Languages
from dragoman.model.readers import Pair, read_pairs

HELP = "compare a bundle with its checkpoint"
ERRORS: tuple[type[Exception], ...] = (ExportError, ModelError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("bundle", type=Path, help="bundle folder")
    parser.add_argument("--checkpoint", type=Path, required=True, help="the --out folder of `dragoman train`")
    parser.add_argument("--data", type=Path, help="held-out TSV; default: random sources, no quality numbers")
    add_verification_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the whole report as one JSON object")


def add_verification_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that `dragoman export` has, too."""
    parser.add_argument("--source-language", default="", metavar="TAG", help="of --data, if the model has several")
    parser.add_argument("--target-language", default="", metavar="TAG", help="of --data, if the model has several")
    parser.add_argument(
        "--sentences", type=int, default=SENTENCES, metavar="N", help="texts to compare (default: %(default)s)"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the whole report there as JSON")


def run(args: argparse.Namespace) -> int:
    """Verify and report."""
    bundle.require_manifest(args.bundle)  # before the checkpoint is loaded, which takes long
    checkpoint = load_checkpoint(args.checkpoint)
    report = compare(args, args.bundle, checkpoint, held_out_pairs(args, checkpoint))
    print(json.dumps(report.to_dict()) if args.json else report.table())
    return 1 if report.problems else 0


def check_verification_options(args: argparse.Namespace) -> None:
    """Check what can be checked without the model.

    Raises:
        ExportError: An option is wrong.
    """
    if args.sentences < 1:
        raise ExportError(f"--sentences is {args.sentences}; it must be at least 1")
    if args.report is not None and not args.report.resolve().parent.is_dir():
        raise ExportError(f"cannot write --report {args.report}: there is no folder {args.report.resolve().parent}")
    if args.report is not None and args.report.is_dir():
        raise ExportError(f"cannot write --report {args.report}: it is a folder; name a file in it")
    if args.data is not None and not args.data.exists():
        raise ExportError(f"--data {args.data} does not exist")


def held_out_pairs(args: argparse.Namespace, checkpoint: Checkpoint) -> list[Pair] | None:
    """Check the options and read --data, if it is given, before anything that takes long.

    Args:
        args: The options.
        checkpoint: Whose languages are asked for.

    Raises:
        ExportError: An option is wrong.
        ConfigError: The model has no language that was asked for, or several and none was chosen.
        DataError: The file cannot be used.
    """
    check_verification_options(args)
    languages = chosen_languages(args, checkpoint)
    if args.data is None:
        return None
    return list(read_pairs(args.data, languages=languages if all(languages) else None))


def chosen_languages(args: argparse.Namespace, checkpoint: Checkpoint) -> tuple[str, str]:
    """Return the languages of --data, as the options say or as there is only one choice; empty if any will do.

    Raises:
        ConfigError: The model has no language that was asked for, or several and none was chosen.
    """
    default = checkpoint.source_language, checkpoint.target_language
    languages = checkpoint.languages or Languages.pair(*default)
    return first_languages(
        languages, default, args.source_language, args.target_language, any_will_do=args.data is None
    )


def compare(args: argparse.Namespace, folder: Path, checkpoint: Checkpoint, pairs: Sequence[Pair] | None) -> Report:
    """Compare as the options say, and write the report that they ask for.

    Raises:
        ExportError: The bundle does not run, or the report cannot be written.
    """
    report = verify(
        folder,
        checkpoint,
        pairs,
        source_language=args.source_language,
        target_language=args.target_language,
        sentences=args.sentences,
    )
    if args.report is not None:
        content = json.dumps(report.to_dict(), indent=2, ensure_ascii=False) + "\n"
        try:
            args.report.write_text(content, "utf-8")
        except OSError as error:
            raise ExportError(f"cannot write --report {args.report}: {error.strerror}; choose another file") from error
    return report
