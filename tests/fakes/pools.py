"""Small slot pools."""

from __future__ import annotations

from dragoman.export.bundle import SSRU, Limits, Shape
from dragoman.server.budget import plan_pool
from dragoman.server.device_memory import Memory
from dragoman.server.kv_cache import CachePool
from dragoman.server.slot_types import SlotTypes

SHAPE = Shape(vocab_size=1000, num_heads=2, head_dim=2, num_decoder_layers=1)
CELLS = Shape(vocab_size=1000, num_heads=2, head_dim=2, num_decoder_layers=2, decoder_layer=SSRU, cell_width=3)
LIMITS = Limits(max_source_tokens=48, max_target_tokens=40)
PLENTY = 1 << 30
FLOATS = SlotTypes()


def make_pool(
    rows: int,
    shape: Shape,
    limits: Limits = LIMITS,
    *,
    types: SlotTypes = FLOATS,
    cache_bytes: int = PLENTY,
    memory: Memory | None = None,
) -> CachePool:
    """Return a pool of so many slots, all of which may be as long as the limits say unless bytes are few."""
    return CachePool(plan_pool(rows, shape, limits, types, cache_bytes=cache_bytes), shape, types, memory)
