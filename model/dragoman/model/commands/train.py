"""`dragoman train`: recipe + corpus -> checkpoints."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from dragoman.model.checkpoint import (
    Checkpoint,
    delete_run,
    latest_checkpoint,
    load_checkpoint,
    load_training_state,
)
from dragoman.model.data import TrainingData
from dragoman.model.device import Processes, choose_device, keep_freed_memory
from dragoman.model.errors import ConfigError, ModelError
from dragoman.model.readers import Pair, read_pairs, supported_formats
from dragoman.model.recipe import Recipe
from dragoman.model.tokenizers import Tokenizer, train_tokenizer
from dragoman.model.train import Trainer
from dragoman.model.transformer import Transformer, count_parameters

HELP = "train a model on a corpus folder"
ERRORS: tuple[type[Exception], ...] = (ModelError,)
_INTERRUPTED = 130
_TO_RESUME = "Restore the recipe, choose another --out, or begin again with --restart"
_DROPOUTS = ("dropout", "attention_dropout", "feed_forward_dropout")


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
    parser.add_argument("--restart", action="store_true", help="delete an existing run in --out and begin again")
    parser.add_argument(
        "--start-from",
        type=Path,
        metavar="CHECKPOINT",
        help="begin a new run with the weights and the vocabulary of another one (fine-tuning); optimizer, learning "
        "rate and data begin anew",
    )
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 takes all")
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
    languages = (recipe.source_language, recipe.target_language)
    training, validation = _files(args)
    read = partial(read_pairs, training[0], second=training[1], languages=languages)
    if args.restart and processes.leads:
        delete_run(args.out)
    processes.wait()
    torch.manual_seed(recipe.training.seed)
    folder = latest_checkpoint(args.out)
    if folder is None and args.start_from is not None:
        model, tokenizer = _start_from(load_checkpoint(args.start_from), recipe)
    elif folder is None:
        tokenizer = _train_tokenizer(read(), recipe)
        model = Transformer(recipe.model_config(tokenizer.vocab_size))
    else:
        checkpoint = load_checkpoint(folder)
        _check_same(checkpoint, recipe)
        model, tokenizer = checkpoint.model, checkpoint.tokenizer
        print(f"continuing {folder}", file=sys.stderr)
    if not processes.leads:
        torch.manual_seed(recipe.training.seed + processes.rank)  # the same weights, but dropout of its own
    stop = threading.Event()
    trainer = Trainer(
        model,
        tokenizer,
        recipe.training,
        training=TrainingData(read, tokenizer, recipe.training),
        validation=list(read_pairs(validation[0], second=validation[1], languages=languages)),
        run=args.out,
        languages=languages,
        processes=processes,
        device=device,
        observe=_tensorboard(args.out) if args.tensorboard and processes.leads else lambda _: None,
        stop=stop.is_set,
    )
    if folder is not None:
        trainer.restore(load_training_state(folder))
    with _stopping(stop):
        progress = trainer.train()
    if not processes.leads:
        return 0
    print(
        f"{progress.step} steps, {progress.seconds / 60:.1f} min, "
        f"{count_parameters(model) / 1e6:.1f} M parameters -> {latest_checkpoint(args.out)}"
    )
    if args.plot and trainer.validation.pairs:
        _plot(args.out, args.plot, trainer.validation.pairs[0])
    if trainer.finished:
        return 0
    print("stopped before the end; the same command continues", file=sys.stderr)
    return _INTERRUPTED


def _tensorboard(run: Path) -> Callable[[dict[str, Any]], None]:
    """Return a function that hands an entry of the log to TensorBoard."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(run / "tensorboard")

    def write(entry: dict[str, Any]) -> None:
        for name, value in entry.items():
            if name != "step":
                writer.add_scalar(name, value, entry["step"])
        writer.flush()

    return write


def _plot(run: Path, suffix: str, pair: Pair) -> None:
    from dragoman.model import plot

    curves, attention = run / f"curves.{suffix}", run / f"attention.{suffix}"
    plot.draw_curves(plot.read_log(run), curves)
    source, target, weights = plot.cross_attention(load_checkpoint(run), pair.source, pair.target)
    plot.draw_attention((source, target), weights, attention)
    print(f"pictures: {curves}, {attention}", file=sys.stderr)


def _files(args: argparse.Namespace) -> list[tuple[Path, Path | None]]:
    """Return the training and the validation file, each with the one of its targets if that is another.

    Raises:
        ConfigError: Only one of the two is given, or more than two files for one.
    """
    if args.data is not None:
        if args.valid:
            raise ConfigError("--valid goes with --train; --data has a valid.tsv of its own")
        return [(args.data / f"{name}.tsv", None) for name in ("train", "valid")]
    if not args.valid:
        raise ConfigError("--train needs --valid: pairs that are not trained on, to see how training goes")
    for option, files in (("--train", args.train), ("--valid", args.valid)):
        if len(files) > 2:
            raise ConfigError(f"{option} has {len(files)} files; give one of {supported_formats()}")
    return [(files[0], files[1] if len(files) == 2 else None) for files in (args.train, args.valid)]


@contextmanager
def _stopping(stop: threading.Event) -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into a request; a second one ends the process at once."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def request(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # the handler's signature
        print("\nstopping after this update; once more to stop at once", file=sys.stderr)
        stop.set()
        restore()

    for number in before:
        signal.signal(number, request)
    try:
        yield
    finally:
        restore()


def _start_from(checkpoint: Checkpoint, recipe: Recipe) -> tuple[Transformer, Tokenizer]:
    """Return a model of the recipe with another run's weights, and that run's tokenizer.

    Dropout may be another one, as it has no weights.

    Raises:
        ConfigError: The recipe describes another architecture.
    """
    _check_same(checkpoint, recipe, "Describe the same model in the recipe", ignored=_DROPOUTS)
    model = Transformer(recipe.model_config(checkpoint.tokenizer.vocab_size))
    model.load_state_dict(checkpoint.model.state_dict())
    print(f"starting from {checkpoint.path}", file=sys.stderr)
    return model, checkpoint.tokenizer


def _check_same(
    checkpoint: Checkpoint, recipe: Recipe, advice: str = _TO_RESUME, *, ignored: Container[str] = ()
) -> None:
    """Refuse a recipe of another model than the checkpoint's: what the recipe says would be ignored."""
    now = {
        **recipe.model_config(checkpoint.tokenizer.vocab_size).to_dict(),
        "source_language": recipe.source_language,
        "target_language": recipe.target_language,
        "vocab_size": recipe.tokenizer.vocab_size,
    }
    then = {
        **checkpoint.model.config.to_dict(),
        "source_language": checkpoint.source_language,
        "target_language": checkpoint.target_language,
    }
    differing = [
        f"{name} was {then[name]} and is {now[name]}" for name in now if name not in ignored and now[name] != then[name]
    ]
    if differing:
        raise ConfigError(f"{checkpoint.path} was trained with other settings: {'; '.join(differing)}. {advice}")


def _train_tokenizer(pairs: Iterable[Pair], recipe: Recipe) -> Tokenizer:
    config = recipe.tokenizer
    print(f"training a vocabulary of {config.vocab_size} pieces", file=sys.stderr)

    def texts() -> Iterator[str]:
        for pair in itertools.islice(pairs, config.sample_pairs):
            yield pair.source
            yield pair.target

    try:
        return train_tokenizer(
            texts(), config.vocab_size, split_digits=config.split_digits, user_symbols=config.user_symbols
        )
    except RuntimeError as error:
        raise ModelError(f"SentencePiece cannot make this vocabulary: {error}") from error
