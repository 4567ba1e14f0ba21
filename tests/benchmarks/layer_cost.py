"""How the cost of a layer grows with length and width (paper, table 1).

Self-attention: O(n^2 d) for scores and mixing, besides O(n d^2) for its projections. A recurrent
cell: O(n d^2), linear in n. The table gives measured times and the exponent between neighbours.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch

from dragoman.model.attention import MultiHeadAttention
from dragoman.model.config import ModelConfig
from dragoman.model.dot_product import scaled_dot_product_attention
from dragoman.model.ssru import SSRU


def milliseconds(function: Callable[[], object], repeats: int) -> float:
    """Return the median time of a call, after one that does not count."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def measure(length: int, width: int, repeats: int) -> dict[str, float]:
    """Return milliseconds of each part for one text of `length` positions."""
    config = ModelConfig(vocab_size=10, d_model=width, num_heads=width // 64, dropout=0.0)
    attention, cell = MultiHeadAttention(config), SSRU(config)
    states = torch.randn(1, length, width)
    heads = torch.randn(3, 1, config.num_heads, length, 64)
    with torch.inference_mode():
        return {
            "QK^T and weights x V": milliseconds(lambda: scaled_dot_product_attention(*heads), repeats),
            "self-attention": milliseconds(
                lambda: attention(states, attention.project_key_value(states), torch.ones(1, dtype=torch.bool)), repeats
            ),
            "SSRU": milliseconds(lambda: cell(states), repeats),
        }


def main() -> None:
    """Print a table over n at fixed d, and one over d at fixed n."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for title, sizes in (
        ("n", [(n, 512) for n in (128, 256, 512, 1024, 2048)]),
        ("d", [(512, d) for d in (128, 256, 512, 1024, 2048)]),
    ):
        rows = [(n if title == "n" else d, measure(n, d, arguments.repeats)) for n, d in sizes]
        parts = list(rows[0][1])
        fixed = "d = 512" if title == "n" else "n = 512"
        print(f"\n| {title} ({fixed}) | " + " | ".join(f"{part}, ms" for part in parts) + " |")
        print("|---" * (len(parts) + 1) + "|")
        for size, times in rows:
            print(f"| {size} | " + " | ".join(f"{times[part]:.2f}" for part in parts) + " |")
        first, last = rows[1], rows[-1]
        growth = {p: math.log(last[1][p] / first[1][p]) / math.log(last[0] / first[0]) for p in parts}
        print(f"| exponent {first[0]} to {last[0]} | " + " | ".join(f"{growth[part]:.2f}" for part in parts) + " |")


if __name__ == "__main__":
    main()
