"""`dragoman train`: recipe + corpus -> checkpoints."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch

from dragoman.model.checkpoint import (
    Checkpoint,
    delete_run,
    latest_checkpoint,
    load_checkpoint,
    load_training_state,
)
from dragoman.model.config import Recipe
from dragoman.model.data import Pair, read_pairs, tokenize_pairs
from dragoman.model.errors import ConfigError, ModelError
from dragoman.model.tokenizer import Tokenizer, train_tokenizer
from dragoman.model.train import Trainer
from dragoman.model.transformer import Transformer

HELP = "train a model on a corpus folder"
ERRORS: tuple[type[Exception], ...] = (ModelError,)
_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--recipe", type=Path, required=True, help="TOML file with model, tokenizer and training settings"
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with train.tsv and valid.tsv")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run; an existing run is continued")
    parser.add_argument("--restart", action="store_true", help="delete an existing run in --out and begin again")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 leaves the choice to torch")


def run(args: argparse.Namespace) -> int:
    """Train until the recipe's end; SIGINT and SIGTERM stop between two updates and save."""
    recipe = Recipe.load(args.recipe)
    if args.threads:
        torch.set_num_threads(args.threads)
    training, validation = (read_pairs(args.data / f"{name}.tsv") for name in ("train", "valid"))
    if args.restart:
        delete_run(args.out)
    torch.manual_seed(recipe.training.seed)
    folder = latest_checkpoint(args.out)
    if folder is None:
        tokenizer = _train_tokenizer(training, recipe)
        model = Transformer(recipe.model_config(tokenizer.vocab_size))
    else:
        checkpoint = load_checkpoint(folder)
        _check_same(checkpoint, recipe)
        model, tokenizer = checkpoint.model, checkpoint.tokenizer
        print(f"continuing {folder}", file=sys.stderr)
    stop = threading.Event()
    trainer = Trainer(
        model,
        tokenizer,
        recipe.training,
        training=tokenize_pairs(training, tokenizer),
        validation=tokenize_pairs(validation, tokenizer),
        run=args.out,
        languages=(recipe.source_language, recipe.target_language),
        stop=stop.is_set,
    )
    if folder is not None:
        trainer.restore(load_training_state(folder))
    with _stopping(stop):
        progress = trainer.train()
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f"{progress.step} steps, {progress.seconds / 60:.1f} min, "
        f"{parameters / 1e6:.1f} M parameters -> {latest_checkpoint(args.out)}"
    )
    if trainer.finished:
        return 0
    print("stopped before the end; the same command continues", file=sys.stderr)
    return _INTERRUPTED


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


def _check_same(checkpoint: Checkpoint, recipe: Recipe) -> None:
    """Refuse to continue a run of another model: what the recipe says would be ignored."""
    now = {
        **recipe.model_config(checkpoint.tokenizer.vocab_size).to_dict(),
        "source_language": recipe.source_language,
        "target_language": recipe.target_language,
    }
    then = {
        **checkpoint.model.config.to_dict(),
        "source_language": checkpoint.source_language,
        "target_language": checkpoint.target_language,
    }
    differing = [f"{name} was {then[name]} and is {now[name]}" for name in now if now[name] != then[name]]
    if differing:
        raise ConfigError(
            f"{checkpoint.path} was trained with other settings: {'; '.join(differing)}. "
            "Restore the recipe, choose another --out, or begin again with --restart"
        )


def _train_tokenizer(pairs: list[Pair], recipe: Recipe) -> Tokenizer:
    print(f"training a vocabulary of {recipe.tokenizer.vocab_size} pieces", file=sys.stderr)

    def texts() -> Iterator[str]:
        for pair in pairs[: recipe.tokenizer.sample_pairs]:
            yield pair.source
            yield pair.target

    try:
        return train_tokenizer(texts(), recipe.tokenizer.vocab_size)
    except RuntimeError as error:
        raise ModelError(f"SentencePiece cannot make this vocabulary: {error}") from error
