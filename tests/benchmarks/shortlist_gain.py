"""What a shortlist gains in all, from times that were measured apart: pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tests.benchmarks.output_product import CUT, GATHERED, KEPT

Steps = Mapping[int, Mapping[int, float]]


def net_gains(
    steps: Steps,
    products: Sequence[Mapping[str, Any]],
    vocabulary: int,
    sizes: Mapping[int, float],
    length: float,
    beside: Mapping[int, float],
) -> list[dict[str, float]]:
    """Return the gain of a step by texts that are alive.

    A step with a shortlist costs what one of a model with so small a vocabulary costs, and what a product with a
    matrix that is no constant costs more than one with a constant. The rows are gathered in steps in which a text
    joins: the engine's batch changes with every text. Between measured sizes times are interpolated.

    Args:
        steps: Milliseconds by vocabulary and rows.
        products: Records of `product_times`.
        vocabulary: V of the whole model.
        sizes: Of a shortlist, by rows.
        length: Tokens of a text, mean: how long a row lives.
        beside: Milliseconds that a step comes with outside the decoder, by rows: the engine, and a share of encoding.

    Returns:
        By rows: size, milliseconds whole and with a shortlist, share of steps that gather; gain of a step, that
        of a model that had so small a vocabulary for good, and the gain with what comes beside steps.
    """
    found = []
    for rows, size in sizes.items():
        joins = 1 - (1 - 1 / length) ** rows
        cut = _between({v: times[rows] for v, times in steps.items()}, size)
        constant, kept, gathered = (_product(products, way, rows, size) for way in (CUT, KEPT, GATHERED))
        with_shortlist = cut + (1 - joins) * kept + joins * gathered - constant
        whole = steps[vocabulary][rows]
        found.append(
            {
                "rows": rows, "size": size, "whole_ms": whole, "shortlist_ms": with_shortlist, "joins": joins,
                "gain": whole / with_shortlist, "bound": whole / cut,
                "gain_in_all": (whole + beside[rows]) / (with_shortlist + beside[rows]),
            }
        )  # fmt: skip
    return found


def _product(products: Sequence[Mapping[str, Any]], way: str, rows: int, size: float) -> float:
    return _between({p["columns"]: p["ms"] for p in products if p["way"] == way and p["rows"] == rows}, size)


def _between(times: Mapping[int, float], size: float) -> float:
    """Interpolate; beyond the largest size that was measured, go on with the last slope."""
    sizes = sorted(times)
    if size <= sizes[-1] or len(sizes) == 1:
        return float(np.interp(size, sizes, [times[s] for s in sizes]))
    slope = (times[sizes[-1]] - times[sizes[-2]]) / (sizes[-1] - sizes[-2])
    return times[sizes[-1]] + slope * (size - sizes[-1])
