"""Parallel text files to padded batches by token budget."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dragoman.model.errors import DataError
from dragoman.model.tokenizer import Tokenizer

MAX_REPORTED = 5


@dataclass(frozen=True, slots=True)
class Pair:
    """One line of a corpus file."""

    source: str
    target: str
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    """A tokenized pair; both sides end with EOS."""

    source: tuple[int, ...]
    target: tuple[int, ...]

    @property
    def length(self) -> int:
        """Pieces of the longer side."""
        return max(len(self.source), len(self.target))


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded tensors of one update.

    Attributes:
        source_ids: [B, S] int64.
        source_lengths: [B] int64.
        target_in: [B, T] int64, start token first.
        target_out: [B, T] int64, EOS last, pad behind.
    """

    source_ids: Tensor
    source_lengths: Tensor
    target_in: Tensor
    target_out: Tensor


def read_pairs(path: Path) -> list[Pair]:
    """Read a TSV file: source, target and optionally origin.

    Raises:
        DataError: The file is missing, empty, not UTF-8 or has bad lines; names the first ones.
    """
    pairs: list[Pair] = []
    bad: list[str] = []
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, 1):
                cells = line.rstrip("\r\n").split("\t")
                if len(cells) not in (2, 3) or not cells[0].strip() or not cells[1].strip():
                    bad.append(
                        f"line {number}: {len(cells)} column(s)"
                        if len(cells) not in (2, 3)
                        else f"line {number}: empty side"
                    )
                    continue
                pairs.append(Pair(*cells))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    if bad:
        more = f" and {len(bad) - MAX_REPORTED} more" if len(bad) > MAX_REPORTED else ""
        raise DataError(
            f"{path}: {'; '.join(bad[:MAX_REPORTED])}{more}. "
            "Each line must be source<TAB>target or source<TAB>target<TAB>origin; fix or remove these lines"
        )
    if not pairs:
        raise DataError(f"{path} has no pairs")
    return pairs


def tokenize_pairs(pairs: Sequence[Pair], tokenizer: Tokenizer) -> list[Example]:
    """Tokenize both sides of each pair."""
    return [Example(tuple(tokenizer.encode(p.source)), tuple(tokenizer.encode(p.target))) for p in pairs]


def batches_of_epoch(
    examples: Sequence[Example], *, max_pieces: int, batch_tokens: int, seed: int, epoch: int
) -> list[list[int]]:
    """Group examples of similar length into batches, in an order that seed and epoch decide.

    Args:
        examples: All training examples.
        max_pieces: Longer ones are left out.
        batch_tokens: Upper limit of rows x longest side; one longer example still gets a batch.
        seed: Of the order.
        epoch: Number of the pass; each has another order.

    Returns:
        Indices into `examples`, one list per batch.
    """
    generator = random.Random(f"{seed}/{epoch}")  # noqa: S311  # data order, not a secret
    order = [i for i, example in enumerate(examples) if example.length <= max_pieces]
    generator.shuffle(order)
    order.sort(key=lambda i: examples[i].length)  # stable: equal lengths stay shuffled
    batches: list[list[int]] = []
    for i in order:
        # Ascending lengths, so the newest example is the longest of its batch.
        if not batches or (len(batches[-1]) + 1) * examples[i].length > batch_tokens:
            batches.append([])
        batches[-1].append(i)
    generator.shuffle(batches)
    return batches


def collate(examples: Sequence[Example], *, pad: int, start: int) -> Batch:
    """Pad examples into one batch."""
    sources = [example.source for example in examples]
    targets = [example.target for example in examples]
    return Batch(
        source_ids=_pad(sources, pad),
        source_lengths=torch.tensor([len(s) for s in sources]),
        target_in=_pad([(start, *t[:-1]) for t in targets], pad),
        target_out=_pad(targets, pad),
    )


def sequential_batches(examples: Sequence[Example], batch_tokens: int) -> Iterator[list[Example]]:
    """Yield examples in order of length, batched by token budget; for evaluation."""
    batch: list[Example] = []
    for example in sorted(examples, key=lambda e: e.length):
        if batch and (len(batch) + 1) * example.length > batch_tokens:
            yield batch
            batch = []
        batch.append(example)
    if batch:
        yield batch


def _pad(rows: Sequence[Sequence[int]], pad: int) -> Tensor:
    size = max(len(row) for row in rows)
    return torch.tensor([[*row, *[pad] * (size - len(row))] for row in rows])
