"""`dragoman import`: a checkpoint of another library -> verified bundle, and a checkpoint to train on if asked for."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from dragoman.export.commands.publish import add_publish_arguments, check_publish_options, publish
from dragoman.export.commands.verify import add_verification_arguments, check_verification_options, held_out_pairs
from dragoman.export.errors import ExportError
from dragoman.model.checkpoint import Checkpoint, checkpoints, require_run_folder, save_checkpoint
from dragoman.model.errors import ModelError
from dragoman.model.importers import FORMATS, importer
from dragoman.model.importers.recipe_file import fine_tuning_recipe
from dragoman.model.transformer import count_parameters

HELP = "write a bundle from a checkpoint of another library"
ERRORS: tuple[type[Exception], ...] = (ExportError, ModelError)

_RECIPE = "recipe.toml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare one sub-parser per format, with the options of all and its own."""
    formats = parser.add_subparsers(dest="format", required=True, metavar="FORMAT", title="formats")
    for name in FORMATS:
        try:
            module = importer(name)
        except ModuleNotFoundError as error:
            # One format that cannot be read here must not keep the others from being read.
            _add_unusable(formats.add_parser(name, help=f"not available: {error}"), str(error))
            continue
        # "resolve": a format may say more precisely what an option of all means for it.
        own = formats.add_parser(
            name, help=module.SUMMARY, description=module.SUMMARY, conflict_handler="resolve", allow_abbrev=False
        )
        _add_common(own)
        module.add_arguments(own)


def run(args: argparse.Namespace) -> int:
    """Import, save, export and verify."""
    if "reason" in args:
        raise ExportError(f"the format {args.format!r} cannot be read here: {args.reason}")
    _check(args)
    check_verification_options(args)
    checkpoint = _with_languages(importer(args.format).import_model(args.path, args), args)
    several = checkpoint.languages is not None  # in a model of one pair, there is no choice for the comparison
    args.source_language = (several and args.source_language) or ""
    args.target_language = (several and args.target_language) or ""
    pairs = held_out_pairs(args, checkpoint)
    config = checkpoint.model.config
    print(
        f"{args.path}: {count_parameters(checkpoint.model) / 1e6:.1f} M parameters, {config.num_encoder_layers} + "
        f"{config.num_decoder_layers} layers, {config.vocab_size} target tokens, {_listing(checkpoint)}"
    )
    if args.checkpoint is not None:
        _save(checkpoint, args.checkpoint)
    if args.out is not None:
        publish(checkpoint, args, pairs)
    return 0


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="PATH", help="file or folder of the model")
    parser.add_argument("-o", "--out", type=Path, metavar="BUNDLE", help="bundle folder to write")
    add_publish_arguments(parser)
    add_verification_arguments(parser)
    parser.add_argument(
        "--no-verify", action="store_true", help="write the bundle without comparing it; for experiments"
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FOLDER",
        help="also save a checkpoint there, for `dragoman evaluate`, `verify` and, with the recipe beside it, "
        "`train --start-from`; without --out, nothing else",
    )
    parser.add_argument(
        "--source-language", default="", metavar="TAG", help="BCP-47 tag, where the model does not say it"
    )
    parser.add_argument("--target-language", default="", metavar="TAG", help="likewise")


def _add_unusable(parser: argparse.ArgumentParser, reason: str) -> None:
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(reason=reason)


def _check(args: argparse.Namespace) -> None:
    if args.out is None and args.checkpoint is None:
        raise ExportError("nothing to write: give --out BUNDLE, --checkpoint FOLDER or both")
    if args.out is not None:
        check_publish_options(args)
    if args.report is not None and (args.no_verify or args.out is None):
        raise ExportError("--report is about a verification, which there is none without --out and with --no-verify")
    if args.checkpoint is None:
        return
    require_run_folder(args.checkpoint, "--checkpoint")
    if args.out is not None and args.checkpoint.resolve().is_relative_to(args.out.resolve()):
        raise ExportError(
            f"--checkpoint {args.checkpoint} lies in --out {args.out}, which is written as a whole; choose another "
            "--checkpoint"
        )
    if checkpoints(args.checkpoint):
        raise ExportError(f"{args.checkpoint} holds a checkpoint already; choose another --checkpoint or delete it")


def _with_languages(checkpoint: Checkpoint, args: argparse.Namespace) -> Checkpoint:
    """Return the checkpoint with the languages that the user names; a model of several has its own."""
    if checkpoint.languages is not None:
        return checkpoint
    source = args.source_language or checkpoint.source_language
    target = args.target_language or checkpoint.target_language
    if not source or not target:
        raise ExportError(
            "the model does not say what it translates: give --source-language and --target-language, such as en and de"
        )
    return replace(checkpoint, source_language=source, target_language=target)


def _listing(checkpoint: Checkpoint) -> str:
    if checkpoint.languages is None:
        return f"{checkpoint.source_language} to {checkpoint.target_language}"
    return f"{len(checkpoint.languages.sources)} source and {len(checkpoint.languages.targets)} target languages"


def _save(checkpoint: Checkpoint, folder: Path) -> None:
    saved = save_checkpoint(
        folder,
        checkpoint.model,
        checkpoint.tokenizer,
        languages=(checkpoint.source_language, checkpoint.target_language),
        step=checkpoint.step,
        several=checkpoint.languages,
    )
    print(f"{saved}: checkpoint")
    if (recipe := fine_tuning_recipe(checkpoint)) is not None:
        (folder / _RECIPE).write_text(recipe, "utf-8")
        print(
            f"{folder / _RECIPE}: describes it for `dragoman train --recipe {folder / _RECIPE} --start-from {folder}`"
        )
