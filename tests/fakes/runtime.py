"""A runtime without ONNX that still works on the real slot pool.

It keeps what it knows of a row in the row's own memory: the source goes into the cross-attention
cache, every token it reads into the layer states, as it is into a self-attention cache and as a running
digest into a cell. A step reads both back and only then scores the next token. So a pool that mixes up, loses
or overwrites slots, or goes on from a wrong parent, makes the fake fail or the text differ, and a row's tokens
are the same whatever shares its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.model.vocab import SPECIAL_IDS
from dragoman.server.device_memory import Array
from dragoman.server.encoded import Encoded
from dragoman.server.kv_cache import CachePool
from dragoman.server.layer_states import Cells
from dragoman.server.step import StepOutputs, Wanted

Source = tuple[int, ...]
# Logits [V] float32 of the next token, from a source and what the target has behind its start token.
Scorer = Callable[[Source, Source], NDArray[np.float32]]
FIRST_WORD = 10  # smaller ids are free for tests to mean something
CANDIDATES = 16
_SURE = 20.0


def echo(source: Source) -> list[int]:
    """Translate each token to itself + 100: a source of n words and EOS takes n + 1 steps."""
    return [token + 100 for token in source[:-1]]


def certain(translate: Callable[[Source], Sequence[int]], vocab_size: int) -> Scorer:
    """Be sure of one translation, and refuse to go on from anything else."""

    def score(source: Source, prefix: Source) -> NDArray[np.float32]:
        target = [*translate(source), SPECIAL_IDS.eos]
        if prefix != tuple(target[: len(prefix)]):
            raise AssertionError(f"the target of {source} holds {prefix}, not {target[: len(prefix)]}")
        logits = np.zeros(vocab_size, np.float32)
        logits[target[len(prefix)]] = _SURE
        return masked(logits)

    return score


def undecided(vocab_size: int, *, eos: float = 1.0) -> Scorer:
    """Draw logits from source and prefix: many hypotheses are close, and EOS comes now and then."""

    def score(source: Source, prefix: Source) -> NDArray[np.float32]:
        seed = [len(source), *source, *prefix]
        logits = np.random.default_rng(seed).normal(size=vocab_size).astype(np.float32) * 2
        logits[SPECIAL_IDS.eos] += eos * len(prefix) / 4
        return masked(logits)

    return score


def masked(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return logits as a graph does: -inf for what is never generated."""
    logits[list(SPECIAL_IDS.never_generated)] = -np.inf
    return logits


class FakeRuntime:
    """Scores tokens with a function.

    Attributes:
        encoded: The sources of every encode batch.
        stepped: The sources of every decode step, in slot order.
        wanted: What every decode step was asked for.
        before_encode: Called with each batch before it is encoded; may raise.
        before_step: Called with each step's sources after they are read; may raise.
        state_sizes: View length of the layer states at each step.
    """

    device = "fake"
    candidates = CANDIDATES
    can_align = True

    def __init__(self, score: Scorer) -> None:
        self._score = score
        self.encoded: list[list[Source]] = []
        self.stepped: list[list[Source]] = []
        self.wanted: list[Wanted] = []
        self.state_sizes: list[int] = []
        self.before_encode: Callable[[Sequence[Source]], None] = _nothing
        self.before_step: Callable[[Sequence[Source]], None] = _nothing
        self._shape = (0, 0, 0)
        self._last_size: tuple[int, ...] = ()
        self._read_by_cell: dict[bytes, Source] = {}

    def bind(self, pool: CachePool) -> FakeRuntime:
        """Take sizes from the pool that the engine uses."""
        views = pool.cross_attention.views()
        self._shape = (len(views), views[0].shape[1], views[0].shape[3])
        self._last_size = pool.cross_last.tensor.shape[1:] if pool.cross_last is not None else ()
        return self

    def encode(self, sources: Sequence[Sequence[int]]) -> Encoded:
        """Return caches that hold the sources; padding holds a value that no step may read."""
        batch = [tuple(source) for source in sources]
        self.before_encode(batch)
        self.encoded.append(batch)
        buffers, heads, dim = self._shape
        values = np.full((len(batch), max(map(len, batch))), -1.0, np.float32)
        for row, source in enumerate(batch):
            values[row, : len(source)] = source
        cross = [_spread(values, heads, dim) + index for index in range(buffers)]
        return Encoded(cross, _checksums(batch, self._last_size) if self._last_size else None)

    def step(self, pool: CachePool, wanted: Wanted = Wanted.NOTHING) -> StepOutputs:
        """Score each live row's next token, from nothing but what its own slot holds."""
        sources = [_read(pool.cross_attention.views(), slot, pool.source_lengths[slot]) for slot in range(pool.live)]
        if pool.cross_last is not None:
            np.testing.assert_array_equal(pool.cross_last.tensor[: pool.live], _checksums(sources, self._last_size))
        self.stepped.append(sources)
        self.wanted.append(wanted)
        self.state_sizes.append(pool.states.size)
        targets = self._read_cells(pool, pool.states) if isinstance(pool.states, Cells) else self._read_cache(pool)
        self.before_step(sources)
        logits = np.stack([self._score(s, t[1:]) for s, t in zip(sources, targets, strict=True)])
        return _outputs(logits, wanted, pool)

    def _read_cache(self, pool: CachePool) -> list[Source]:
        """Write the tokens that the rows read now and return all that they have read."""
        for index, view in enumerate(pool.states.views()):
            for slot in range(pool.live):
                view[slot, :, pool.cache_lengths[slot]] = pool.input_ids[slot, 0] + index
        return [_read(pool.states.views(), slot, pool.cache_lengths[slot] + 1) for slot in range(pool.live)]

    def _read_cells(self, pool: CachePool, cells: Cells) -> list[Source]:
        """Do the same with digests: what a cell has read is known by its content."""
        targets = []
        for slot in range(pool.live):
            token = int(pool.input_ids[slot, 0])
            before = np.stack([view[slot] for view in cells.views()])
            read = self._read_by_cell.get(before.tobytes()) if before.any() else ()
            if read is None:
                raise AssertionError(f"slot {slot}: no row has ever had the cells {before}")
            after = np.stack([_digest(cell, token, index) for index, cell in enumerate(before)])
            for view, cell in zip(cells.updated_views(), after, strict=True):
                view[slot] = cell
            targets.append((*read, token))
            self._read_by_cell[after.tobytes()] = targets[-1]
        return targets


def _outputs(logits: NDArray[np.float32], wanted: Wanted, pool: CachePool) -> StepOutputs:
    outputs = StepOutputs(logits.argmax(axis=1).astype(np.int64))
    outputs.next_ids[np.isnan(logits).any(axis=1)] = SPECIAL_IDS.pad  # as ArgMax finds no best one
    if Wanted.CANDIDATES in wanted:
        normalizer = np.log(np.exp(logits.astype(np.float64)).sum(axis=1))
        ids = np.argsort(-logits, axis=1, kind="stable")[:, :CANDIDATES]
        outputs.candidate_ids = ids.astype(np.int64)
        scores = np.take_along_axis(logits, ids, axis=1) - normalizer[:, None]
        outputs.candidate_scores = scores.astype(np.float32)
        outputs.log_normalizer = normalizer.astype(np.float32)
    if Wanted.LOGITS in wanted:
        outputs.logits = logits
    if Wanted.ALIGNMENT in wanted:
        outputs.alignment = _diagonal(pool)
    return outputs


def _diagonal(pool: CachePool) -> NDArray[Any]:
    """Return [live, S]: target position i attends to source position i, or to the last one."""
    alignment = np.zeros((pool.live, pool.cross_attention.size), np.float32)
    for slot in range(pool.live):
        alignment[slot, min(pool.cache_lengths[slot], pool.source_lengths[slot] - 1)] = 1
    return alignment


def _digest(cell: Array, token: int, index: int) -> Array:
    """Return a number of all tokens so far; exact in float32, and 0 has to come before the first one."""
    return (cell * (17 + index) + token + 1) % 65521


def _checksums(sources: Sequence[Source], size: tuple[int, ...]) -> Array:
    """Return [B, ...] with a number of each source in place of its last position, exact in float32."""
    numbers = np.array([hash(source) % 65521 for source in sources], np.float32)
    return np.broadcast_to(numbers.reshape(-1, *[1] * len(size)), (len(sources), *size))


def _spread(values: Array, heads: int, dim: int) -> Array:
    """Return [B, n] as [B, heads, n, dim]."""
    return np.repeat(np.repeat(values[:, None, :, None], heads, axis=1), dim, axis=3)


def _read(views: Sequence[Array], slot: int, length: int) -> Source:
    """Return the tokens that every buffer, head and dimension of a slot agree on."""
    first = views[0][slot, 0, :length, 0]
    for index, view in enumerate(views):
        content = view[slot, :, :length] - index
        if not np.array_equal(content, np.broadcast_to(first[None, :, None], content.shape)):
            raise AssertionError(f"slot {slot}: buffer {index} differs from buffer 0 or between heads")
    return tuple(int(value) for value in first)


def _nothing(sources: Sequence[Source]) -> None:
    del sources
