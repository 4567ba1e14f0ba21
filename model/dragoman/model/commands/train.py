"""`dragoman train`: recipe + corpus -> checkpoints."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from dragoman.model.checkpoint import latest_checkpoint, load_checkpoint, load_training_state
from dragoman.model.config import Recipe
from dragoman.model.data import Pair, read_pairs, tokenize_pairs
from dragoman.model.errors import ModelError
from dragoman.model.tokenizer import Tokenizer, train_tokenizer
from dragoman.model.train import Trainer
from dragoman.model.transformer import Transformer

HELP = "train a model on a corpus folder"
ERRORS: tuple[type[Exception], ...] = (ModelError,)


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
    """Train until the recipe's end."""
    recipe = Recipe.load(args.recipe)
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.restart:
        shutil.rmtree(args.out, ignore_errors=True)
    training, validation = (read_pairs(args.data / f"{name}.tsv") for name in ("train", "valid"))
    torch.manual_seed(recipe.training.seed)
    folder = latest_checkpoint(args.out)
    if folder is None:
        tokenizer = _train_tokenizer(training, recipe)
        model = Transformer(recipe.model_config(tokenizer.vocab_size))
    else:
        checkpoint = load_checkpoint(folder)
        model, tokenizer = checkpoint.model, checkpoint.tokenizer
        print(f"continuing {folder}", file=sys.stderr)
    trainer = Trainer(
        model,
        tokenizer,
        recipe.training,
        training=tokenize_pairs(training, tokenizer),
        validation=tokenize_pairs(validation, tokenizer),
        run=args.out,
        languages=(recipe.source_language, recipe.target_language),
    )
    if folder is not None:
        trainer.restore(load_training_state(folder))
    progress = trainer.train()
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f"{progress.step} steps, {progress.epoch} full epochs, {progress.seconds / 60:.1f} min, "
        f"{parameters / 1e6:.1f} M parameters -> {latest_checkpoint(args.out)}"
    )
    return 0


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
