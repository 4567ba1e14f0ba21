"""Draws: reproducible numbers, and tokens with the probabilities that are left of them."""

from __future__ import annotations

import numpy as np
import pytest

from dragoman.server.options import LARGEST_SEED, Sampling
from dragoman.server.request import Request
from dragoman.server.search.best import best
from dragoman.server.search.sampling import LISTED, draw, draw_from_all, uniforms
from tests.fakes.search_bench import RandomModel, SearchBench, request
from tests.fakes.search_reference import uniform, warped

WIDE = 1500


def test_a_number_depends_on_seed_and_position_alone() -> None:
    """It is that of SplitMix64 in Python's integers, whatever shares the array."""
    seeds = np.array([0, 1, 2, 12345, LARGEST_SEED, LARGEST_SEED - 1])
    positions = np.array([0, 1, 5, 100, 7, 10**6])
    found = uniforms(seeds, positions)

    assert found.tolist() == [uniform(*pair) for pair in zip(seeds.tolist(), positions.tolist(), strict=True)]
    assert found[3] == uniforms(seeds[3:4], positions[3:4])[0]


def test_numbers_are_uniform_over_seeds_and_over_positions() -> None:
    """Neighbouring seeds and positions have nothing to do with each other."""
    many = np.arange(100_000)
    for numbers in (uniforms(many, np.zeros_like(many)), uniforms(np.full_like(many, 7), many)):
        counts = np.histogram(numbers, 50, (0, 1))[0]
        assert abs(counts - 2000).max() < 5 * 2000**0.5
        assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.02


SAMPLINGS = [
    Sampling(),
    Sampling(top_k=0),
    Sampling(top_k=1),
    Sampling(temperature=0.3, top_k=20, top_p=0.8),
    Sampling(temperature=2.0, top_k=0, top_p=0.5),
    Sampling(top_k=0, top_p=1e-9),
    Sampling(top_k=LARGEST_SEED, top_p=0.999),
    Sampling(top_k=LISTED + 100, top_p=0.97),
]


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0], ids=["flat", "usual", "sharp"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_tokens_have_the_probabilities_that_are_left(sampling: Sampling, spread: float) -> None:
    """Numbers on a grid draw each token as often as its probability says; nothing else is ever drawn."""
    scores = (np.random.default_rng(1).normal(size=WIDE) * spread).astype(np.float32)
    scores[::7] = -np.inf
    ids, values = best(scores[None], LISTED)
    numbers = (np.arange(4000) + 0.5) / 4000
    options = (sampling.temperature, sampling.top_k, sampling.top_p)
    if 0 < sampling.top_k <= LISTED:
        rows = np.broadcast_to(values, (len(numbers), LISTED))
        columns = (np.full(len(numbers), option) for option in options)
        found = ids[0, draw(rows, numbers, *columns)]
    else:
        found = np.array([draw_from_all(scores, (ids[0], values[0]), number, *options) for number in numbers])
    expected = warped(scores.tolist(), sampling)

    counts = np.bincount(found, minlength=WIDE) / len(numbers)
    assert set(found.tolist()) <= {token for token, _ in expected}
    assert all(abs(counts[token] - probability) <= 1.01 / len(numbers) for token, probability in expected)
    order = {token: place for place, (token, _) in enumerate(expected)}
    assert [order[token] for token in found.tolist()] == sorted(order[token] for token in found.tolist())


def texts(bench: SearchBench, *requests: Request) -> list[list[int]]:
    return [each.output for each in bench.run(*requests)]


@pytest.mark.parametrize("sampling", [Sampling(top_k=5, seed=3), Sampling(top_k=0, seed=3), Sampling(seed=3)], ids=str)
def test_a_seed_is_a_text(sampling: Sampling) -> None:
    """The same whatever shares the batch; other seeds have other texts; no candidates, no difference in support."""
    model = RandomModel(eos=0.0)
    alone = texts(SearchBench(model), request(sampling=sampling))
    others = [
        request(sampling=Sampling(sampling.temperature, sampling.top_k, sampling.top_p, seed)) for seed in range(4, 16)
    ]
    together = texts(SearchBench(model), *others[:5], request(sampling=sampling), *others[5:], request(beams=3))

    assert together[5] == alone[0]
    assert len({tuple(text) for text in together[:13]}) == 13
    assert alone != texts(SearchBench(model), request())


def test_a_cold_draw_is_the_best_token() -> None:
    """The smallest numbers that an option may have overflow nothing."""
    cold = [
        Sampling(temperature=5e-324),
        Sampling(temperature=1e-300, top_k=0),
        Sampling(top_p=5e-324),
        Sampling(top_k=1),
    ]
    model = RandomModel()
    with np.errstate(all="raise"):
        found = texts(SearchBench(model), *(request(sampling=sampling) for sampling in cold), request())

    assert found[:4] == [found[4]] * 4
