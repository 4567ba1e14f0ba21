"""Slot pools of every kind of numbers, and random content for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dragoman.export.bundle import Limits, Shape
from dragoman.server.device_memory import Array
from dragoman.server.encoded import Encoded
from dragoman.server.kv_cache import CachePool
from dragoman.server.slot_types import SlotTypes, last_size
from tests.fakes.device import placed, seen

SHAPE = Shape(vocab_size=100, num_heads=2, head_dim=3, num_decoder_layers=2)
LIMITS = Limits(max_source_tokens=70, max_target_tokens=40)
ROWS = 5
START = 2
TYPES = {
    "floats": SlotTypes(),
    "floats-last": SlotTypes(cross_last=True),
    "bytes-last": SlotTypes(np.dtype(np.int8), np.dtype(np.int8), cross_last=True),
    "mixed": SlotTypes(np.dtype(np.int8), np.dtype(np.float16)),
}


def random_caches(seed: int, rows: int, length: int, dtype: Any = np.float32) -> list[Array]:
    """Return a tensor [rows, H, length, D] for each buffer, of whole numbers that fit a byte."""
    shape = (rows, SHAPE.num_heads, length, SHAPE.head_dim)
    generator = np.random.default_rng(seed)
    return [generator.integers(-127, 128, shape).astype(dtype) for _ in range(2 * SHAPE.num_decoder_layers)]


def random_lasts(seed: int, rows: int) -> Array:
    """Return [rows, 2L, H * D] float32."""
    return np.random.default_rng(seed).random((rows, *last_size(SHAPE)), np.float32)


def admit(pool: CachePool, *source_lengths: int, seed: int = 0) -> Encoded:
    """Admit rows with random caches; returns these."""
    return admit_beams(pool, source_lengths, [1] * len(source_lengths), seed)


def admit_beams(pool: CachePool, source_lengths: Sequence[int], widths: Sequence[int], seed: int) -> Encoded:
    """Admit rows with as many slots as their widths say."""
    rows = len(source_lengths)
    cross = random_caches(seed, rows, max(source_lengths), pool.cross_attention.views()[0].dtype)
    encoded = Encoded(cross, None if pool.cross_last is None else random_lasts(seed, rows))
    pool.admit(encoded_at(encoded, pool), source_lengths, widths, START)
    return encoded


def encoded_at(encoded: Encoded, pool: CachePool) -> Encoded:
    """Return the same where the pool's graphs compute."""
    last = None if encoded.last is None else placed([encoded.last], pool.memory)[0]
    return Encoded(placed(encoded.cross, pool.memory), last)


def buffers_of(pool: CachePool) -> list[Array]:
    """Return all of a pool but the counters."""
    lasts = [pool.cross_last.tensor] if pool.cross_last is not None else []
    return seen([*pool.states.views(), *pool.cross_attention.views(), *lasts])
