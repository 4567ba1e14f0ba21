"""The loss with its gradients against torch; learning-rate schedules against their formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import functional

from dragoman.model.loss import label_smoothed_loss
from dragoman.model.schedule import learning_rate


@pytest.mark.parametrize("with_bias", [False, True])
def test_loss_and_gradients_equal_torch(with_bias: bool) -> None:
    """Summed cross entropy with label smoothing of the projected states, over more rows than one slice."""
    torch.manual_seed(0)
    states, weight = torch.randn(1100, 16), torch.randn(30, 16)
    bias = torch.randn(30) if with_bias else None
    labels = torch.randint(0, 30, (1100,))
    leaves = [tensor.requires_grad_() for tensor in (states, weight, *([bias] if bias is not None else []))]
    ours = label_smoothed_loss(states, weight, labels, 0.1, bias)
    found = torch.autograd.grad(ours * 0.5, leaves)
    logits = functional.linear(states, weight, bias)
    theirs = functional.cross_entropy(logits, labels, label_smoothing=0.1, reduction="sum")
    expected = torch.autograd.grad(theirs * 0.5, leaves)

    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-3)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("inverse_square_root", [0.25, 1.0, 0.5]),
        ("noam", [1 / (8 * math.sqrt(16)), 1 / (2 * math.sqrt(16)), 1 / (4 * math.sqrt(16))]),
        ("cosine", [0.25 * (1 + math.cos(math.pi * 1 / 16)) / 2, (1 + math.cos(math.pi / 4)) / 2, 0.0]),
        ("linear", [0.25 * 15 / 16, 0.75, 0.0]),
        ("constant", [0.25, 1.0, 1.0]),
    ],
)
def test_schedules_follow_their_formulas(schedule: str, expected: list[float]) -> None:
    """At the first step, the end of warm-up (4) and the end of the run (16), as a factor of the peak."""
    found = [learning_rate(schedule, step, warmup_steps=4, done=step / 16, d_model=16) for step in (1, 4, 16)]

    assert found == pytest.approx(expected)


def walk(steps: int, rate: Callable[[int], float]) -> Iterator[float]:
    return (rate(step) for step in range(1, steps + 1))


@pytest.mark.parametrize("schedule", ["inverse_square_root", "noam", "cosine", "linear"])
def test_schedules_rise_then_fall(schedule: str) -> None:
    """One peak, at the end of warm-up."""
    rates = list(walk(100, lambda s: learning_rate(schedule, s, warmup_steps=10, done=s / 100, d_model=64)))
    peak = rates.index(max(rates))

    assert 7 <= peak <= 10
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
