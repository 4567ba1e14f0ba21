"""`dragoman train`: recipe + corpus -> checkpoints."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from dragoman.model.checkpoint import (
    best_checkpoint,
    checkpoints,
    latest_checkpoint,
    load_checkpoint,
    load_training_state,
    require_run_folder,
)
from dragoman.model.commands.arguments import MAX_THREADS, whole_number
from dragoman.model.commands.starting_point import StartingPoint, continued, from_weights, new_model
from dragoman.model.commands.stopping import stopping
from dragoman.model.data import TrainingData
from dragoman.model.device import Precision, Processes, choose_device, keep_freed_memory
from dragoman.model.errors import ConfigError, ModelError
from dragoman.model.folder_lock import FolderInUse, hold_folder
from dragoman.model.readers import Pair, PairFiles, supported_formats
from dragoman.model.recipe import Recipe
from dragoman.model.run_settings import describe_run
from dragoman.model.train import Trainer
from dragoman.model.transformer import count_parameters

HELP = "train a model on a corpus folder"
ERRORS: tuple[type[Exception], ...] = (ModelError,)
_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--recipe", type=Path, required=True, help="TOML file with model, tokenizer and training settings"
    )
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument("--data", type=Path, help="folder with train.tsv and valid.tsv, as `dragoman corpus` writes")
    data.add_argument(
        "--train",
        type=Path,
        nargs="+",
        metavar="FILE",
        help=f"training pairs, together with --valid: {supported_formats()}",
    )
    parser.add_argument("--valid", type=Path, nargs="+", metavar="FILE", help="validation pairs, in the same formats")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run; an existing run is continued")
    parser.add_argument(
        "--restart",
        action="store_true",
        help="begin again: an existing run in --out is deleted once the new one has made its first update",
    )
    parser.add_argument(
        "--start-from",
        type=Path,
        metavar="CHECKPOINT",
        help="begin a new run with the weights and the vocabulary of another one (fine-tuning); optimizer, learning "
        "rate and data begin anew",
    )
    parser.add_argument(
        "--threads", type=whole_number(0, MAX_THREADS), default=0, help="CPU threads; 0 takes all (default: 0)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    parser.add_argument(
        "--plot",
        choices=("png", "svg"),
        help="draw loss, chrF and learning rate, and the attention of one sentence, into --out at the end "
        "(of a finished run, too)",
    )
    parser.add_argument("--tensorboard", action="store_true", help="write TensorBoard events into --out/tensorboard")


def run(args: argparse.Namespace) -> int:
    """Train until the recipe's end; SIGINT and SIGTERM stop between two updates and save."""
    recipe = Recipe.load(args.recipe)
    for wanted, module in ((args.plot, "matplotlib"), (args.tensorboard, "tensorboard")):
        if wanted and importlib.util.find_spec(module) is None:  # now, not after hours of training
            raise ConfigError(f"this option needs {module}, which is not installed: pip install 'dragoman[plots]'")
    keep_freed_memory()
    sharing = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes that torchrun started on this machine
    torch.set_num_threads(args.threads or max(1, len(os.sched_getaffinity(0)) // sharing))
    device = choose_device(args.device)
    processes = Processes.join(device)
    try:
        return _train(args, recipe, device, processes)
    finally:
        processes.leave()


def _train(args: argparse.Namespace, recipe: Recipe, device: torch.device, processes: Processes) -> int:
    # All that can be wrong is looked at before there is anything to lose: time, or the run in --out.
    require_run_folder(args.out, "--out")
    Precision.choose(recipe.training.precision, device)
    languages = (recipe.source_language, recipe.target_language)
    training, validation = _files(args)
    training.read(languages)
    with _held(args.out, processes):
        pairs = list(validation.read(languages))
        settings = describe_run(recipe, {"training": training, "validation": validation})
        torch.manual_seed(recipe.training.seed)
        start = _start(args, recipe, settings, training, leads=processes.leads)
        if not processes.leads:
            torch.manual_seed(recipe.training.seed + processes.rank)  # the same weights, but dropout of its own
        stop = threading.Event()
        trainer = Trainer(
            start.model,
            start.tokenizer,
            recipe.training,
            training=TrainingData(lambda: training.read(languages), start.tokenizer, recipe.training),
            validation=pairs,
            run=args.out,
            languages=languages,
            replaces=args.restart,
            trained_with=settings,
            processes=processes,
            device=device,
            observe=_tensorboard(args.out) if args.tensorboard and processes.leads else lambda _: None,
            stop=stop.is_set,
        )
        if start.checkpoint is not None:
            trainer.restore(load_training_state(start.checkpoint))
        with stopping(stop):
            trainer.train()
        return _finish(args, trainer) if processes.leads else 0


def _start(
    args: argparse.Namespace, recipe: Recipe, settings: dict[str, Any], training: PairFiles, *, leads: bool
) -> StartingPoint:
    """Return what the run begins with, by what lies in --out and the options."""

    def say(text: str) -> None:
        if leads:
            print(text, file=sys.stderr)

    folder = None if args.restart else latest_checkpoint(args.out)
    if folder is not None:
        if args.start_from is not None:
            say(f"--start-from is of no effect: --out {args.out} holds a run, which goes on (unless with --restart)")
        return continued(folder, recipe, settings, say)
    if args.start_from is None:
        return new_model(recipe, training, say)
    if args.restart and args.start_from.resolve() in [path.resolve() for path in (args.out, *checkpoints(args.out))]:
        raise ConfigError(
            f"--start-from {args.start_from} lies in --out, which --restart deletes; choose another --out"
        )
    return from_weights(args.start_from, recipe, settings, say)


@contextmanager
def _held(out: Path, processes: Processes) -> Iterator[None]:
    """Make the folder of the run, and keep others from training into it.

    Raises:
        ConfigError: It cannot be written into, or somebody trains into it.
    """
    with ExitStack() as stack:
        if processes.leads:
            try:
                stack.enter_context(hold_folder(out))
            except FolderInUse as error:
                raise ConfigError(
                    f"--out {out} is in use by another training (process {error.holder}); wait for it to end, or "
                    "choose another folder"
                ) from None
            except OSError as error:
                raise ConfigError(f"--out {out} cannot be written into: {error.strerror or error}") from error
        processes.wait()
        yield


def _finish(args: argparse.Namespace, trainer: Trainer) -> int:
    """Say how the run stands and draw it; returns the exit code."""
    progress = trainer.progress
    newest, best = latest_checkpoint(args.out), best_checkpoint(args.out)
    if progress.step and newest is not None and best is not None:
        print(
            f"{progress.step} steps, {progress.seconds / 60:.1f} min, "
            f"{count_parameters(trainer.model) / 1e6:.1f} M parameters -> {newest}"
            + (f"; the best by validation is {best.name}" if best != newest else "")
        )
    if progress.step and args.plot and trainer.validation.pairs:
        _plot(args.out, args.plot, trainer.validation.pairs[0])
    if trainer.finished:
        print(f"the run has ended by {trainer.ending}", file=sys.stderr)
        return 0
    if args.restart and not progress.step:
        print("stopped before the first update; what lies in --out is as it was", file=sys.stderr)
    else:
        command = "the same command without --restart" if args.restart else "the same command"
        print(f"stopped before the end; {command} continues", file=sys.stderr)
    return _INTERRUPTED


def _tensorboard(run: Path) -> Callable[[dict[str, Any]], None]:
    """Return a function that hands an entry of the log to TensorBoard."""
    from torch.utils.tensorboard import SummaryWriter

    writers: list[SummaryWriter] = []

    def write(entry: dict[str, Any]) -> None:
        if not writers:  # not before there is an entry: until then the folder may be that of a run to be deleted
            writers.append(SummaryWriter(run / "tensorboard"))
        for name, value in entry.items():
            if name != "step":
                writers[0].add_scalar(name, value, entry["step"])
        writers[0].flush()

    return write


def _plot(run: Path, suffix: str, pair: Pair) -> None:
    from dragoman.model import plot

    curves, attention = run / f"curves.{suffix}", run / f"attention.{suffix}"
    plot.draw_curves(plot.read_log(run), curves)
    source, target, weights = plot.cross_attention(load_checkpoint(run), pair.source, pair.target)
    plot.draw_attention((source, target), weights, attention)
    print(f"pictures: {curves}, {attention}", file=sys.stderr)


def _files(args: argparse.Namespace) -> tuple[PairFiles, PairFiles]:
    """Return the training and the validation files.

    Raises:
        ConfigError: Only one of the two is given, or more than two files for one.
    """
    if args.data is not None:
        if args.valid:
            raise ConfigError("--valid goes with --train; --data has a valid.tsv of its own")
        train, valid = (PairFiles.of("--data", [args.data / f"{name}.tsv"]) for name in ("train", "valid"))
        return train, valid
    if not args.valid:
        raise ConfigError("--train needs --valid: pairs that are not trained on, to see how training goes")
    return PairFiles.of("--train", args.train), PairFiles.of("--valid", args.valid)
