"""What the search costs per decode step, apart from the model: microseconds of `wanted` and `decide`.

A random model's outputs are made once, so that only the search is timed. "steady" is a step in which nobody comes or
goes; "churn" replaces texts at the rate of texts that end after 25 tokens, so that index arrays are made anew.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dragoman.model.vocab import SPECIAL_IDS
from dragoman.server.options import Sampling
from dragoman.server.request import Request
from dragoman.server.search import Search
from dragoman.server.step import StepOutputs
from tests.fakes.search_bench import request

_LONG = 500
_CANDIDATES = 16
_SUPPRESSED = (*((i,) for i in range(50, 100)), *((i, i + 1) for i in range(100, 150)))
_TEXT_TOKENS = 25

CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "greedy": (64, {}),
    "greedy, token scores": (64, {"with_token_scores": True}),
    "greedy, repetition penalty": (64, {"repetition_penalty": 1.2}),
    "greedy, no 3-gram twice": (64, {"no_repeat_ngram_size": 3}),
    "greedy, 100 suppressed": (64, {"suppressed": _SUPPRESSED}),
    "sampling, top-k 10": (64, {"sampling": Sampling(top_k=10)}),
    "sampling, top-k 50": (64, {"sampling": Sampling(top_k=50)}),
    "sampling, top-p 0.9": (64, {"sampling": Sampling(top_k=0, top_p=0.9)}),
    "beam 4": (16, {"beams": 4}),
    "beam 4, token scores": (16, {"beams": 4, "with_token_scores": True}),
    "beam 4, repetition penalty": (16, {"beams": 4, "repetition_penalty": 1.2}),
    "beam 4, coverage": (16, {"beams": 4, "coverage_penalty": 0.2}),
    "beam 12": (5, {"beams": 12}),
}  # fmt: skip


def outputs(rows: int, vocab_size: int, generator: np.random.Generator) -> StepOutputs:
    """Return outputs in which EOS is never among the best."""
    logits = generator.normal(size=(rows, vocab_size)).astype(np.float32) * 2
    logits[:, list(SPECIAL_IDS.never_generated)] = -np.inf
    logits[:, SPECIAL_IDS.eos] = -20
    normalizer = np.log(np.exp(logits).sum(axis=1))
    ids = np.argsort(-logits, axis=1)[:, :_CANDIDATES]
    scores = np.take_along_axis(logits, ids, axis=1) - normalizer[:, None]
    weights = generator.dirichlet(np.ones(30), size=rows).astype(np.float32)
    return StepOutputs(ids[:, 0].copy(), ids, scores, normalizer, logits, weights)


def microseconds(make: Callable[[], Request], texts: int, vocab_size: int, steps: int, *, churn: bool) -> list[float]:
    """Time steps of so many texts."""
    rows = texts * make().width
    search = Search(rows, _LONG, SPECIAL_IDS, vocab_size, candidates=_CANDIDATES)
    search.admit([make() for _ in range(texts)])
    generator = np.random.default_rng(0)
    several = [outputs(rows, vocab_size, generator) for _ in range(4)]
    times, due = [], 0.0
    for step in range(steps):
        start = time.perf_counter()
        search.wanted()
        search.decide(several[step % len(several)])
        times.append((time.perf_counter() - start) * 1e6)
        due += texts / _TEXT_TOKENS
        while churn and due >= 1:
            due -= 1
            request = search.requests[generator.integers(texts)]
            for slot in reversed(search.slots_of(request)):
                search.release(slot)
            search.admit([make()])
    return times[10:]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=32000, help="V")
    parser.add_argument("--steps", type=int, default=_LONG // 2, help="of each case")
    arguments = parser.parse_args()
    print(f"| search | rows | steady, µs | churn, µs |   (median per step, V = {arguments.vocab})\n|---|---|---|---|")
    for name, (texts, options) in CASES.items():

        def make(options: dict[str, Any] = options) -> Request:
            return request(range(10, 40), max_new_tokens=_LONG - 1, **options)

        medians = [
            statistics.median(microseconds(make, texts, arguments.vocab, arguments.steps, churn=churn))
            for churn in (False, True)
        ]
        print(f"| {name} | {texts * make().width} | {medians[0]:.0f} | {medians[1]:.0f} |")


if __name__ == "__main__":
    main()
