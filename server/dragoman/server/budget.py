"""How much memory the slot pool takes: positions for sources and targets, from a budget in bytes. Pure arithmetic.

A slot needs as many positions as its text is long, not as long as a text may be. So the pool has room for a number
of *positions*; how many rows share them depends on the longest row, because all rows of a buffer have one length:
64 short texts, or a few long ones.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from dragoman.export.bundle import SELF_ATTENTION, Limits, Shape
from dragoman.server.errors import StartupError
from dragoman.server.slot_types import SlotTypes, last_size

_FIRST_SIZE = 16
_STEPS_PER_OCTAVE = 4
_FLOAT32 = 4  # bytes
_FLOATS = SlotTypes()


@dataclass(frozen=True, slots=True)
class PoolSize:
    """Sizes of a pool.

    Attributes:
        rows: Slots.
        source_positions: Positions of all rows together, for keys and values of the source.
        target_positions: The same for those of the target; 0 if decoder layers keep cells instead.
        nbytes: Memory that all of it takes.
        longest_source: Most positions of a row.
        longest_target: Most positions of a row.
    """

    rows: int
    source_positions: int
    target_positions: int
    nbytes: int
    longest_source: int
    longest_target: int

    def fits(self, rows: int, longest_source: int, longest_target: int) -> bool:
        """Whether so many rows can be live if the longest of them needs so many positions."""
        if rows > self.rows or longest_source > self.longest_source or longest_target > self.longest_target:
            return False
        source, target = view_size(longest_source, self.longest_source), view_size(longest_target, self.longest_target)
        return rows * source <= self.source_positions and (
            not self.target_positions or rows * target <= self.target_positions
        )


@functools.lru_cache(maxsize=1 << 14)
def view_size(needed: int, longest: int) -> int:
    """Return how many positions per row a buffer is viewed with: a few sizes per octave, so that bindings recur."""
    size = _FIRST_SIZE
    while size < needed:
        octave = 1 << (size.bit_length() - 1)
        size += max(_FIRST_SIZE, octave // _STEPS_PER_OCTAVE)
    return min(size, longest)


def plan_pool(max_rows: int, shape: Shape, limits: Limits, types: SlotTypes = _FLOATS, *, cache_bytes: int) -> PoolSize:
    """Return the largest pool of at most `max_rows` slots within `cache_bytes`.

    Args:
        max_rows: Slots, at most.
        shape: Of the bundle.
        limits: Of the bundle.
        types: Of the numbers in a slot.
        cache_bytes: Budget.

    Raises:
        StartupError: Not even the longest text fits; says how much it needs.
    """
    position = 2 * shape.num_decoder_layers * shape.num_heads * shape.head_dim
    source_position = position * types.cross.itemsize
    target_position = position * types.states.itemsize if shape.decoder_layer == SELF_ATTENTION else 0
    row = row_bytes(shape, types)
    longest_source, longest_target = limits.max_source_tokens, limits.max_target_tokens
    longest = longest_source * source_position + longest_target * target_position
    if cache_bytes < longest + row:
        raise StartupError(
            f"the slot pool needs {longest + row} bytes for one text of {longest_source} source tokens, and "
            f"cache_bytes is {cache_bytes}; give it {longest + row} or more, and several times that for throughput"
        )
    rows = max_rows
    if row:  # what a row takes however short it is leaves less for positions
        shortest = min(_FIRST_SIZE, longest_source) * source_position
        shortest += min(_FIRST_SIZE, longest_target) * target_position
        rows = min(max_rows, 1 + (cache_bytes - longest - row) // (row + shortest))
    left = cache_bytes - rows * row
    share = min(1.0, left / (rows * longest))
    source = max(longest_source, int(rows * longest_source * share))
    target = max(longest_target, int(rows * longest_target * share)) if target_position else 0
    if source * source_position + target * target_position > left:  # a side was raised to its longest text
        source = longest_source
        target = (left - source * source_position) // target_position if target_position else 0
    nbytes = source * source_position + target * target_position + rows * row
    return PoolSize(rows, source, target, nbytes, longest_source, longest_target)


def row_bytes(shape: Shape, types: SlotTypes) -> int:
    """Return what a slot takes besides its positions."""
    nbytes = 0
    if shape.decoder_layer != SELF_ATTENTION:  # cells are written to a second set
        nbytes += 2 * shape.num_decoder_layers * shape.cell_width * types.states.itemsize
    if types.cross_last:
        nbytes += math.prod(last_size(shape)) * _FLOAT32
    return nbytes
