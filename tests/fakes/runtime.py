"""A runtime without ONNX that still works on the real slot pool.

It keeps what it knows of a row in the row's own memory: the source goes into the cross-attention
cache, every token it reads into the layer states, as it is into a self-attention cache and as a running
digest into a cell. A step reads both back, checks them and only then looks up the next token. So a pool
that mixes up, loses or overwrites slots makes the fake fail, and a row's tokens are the same whatever
shares its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman.model.vocab import SPECIAL_IDS
from dragoman.server.kv_cache import CachePool
from dragoman.server.layer_states import Array, Cells

Source = tuple[int, ...]
FIRST_WORD = 10  # smaller ids are free for tests to mean something


def echo(source: Source) -> list[int]:
    """Translate each token to itself + 100: a source of n words and EOS takes n + 1 steps."""
    return [token + 100 for token in source[:-1]]


class FakeRuntime:
    """Translates tokens with a function.

    Attributes:
        encoded: The sources of every encode batch.
        stepped: The sources of every decode step, in slot order.
        before_encode: Called with each batch before it is encoded; may raise.
        before_step: Called with each step's sources after they are read; may raise.
        state_sizes: View length of the layer states at each step.
    """

    def __init__(self, translate: Callable[[Source], Sequence[int]] = echo) -> None:
        self._translate = translate
        self.encoded: list[list[Source]] = []
        self.stepped: list[list[Source]] = []
        self.state_sizes: list[int] = []
        self.before_encode: Callable[[Sequence[Source]], None] = _nothing
        self.before_step: Callable[[Sequence[Source]], None] = _nothing
        self._shape = (0, 0, 0)

    def bind(self, pool: CachePool) -> FakeRuntime:
        """Take sizes from the pool that the engine uses."""
        views = pool.cross_attention.views()
        self._shape = (len(views), views[0].shape[1], views[0].shape[3])
        return self

    def encode(self, sources: Sequence[Sequence[int]]) -> list[Array]:
        """Return caches that hold the sources; padding holds a value that no step may read."""
        batch = [tuple(source) for source in sources]
        self.before_encode(batch)
        self.encoded.append(batch)
        buffers, heads, dim = self._shape
        values = np.full((len(batch), max(map(len, batch))), -1.0, np.float32)
        for row, source in enumerate(batch):
            values[row, : len(source)] = source
        return [_spread(values, heads, dim) + index for index in range(buffers)]

    def step(self, pool: CachePool) -> NDArray[np.int64]:
        """Return each live row's next token, read from nothing but its own slot."""
        sources = [_read(pool.cross_attention.views(), slot, pool.source_lengths[slot]) for slot in range(pool.live)]
        self.stepped.append(sources)
        self.state_sizes.append(pool.states.size)
        self._write(pool)
        self.before_step(sources)
        return np.array([self._next(pool, slot, source) for slot, source in enumerate(sources)], np.int64)

    def _write(self, pool: CachePool) -> None:
        if isinstance(pool.states, Cells):
            for index, (old, new) in enumerate(zip(pool.states.views(), pool.states.updated_views(), strict=True)):
                for slot in range(pool.live):
                    new[slot] = _digest(old[slot], pool.input_ids[slot, 0], index)
            return
        for index, view in enumerate(pool.states.views()):
            for slot in range(pool.live):
                view[slot, :, pool.cache_lengths[slot]] = pool.input_ids[slot, 0] + index

    def _next(self, pool: CachePool, slot: int, source: Source) -> int:
        length = int(pool.cache_lengths[slot]) + 1
        target = [*self._translate(source), SPECIAL_IDS.eos]
        expected = (SPECIAL_IDS.start, *target[: length - 1])
        if isinstance(pool.states, Cells):
            _check_cells(pool.states, slot, expected)
        elif (read := _read(pool.states.views(), slot, length)) != expected:
            raise AssertionError(f"slot {slot} holds {read}, not {expected}")
        return target[length - 1]


def _digest(cell: Array, token: int, index: int) -> Array:
    """Return a number of all tokens so far; exact in float32, and 0 has to come before the first one."""
    return (cell * (17 + index) + token) % 65521


def _check_cells(cells: Cells, slot: int, tokens: Source) -> None:
    for index, view in enumerate(cells.updated_views()):
        expected = np.zeros_like(view[slot])
        for token in tokens:
            expected = _digest(expected, token, index)
        if not np.array_equal(view[slot], expected):
            raise AssertionError(f"slot {slot}: cell {index} is {view[slot]}, not {expected} of {tokens}")


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
