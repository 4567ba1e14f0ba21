"""Tables of positions that a checkpoint holds although they are a formula."""

from __future__ import annotations

from torch import Tensor

from dragoman.model.positions import Layout, sinusoidal_positions

# Theirs are computed in single precision: the thousandth position is off by that much.
_TOLERANCE = 1e-3


def rows_of(table: Tensor) -> Tensor:
    """Return a table [.., N, .., E] with any dimensions of size 1 as [N, E]."""
    return table.reshape(-1, table.size(-1)) if table.dim() else table.reshape(0, 0)


def follows_formula(table: Tensor, layout: Layout, rows: int) -> bool:
    """Whether the first rows of a table [N, E] are those of a formula.

    Args:
        table: As `rows_of` returns it.
        layout: Which formula.
        rows: How many are used; the table may have fewer.
    """
    used = table[:rows]
    wanted = sinusoidal_positions(len(used), used.size(1), layout)
    return bool((used - wanted).abs().max() <= _TOLERANCE) if used.numel() else False
