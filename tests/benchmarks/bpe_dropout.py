"""How fast texts are tokenized with BPE dropout, beside SentencePiece without it, on one core.

Each row is measured twice: with nothing remembered of the words (the first epoch begins so), and again.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Callable
from pathlib import Path

from dragoman.model.tokenizers import SentencePieceTokenizer, train_tokenizer


def seconds(encode: Callable[[str], list[int]], texts: list[str]) -> float:
    """Return how long all texts take."""
    start = time.perf_counter()
    for text in texts:
        encode(text)
    return time.perf_counter() - start


def with_dropout(tokenizer: SentencePieceTokenizer, probability: float) -> Callable[[str], list[int]]:
    """Return a function that encodes with draws of its own."""
    generator = random.Random(1)
    return lambda text: tokenizer.encode_with_dropout(text, probability, generator)


def main() -> None:
    """Print a table over probabilities."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="train.tsv of a corpus")
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--vocab-size", type=int, default=8000)
    arguments = parser.parse_args()
    with arguments.data.open(encoding="utf-8") as lines:
        texts = [text for line in itertools.islice(lines, arguments.pairs) for text in line.split("\t")[:2]]
    words = sum(len(text.split()) for text in texts)
    model = train_tokenizer(texts, arguments.vocab_size, split_digits=True).model
    print(f"{len(texts)} texts, {words} words\n\n| | texts/s | words/s | words/s again |\n|---|---|---|---|")
    for probability in (None, 0.03, 0.1, 0.3, 1.0):
        tokenizer = SentencePieceTokenizer(model)
        encode = tokenizer.encode if probability is None else with_dropout(tokenizer, probability)
        name = "SentencePiece" if probability is None else f"dropout {probability}"
        first, again = seconds(encode, texts), seconds(encode, texts)
        print(f"| {name} | {len(texts) / first:,.0f} | {words / first:,.0f} | {words / again:,.0f} |")


if __name__ == "__main__":
    main()
