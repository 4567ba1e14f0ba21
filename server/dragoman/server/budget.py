"""How much memory the slot pool takes: positions for sources and targets, from a budget in bytes. Pure arithmetic.

A slot needs as many positions as its text is long, not as long as a text may be. So the pool has room for a number
of *positions*; how many rows share them depends on the longest row, because all rows of a buffer have one length:
64 short texts, or a few long ones.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from dragoman.export.bundle import SELF_ATTENTION, Limits, Shape
from dragoman.server.errors import StartupError

_FIRST_SIZE = 16
_STEPS_PER_OCTAVE = 4


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


def plan_pool(max_rows: int, shape: Shape, limits: Limits, *, itemsize: int = 4, cache_bytes: int) -> PoolSize:
    """Return the largest pool of at most `max_rows` slots within `cache_bytes`.

    Args:
        max_rows: Slots, at most.
        shape: Of the bundle.
        limits: Of the bundle.
        itemsize: Bytes of a number in keys and values.
        cache_bytes: Budget.

    Raises:
        StartupError: Not even the longest text fits; says how much it needs.
    """
    position = 2 * shape.num_decoder_layers * shape.num_heads * shape.head_dim * itemsize
    has_cache = shape.decoder_layer == SELF_ATTENTION
    longest_source, longest_target = limits.max_source_tokens, limits.max_target_tokens
    longest = longest_source + (longest_target if has_cache else 0)
    # Cells are written to a second set.
    cells = 0 if has_cache else 2 * shape.num_decoder_layers * shape.cell_width * itemsize
    least = longest * position + cells
    if cache_bytes < least:
        raise StartupError(
            f"the slot pool needs {least} bytes for one text of {longest_source} source tokens, and cache_bytes is "
            f"{cache_bytes}; give it {least} or more, and several times that for throughput"
        )
    rows = max_rows
    if not has_cache:
        rows = min(max_rows, 1 + (cache_bytes - least) // (cells + min(_FIRST_SIZE, longest_source) * position))
    share = min(1.0, (cache_bytes - rows * cells) / (rows * longest * position))
    source = max(longest_source, int(rows * longest_source * share))
    target = max(longest_target, int(rows * longest_target * share)) if has_cache else 0
    if (source + target) * position + rows * cells > cache_bytes:  # a side was raised to its longest text
        source, target = longest_source, (cache_bytes - rows * cells) // position - longest_source if has_cache else 0
    nbytes = (source + target) * position + rows * cells
    return PoolSize(rows, source, target, nbytes, longest_source, longest_target)
