"""Feed-forward, norms, embeddings, dropout, the recurrent cell and single stacks against their formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from dragoman.model.attention import KeyValue
from dragoman.model.dropout import Dropout
from dragoman.model.embedding import TokenEmbedding
from dragoman.model.feed_forward import FeedForward
from dragoman.model.layers import Cell
from dragoman.model.masks import padding_mask
from dragoman.model.norms import make_norm
from dragoman.model.single_stack import DecoderOnly, EncoderOnly
from dragoman.model.ssru import SSRU
from tests.fakes.models import make_config, make_model


@pytest.mark.parametrize(
    ("activation", "reference"),
    [
        ("relu", nn.ReLU()),
        ("gelu", nn.GELU()),
        ("gelu-tanh", nn.GELU(approximate="tanh")),
        ("silu", nn.SiLU()),
    ],
)
@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward_equals_the_formula(activation: Any, reference: nn.Module, gated: bool) -> None:
    """Equation 2, and Shazeer's gated form."""
    torch.manual_seed(0)
    layer = FeedForward(make_config(activation=activation, gated=gated))
    states = torch.randn(2, 3, 32)
    hidden = reference(functional.linear(states, layer.expand.weight, layer.expand.bias))
    if layer.gate is not None:
        hidden = hidden * functional.linear(states, layer.gate.weight, layer.gate.bias)
    expected = functional.linear(hidden, layer.contract.weight, layer.contract.bias)

    torch.testing.assert_close(layer(states), expected)


def test_norms_follow_their_formulas() -> None:
    """Layer norm subtracts the mean; RMS norm divides by the root of the mean square alone."""
    states = torch.randn(2, 3, 32) * 4 + 1
    centred = states - states.mean(-1, keepdim=True)
    layer = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    rms = states / (states.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    torch.testing.assert_close(make_norm(make_config())(states), layer, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(make_norm(make_config(norm="rms"))(states), rms, atol=1e-5, rtol=1e-5)
    assert make_norm(make_config(bias=False)).bias is None


def test_biases_are_optional() -> None:
    """Without them no parameter has one, but for the cells' gates."""
    assert not [name for name, _ in make_model(bias=False).named_parameters() if "bias" in name]


def test_embeddings_are_scaled_or_not() -> None:
    """By sqrt(E) (3.4)."""
    ids = torch.tensor([[5, 6]])
    for scaled, factor in ((True, math.sqrt(32)), (False, 1.0)):
        embedding = TokenEmbedding(50, make_config(scale_embedding=scaled))
        torch.testing.assert_close(embedding(ids), embedding.tokens.weight[ids] * factor)


@pytest.mark.parametrize(
    ("tied", "matrices"), [("all", 1), ("source-target", 2), ("target-output", 2), ("source-output", 2), ("none", 3)]
)
def test_tied_matrices_are_one(tied: Any, matrices: int) -> None:
    """Which of source, target and output share a weight, and that others do not."""
    model = make_model(tied_embeddings=tied)
    tables = {
        "source": model.embedding.tokens.weight,
        "target": model.target_table.tokens.weight,
        "output": model.output_weight,
    }
    pairs = {(one, other) for one in tables for other in tables if one < other and tables[one] is tables[other]}
    expected = {
        "all": {("source", "target"), ("output", "source"), ("output", "target")},
        "source-target": {("source", "target")},
        "target-output": {("output", "target")},
        "source-output": {("output", "source")},
        "none": set(),
    }[tied]

    assert pairs == expected
    assert sum(1 for p in model.parameters() if p.shape == (50, 32)) == matrices


def test_dropout_zeroes_its_share_and_keeps_the_expectation() -> None:
    """In steps of 1/256 on the CPU; nothing in evaluation."""
    torch.manual_seed(0)
    dropout, ones = Dropout(0.1), torch.ones(300, 1001)
    dropped = dropout(ones)

    assert (dropped == 0).float().mean().item() == pytest.approx(26 / 256, abs=2e-3)
    assert dropped.mean().item() == pytest.approx(1.0, abs=2e-3)
    assert dropped.unique().tolist() == pytest.approx([0.0, 256 / 230])
    assert dropout.eval()(ones) is ones


def test_dropout_is_where_the_paper_has_it() -> None:
    """On sublayer outputs and embedded tokens, and on attention weights and activations with rates of their own."""
    model = make_model(dropout=0.1, attention_dropout=0.2, feed_forward_dropout=0.3)
    rates = {name: module.probability for name, module in model.named_modules() if isinstance(module, Dropout)}

    assert {rate for name, rate in rates.items() if name.endswith("attention.dropout")} == {0.2}
    assert {rate for name, rate in rates.items() if name.endswith("feed_forward.dropout")} == {0.3}
    rest = {n: r for n, r in rates.items() if not n.endswith(("attention.dropout", "feed_forward.dropout"))}
    assert set(rest.values()) == {0.1}
    assert len(rest) == 2 * 2 + 2 * 3 + 2


def test_ssru_equals_its_recurrence() -> None:
    """F = sigmoid(x W_f + b_f); c = f c + (1 - f) x W; h = relu(c), position by position."""
    torch.manual_seed(0)
    layer, states = SSRU(make_config()), torch.randn(2, 13, 32)
    cell, expected = torch.zeros(2, 32), []
    for position in range(13):
        x = states[:, position]
        forget = torch.sigmoid(functional.linear(x, layer.forget.weight, layer.forget.bias))
        cell = forget * cell + (1 - forget) * functional.linear(x, layer.value.weight)
        expected.append(cell.relu())
    hidden, last = layer(states)

    torch.testing.assert_close(hidden, torch.stack(expected, 1), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(last, cell, atol=1e-6, rtol=1e-5)


def test_ssru_continues_from_any_cell() -> None:
    """Extreme gates included: a cell that is kept for ever and one that is forgotten at once."""
    torch.manual_seed(0)
    layer, states = SSRU(make_config()), torch.randn(2, 40, 32) * 30
    whole, last = layer(states)
    first, cell = layer(states[:, :17])
    second, end = layer(states[:, 17:], cell)

    torch.testing.assert_close(torch.cat((first, second), 1), whole, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(end, last, atol=1e-5, rtol=1e-4)


def test_the_state_of_a_recurrent_decoder_does_not_grow() -> None:
    """E numbers per layer, whatever the length."""
    model = make_model(decoder_layer="ssru")

    assert all(isinstance(state, Cell) and state.cell.shape == (3, 32) for state in model.initial_state(3, 500))
    attention = make_model(num_key_value_heads=2).initial_state(3, 500)
    assert all(isinstance(state, KeyValue) and state.key.shape == (3, 2, 500, 8) for state in attention)


def test_decoder_only_steps_equal_the_full_pass() -> None:
    """The LLaMA-like stack, without a source."""
    torch.manual_seed(0)
    model = DecoderOnly(make_config(positions="rotary", norm="rms", bias=False, activation="silu", gated=True)).eval()
    tokens = torch.randint(4, 50, (2, 6))
    full = model(tokens)
    past, states = model.initial_state(2, 8), []
    for start, stop in ((0, 2), (2, 3), (3, 6)):
        state, past = model.step(tokens[:, start:stop], past, torch.full((2,), start))
        states.append(state)

    torch.testing.assert_close(torch.cat(states, 1), full, atol=1e-5, rtol=1e-4)
    assert not [name for name, _ in model.named_parameters() if "cross" in name]
    assert model.project(full).shape == (2, 6, 50)


def test_encoder_only_sees_both_sides() -> None:
    """A later token changes an earlier state; padding changes none."""
    torch.manual_seed(0)
    model = EncoderOnly(make_config(positions="learned", norm_position="post", output_bias=True)).eval()
    tokens = torch.randint(4, 50, (1, 6))
    other = tokens.clone()
    other[0, 5] = (other[0, 5] - 3) % 46 + 4
    everything = padding_mask(torch.tensor([6]), 6)
    first = model(tokens, everything)[0, 0]

    assert not torch.allclose(first, model(other, everything)[0, 0])
    masked = padding_mask(torch.tensor([5]), 6)
    torch.testing.assert_close(model(tokens, masked)[0, :5], model(other, masked)[0, :5])
    assert model.project(model(tokens, everything)).shape == (1, 6, 50)
