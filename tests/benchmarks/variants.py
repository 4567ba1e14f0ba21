"""Trains each variant of the model on the generated task and counts exact answers on held-out text.

Norm position x kind of positions x kind of decoder layer. The task has one right answer per source,
so a variant that is wired wrongly shows as a number below 98 %.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from dragoman.model.cached_search import translate_texts
from dragoman.model.data import TrainingData
from dragoman.model.generated import write_corpus
from dragoman.model.readers import Pair, read_pairs
from dragoman.model.recipe import Recipe
from dragoman.model.tokenizers import Tokenizer, train_tokenizer
from dragoman.model.train import Trainer
from dragoman.model.transformer import Transformer

RECIPE = Path(__file__).parents[2] / "model" / "recipes" / "numbers.toml"
NORMS = ("post", "pre")
POSITIONS = ("sinusoidal", "sinusoidal-half", "learned", "rotary", "relative", "none")
DECODERS = ("self-attention", "ssru")


def exact(model: Transformer, tokenizer: Tokenizer, pairs: list[Pair]) -> float:
    """Return the share of pairs whose translation is the reference, in percent."""
    outputs = translate_texts(model, tokenizer, [pair.source for pair in pairs], rows=100, progress=False)
    right = sum(output.text == pair.target for output, pair in zip(outputs, pairs, strict=True))
    return 100 * right / len(pairs)


def train(settings: dict[str, Any], data: Path, run: Path, minutes: float) -> tuple[float, float, int]:
    """Train one variant; returns exact answers in percent, minutes and updates."""
    recipe = Recipe.load(RECIPE)
    torch.manual_seed(recipe.training.seed)
    pairs = list(read_pairs(data / "train.tsv"))
    tokenizer = train_tokenizer(
        (text for pair in pairs for text in (pair.source, pair.target)), recipe.tokenizer.vocab_size
    )
    config = replace(recipe.model_config(tokenizer.vocab_size), **settings)
    training = replace(recipe.training, validate_pairs=50, checkpoint_minutes=60, max_minutes=minutes)
    trainer = Trainer(
        Transformer(config),
        tokenizer,
        training,
        training=TrainingData(lambda: pairs, tokenizer, training),
        validation=list(read_pairs(data / "valid.tsv"))[:50],
        run=run,
        languages=("en", "de"),
    )
    start = time.monotonic()
    progress = trainer.train()
    elapsed = (time.monotonic() - start) / 60
    return exact(trainer.model.eval(), tokenizer, list(read_pairs(data / "test.tsv"))), elapsed, progress.step


def main() -> int:
    """Print a Markdown table; exit code 1 if a variant stays below 98 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="upper limit for each variant")
    parser.add_argument("--threads", type=int, default=1, help="more does not pay for a model this small")
    parser.add_argument("--decoders", nargs="+", choices=DECODERS, default=list(DECODERS))
    parser.add_argument("--norms", nargs="+", choices=NORMS, default=list(NORMS))
    parser.add_argument("--positions", nargs="+", choices=POSITIONS, default=list(POSITIONS))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    worst = 100.0
    print("| decoder | norm | positions | exact, % | updates | minutes |\n|---|---|---|---|---|---|")
    with TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        write_corpus(data, train=40_000, valid=200, test=500, seed=1)
        for decoder, norm, positions in itertools.product(arguments.decoders, arguments.norms, arguments.positions):
            settings = {"decoder_layer": decoder, "norm_position": norm, "positions": positions}
            run = Path(folder) / f"{decoder}-{norm}-{positions}"
            percent, minutes, updates = train(settings, data, run, arguments.minutes)
            if positions != "none":  # without an order the task cannot be solved by attention alone
                worst = min(worst, percent)
            print(f"| {decoder} | {norm} | {positions} | {percent:.1f} | {updates} | {minutes:.1f} |", flush=True)
    return 0 if worst >= 98.0 else 1


if __name__ == "__main__":
    sys.exit(main())
