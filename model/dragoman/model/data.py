"""Pairs of text to padded batches by token budget."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from dragoman.model.augment import augment
from dragoman.model.errors import ConfigError, TrainingError
from dragoman.model.lengths import LeftOut, LengthLimits
from dragoman.model.padding import pad_rows
from dragoman.model.readers import Pair
from dragoman.model.recipe import TrainConfig
from dragoman.model.tokenizers import SentencePieceTokenizer, Tokenizer
from dragoman.model.vocab import SpecialIds


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

    def to(self, device: torch.device) -> Batch:
        """Return the batch on another device."""
        return Batch(*(getattr(self, field.name).to(device, non_blocking=True) for field in fields(self)))


def tokenize_pairs(pairs: Iterable[Pair], tokenizer: Tokenizer) -> list[Example]:
    """Tokenize both sides of each pair."""
    return [Example(tuple(tokenizer.encode(p.source)), tuple(tokenizer.encode_target(p.target))) for p in pairs]


def tokenize_with_dropout(
    pairs: Iterable[Pair], tokenizer: SentencePieceTokenizer, probability: float, generator: random.Random
) -> list[Example]:
    """Tokenize both sides of each pair with BPE dropout, see `SentencePieceTokenizer.encode_with_dropout`."""

    def encode(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode_with_dropout(text, probability, generator))

    return [Example(encode(p.source), encode(p.target)) for p in pairs]


def _with_bpe_dropout(tokenizer: Tokenizer) -> SentencePieceTokenizer:
    """Return the tokenizer if it can leave out merges; raise ConfigError otherwise."""
    if not isinstance(tokenizer, SentencePieceTokenizer):
        raise ConfigError(f"a tokenizer of kind {tokenizer.kind!r} has no BPE dropout; set bpe_dropout = 0")
    try:
        tokenizer.bpe_dropout  # noqa: B018  # asking makes it
    except ValueError as error:
        raise ConfigError(f"this tokenizer has no BPE dropout: {error}; set bpe_dropout = 0") from error
    return tokenizer


@dataclass(slots=True)
class Group:
    """The batches of one update, of all processes.

    Attributes:
        chunk: Of the data, which all of them come from.
        batches: At most `accumulate` for each process.
        next_batch: First batch of the chunk that the next update takes.
    """

    chunk: int
    batches: list[list[Example]]
    next_batch: int = 0

    def share(self, rank: int, count: int) -> list[tuple[list[Example], float]]:
        """Return the batches of process `rank` of `count`, with their weights.

        Every process gets as many, because they wait for one another: at the end of a chunk some
        get a batch that counts nothing.
        """
        mine = [(batch, 1.0) for batch in self.batches[rank::count]]
        most = -(-len(self.batches) // count)
        return mine + [(self.batches[0], 0.0)] * (most - len(mine))


class TrainingData:
    """Training pairs, shuffled, altered, tokenized and batched anew in each epoch.

    Pairs are taken in chunks of at most `shuffle_pairs`, so a corpus need not fit in memory; one
    that fits in a single chunk is read once. Everything random depends on seed, epoch and chunk
    alone: a resumed run, which is another process, sees the batches that an uninterrupted one would have seen.

    Attributes:
        left_out: By limits, how many pairs of the first chunk that was batched within them were too long.
    """

    def __init__(self, read: Callable[[], Iterable[Pair]], tokenizer: Tokenizer, config: TrainConfig) -> None:
        """Prepare; nothing is read yet.

        Args:
            read: Starts at the first pair each time it is called.
            tokenizer: For both sides.
            config: Seed, batch size, chunk size and augmentation.

        Raises:
            ConfigError: There shall be BPE dropout, and the tokenizer has no such thing.
        """
        self._read = read
        self._tokenizer = tokenizer
        self._dropping = _with_bpe_dropout(tokenizer) if config.augmentation.bpe_dropout else None
        self._config = config
        self.left_out: dict[LengthLimits, LeftOut] = {}
        self._only_chunk: list[Pair] | None = None
        self._unaltered: list[Example] | None = None

    def batches(
        self, *, epoch: int, limits: LengthLimits, chunk: int = 0, batch: int = 0
    ) -> Iterator[tuple[int, int, list[Example]]]:
        """Yield the batches of an epoch from a position on.

        Args:
            epoch: Number of the pass; each has another order.
            limits: Longer examples are left out, and counted in `left_out`.
            chunk: First chunk.
            batch: First batch within it.

        Yields:
            Chunk, number of the batch within it, and the batch.
        """
        for number, pairs in enumerate(self._chunks()):
            if number < chunk:
                continue
            examples = self._examples(pairs, epoch, number)
            if limits not in self.left_out:
                too_long = sum(not limits.admit(example) for example in examples)
                self.left_out[limits] = LeftOut(limits, len(examples), too_long, self._only_chunk is not None)
            order = batches_of_epoch(
                examples,
                limits=limits,
                batch_tokens=self._config.batch_tokens,
                seed=self._config.seed,
                epoch=epoch,
            )
            first = batch if number == chunk else 0
            for index in range(first, len(order)):
                yield number, index, [examples[i] for i in order[index]]

    def groups(self, size: int, *, epoch: int, limits: LengthLimits, chunk: int = 0, batch: int = 0) -> Iterator[Group]:
        """Yield the same batches, `size` at a time; the last group of a chunk may be smaller."""
        group: Group | None = None
        for number, index, examples in self.batches(epoch=epoch, limits=limits, chunk=chunk, batch=batch):
            if group is not None and (group.chunk != number or len(group.batches) == size):
                yield group
                group = None
            if group is None:
                group = Group(number, [])
            group.batches.append(examples)
            group.next_batch = index + 1
        if group is not None:
            yield group

    def _chunks(self) -> Iterator[list[Pair]]:
        if self._only_chunk is not None:
            yield self._only_chunk
            return
        pairs = iter(self._read())
        chunk = list(itertools.islice(pairs, self._config.shuffle_pairs))
        following = next(pairs, None)
        if following is None:
            self._only_chunk = chunk
            self._check_origins(chunk)
        while chunk:
            yield chunk
            del chunk  # the next one takes its place in memory, not one beside it
            chunk = [] if following is None else [following, *itertools.islice(pairs, self._config.shuffle_pairs - 1)]
            following = next(pairs, None)

    def _check_origins(self, pairs: list[Pair]) -> None:
        """Raise TrainingError if a share is set for an origin that the corpus does not have."""
        found = {pair.origin for pair in pairs}
        unknown = sorted(set(self._config.origin_shares) - found)
        if unknown:
            raise TrainingError(f"origin_shares names {unknown}, but the corpus has the origins {sorted(found)}")

    def _examples(self, pairs: list[Pair], epoch: int, chunk: int) -> list[Example]:
        shares, origin_shares = self._config.augmentation, self._config.origin_shares
        if not shares.changes_text and self._dropping is None and not origin_shares:
            if self._only_chunk is None:
                return tokenize_pairs(pairs, self._tokenizer)
            if self._unaltered is None:
                self._unaltered = tokenize_pairs(pairs, self._tokenizer)
            return self._unaltered
        generator = random.Random(f"{self._config.seed}/{epoch}/{chunk}")  # noqa: S311  # training data, not a secret
        if origin_shares:
            pairs = [pair for pair in pairs if generator.random() < origin_shares.get(pair.origin, 1.0)]
        if shares.changes_text:
            pairs = [augment(pair, shares, generator) for pair in pairs]
        if self._dropping is not None:
            return tokenize_with_dropout(pairs, self._dropping, shares.bpe_dropout, generator)
        return tokenize_pairs(pairs, self._tokenizer)


def batches_of_epoch(
    examples: Sequence[Example], *, limits: LengthLimits, batch_tokens: int, seed: int, epoch: int
) -> list[list[int]]:
    """Group examples of similar length into batches, in an order that seed and epoch decide.

    Args:
        examples: All training examples.
        limits: Longer ones are left out.
        batch_tokens: Upper limit of rows x longest side; one longer example still gets a batch.
        seed: Of the order.
        epoch: Number of the pass; each has another order.

    Returns:
        Indices into `examples`, one list per batch.
    """
    generator = random.Random(f"{seed}/{epoch}")  # noqa: S311  # data order, not a secret
    order = [i for i, example in enumerate(examples) if limits.admit(example)]
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
        source_ids=pad_rows(sources, pad),
        source_lengths=torch.tensor([len(s) for s in sources]),
        target_in=pad_rows([(start, *t[:-1]) for t in targets], pad),
        target_out=pad_rows(targets, pad),
    )


def collate_to(device: torch.device, examples: Sequence[Example], special: SpecialIds) -> Batch:
    """Pad examples into one batch on a device."""
    return collate(examples, pad=special.pad, start=special.start).to(device)


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
