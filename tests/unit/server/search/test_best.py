"""The best few of many scores, and the normaliser, against sorting everything."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dragoman.server.search.best import best, log_normalizer


@pytest.mark.parametrize("step", [0.0, 0.01, 0.5], ids=["no ties", "few ties", "many ties"])
@pytest.mark.parametrize("count", [1, 2, 8, 50, 256])
@pytest.mark.parametrize("size", [1, 40, 256, 1023, 1024, 1025, 5000, 32007])
def test_the_best_are_the_first_of_all_in_order(size: int, count: int, step: float) -> None:
    """Whatever the sizes, with ties, which go to the smaller id, and with few numbers that are not -inf."""
    generator = np.random.default_rng(size + count)
    count = min(count, size)
    scores = generator.normal(size=(5, size)).astype(np.float32)
    if step:
        scores = np.round(scores / step).astype(np.float32) * np.float32(step)
    scores[generator.random(scores.shape) < 0.02] = -np.inf
    scores[1, 3:] = -np.inf
    scores[2, ::2] = -0.0
    ids, values = best(scores, count)
    expected = (-scores).argsort(axis=1, kind="stable")[:, :count]

    assert ids.tolist() == expected.tolist()
    assert values.tolist() == np.take_along_axis(scores, expected, axis=1).tolist()


@pytest.mark.parametrize("count", [1, 8, 2000])
def test_rows_that_are_no_numbers_have_no_best(count: int) -> None:
    """NaN and +inf anywhere in a row, and the other rows are as before."""
    scores = np.random.default_rng(0).normal(size=(6, 2000)).astype(np.float32)
    before = best(scores, count)
    scores[1, 1999], scores[2, 5], scores[3] = np.nan, np.inf, np.nan
    with np.errstate(invalid="ignore"):
        ids, values = best(scores, count)

    assert np.isnan(values[1:4]).all()
    assert ((ids >= 0) & (ids < 2000)).all()
    for row in (0, 4, 5):
        assert ids[row].tolist() == before[0][row].tolist()
        assert values[row].tolist() == before[1][row].tolist()


def test_the_normaliser_is_the_log_of_the_sum() -> None:
    """Of large logits too, and with some that are -inf."""
    logits = np.array([[0.0, 1.0, -np.inf], [1000.0, 1000.0, 0.0], [-1e30, -1e30, -1e30]], np.float32)

    with np.errstate(under="ignore"):
        found = log_normalizer(logits)
    assert found.tolist() == pytest.approx([math.log(1 + math.e), 1000 + math.log(2), float(np.float32(-1e30))])
