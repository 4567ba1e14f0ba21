"""Logits of a bundle's graphs and their normalizers against PyTorch's full pass, over a grid of sizes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dragoman.export.decode import BundleSession
from dragoman.export.verify.cases import random_ids, random_pair
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.padding import pad_rows
from dragoman.model.search import generation_bias

BATCHES = (1, 2, 5)
SOURCE_LENGTHS = (1, 2, 7, 63, 64, 65)
# Of most cases: the first two tokens in one call, the others one by one.
TARGET_LENGTH = 9
# One case is as long as the model allows, or as fits into so many logits.
_MAX_LOGITS = 30_000_000
# fp16 has no lower number than -65504.
_MASKED = -1e4

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Where:
    """A place in the grid.

    Attributes:
        batch: Rows.
        source_tokens: Of the longest row; each other one is shorter.
        row: With the difference, counted from 0.
        position: In the target, counted from 0.
    """

    batch: int
    source_tokens: int
    row: int
    position: int


@dataclass(frozen=True, slots=True)
class Logits:
    """What the comparison found.

    Attributes:
        max_difference: Of a logit, or of a log_normalizer where the graph returns it. NaN if there was any;
            infinite if one of the two was.
        where: Of the largest difference.
        spread: Standard deviation of PyTorch's logits.
        masked: Ids that must never be generated are as good as -inf everywhere.
        cases: How many batches were compared.
    """

    max_difference: float
    where: Where
    spread: float
    masked: bool
    cases: int


@dataclass(frozen=True, slots=True)
class _Batch:
    sources: list[list[int]]
    targets: list[list[int]]


def compare_logits(session: BundleSession, checkpoint: Checkpoint, generator: random.Random) -> Logits:
    """Teacher-force random targets through both and compare every logit.

    PyTorch reads the rows of each source length once; the bundle reads them in batches of every size.

    Args:
        session: The bundle.
        checkpoint: The model.
        generator: Of sources and targets.
    """
    bias = generation_bias(checkpoint.model.config.vocab_size, checkpoint.tokenizer.special)
    allowed = np.isfinite(bias.numpy())
    worst, where, masked = 0.0, Where(0, 0, 0, 0), True
    squares, means = [], []
    cases = 0
    for rows, sizes in _grid(session, checkpoint, generator):
        all_expected = _expected(checkpoint, rows)
        for size in sizes:
            batch, expected = _Batch(rows.sources[:size], rows.targets[:size]), all_expected[:size]
            found, normalizer = _teacher_forced(session, batch)
            masked &= bool((found[..., ~allowed] <= _MASKED).all())
            difference = _difference(found, normalizer if session.has_normalizer else None, expected, allowed)
            largest = float(difference.max())
            if not largest <= worst and not math.isnan(worst):  # a NaN is worse than any number
                row, position = divmod(int(difference.argmax()), difference.shape[1])
                worst, where = largest, Where(size, len(batch.sources[0]), row, position)
            values = expected[..., allowed].reshape(-1)
            squares.append(float(values @ values) / values.size)
            means.append(float(values.mean()))
            cases += 1
    spread = math.sqrt(max(0.0, sum(squares) / cases - (sum(means) / cases) ** 2))
    return Logits(worst, where, spread, masked, cases)


def _difference(found: Array, normalizer: Array | None, expected: Array, allowed: Array) -> Array:
    """Return the largest difference of each position, [B, T].

    Args:
        found: Logits [B, T, V].
        normalizer: [B, T]; None leaves it out.
        expected: Logits [B, T, V], those of masked ids as well.
        allowed: [V], False for masked ids.
    """
    with np.errstate(invalid="ignore"):  # what is no number stays none
        # Row by row: the longest target has some 100 MB of logits.
        rows = [np.abs(own - other)[:, allowed].max(axis=-1) for own, other in zip(found, expected, strict=True)]
        difference: Array = np.stack(rows)
        if normalizer is not None:
            whole = torch.from_numpy(expected).logsumexp(-1).numpy()
            difference = np.maximum(difference, np.abs(normalizer - whole))
    return difference


def _grid(
    session: BundleSession, checkpoint: Checkpoint, generator: random.Random
) -> Iterator[tuple[_Batch, Sequence[int]]]:
    """Yield rows, each one token shorter than the one before, and how many of them make a batch."""
    config = checkpoint.model.config
    most = session.manifest.limits.max_target_tokens
    longest = config.max_source_tokens
    for length in sorted({*(n for n in SOURCE_LENGTHS if n < longest), longest}):
        yield _batch(session, checkpoint, generator, max(BATCHES), length, min(TARGET_LENGTH, most)), BATCHES
    room = max(TARGET_LENGTH, _MAX_LOGITS // (2 * config.vocab_size))
    yield _batch(session, checkpoint, generator, 2, min(7, longest), min(most, room)), (2,)


def _batch(
    session: BundleSession, checkpoint: Checkpoint, generator: random.Random, rows: int, source: int, target: int
) -> _Batch:
    config, special = checkpoint.model.config, checkpoint.tokenizer.special
    source_size = config.source_vocab_size or config.vocab_size
    sources = [random_ids(generator, source_size, max(1, source - row), special) for row in range(rows)]
    targets = []
    for _ in sources:
        first = session.manifest.languages.first_target(random_pair(session.manifest, generator)[1])
        tokens = random_ids(generator, config.vocab_size, target, special)
        targets.append([special.start, *first, *tokens][:target])
    return _Batch(sources, targets)


@torch.inference_mode()
def _expected(checkpoint: Checkpoint, batch: _Batch) -> Array:
    """Return PyTorch's logits [B, T, V]."""
    lengths = torch.tensor([len(source) for source in batch.sources])
    source_ids = pad_rows(batch.sources, checkpoint.tokenizer.special.pad)
    states = checkpoint.model(source_ids, lengths, torch.tensor(batch.targets))
    logits: Array = checkpoint.model.project(states).float().numpy()
    return logits


def _teacher_forced(session: BundleSession, batch: _Batch) -> tuple[Array, Array]:
    """Return the graph's logits [B, T, V] and normalizers [B, T], a few tokens in one call, others one by one."""
    targets = np.array(batch.targets, np.int64)
    encoded = session.encode(batch.sources)
    states = session.initial_states(len(targets), targets.shape[1] + 1)
    logits, normalizers = [], []
    start = 0
    for size in _call_sizes(targets.shape[1]):
        lengths = np.full(len(targets), start, np.int64)
        found, normalizer, states = session.normalized_step(targets[:, start : start + size], lengths, states, encoded)
        logits.append(found)
        normalizers.append(normalizer)
        start += size
    return np.concatenate(logits, axis=1), np.concatenate(normalizers, axis=1)


def _call_sizes(tokens: int) -> Sequence[int]:
    """Return how many tokens each call reads: two, then single ones; of many, the bulk at once and the last alone."""
    begin = [min(2, tokens), *[1] * min(max(0, tokens - 2), TARGET_LENGTH - 2)]
    rest = tokens - sum(begin)
    return [size for size in (*begin, rest - 1, min(1, rest)) if size > 0]
