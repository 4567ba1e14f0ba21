"""Attention against torch and the formula: masks, bias, scale, grouped heads."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from dragoman.model.attention import MultiHeadAttention
from dragoman.model.dot_product import attention_weights, scaled_dot_product_attention
from dragoman.model.masks import ValidLengths, causal_mask, padding_mask
from tests.fakes.models import make_config


def test_attention_rows_sum_to_one() -> None:
    """Also where keys are masked, which get nothing."""
    torch.manual_seed(0)
    mask = padding_mask(torch.tensor([7, 3]), 7)
    weights = attention_weights(torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), mask)

    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 5))
    assert weights[1, :, :, 3:].count_nonzero() == 0


@pytest.mark.parametrize("width", [16, 64, 256])
def test_the_scale_removes_the_growth_of_the_scores(width: int) -> None:
    """Scores of random vectors have variance d_k; divided by sqrt(d_k) it is 1 (3.2.1, footnote 4)."""
    torch.manual_seed(0)
    query, key = torch.randn(4, 2, 100, width), torch.randn(4, 2, 100, width)
    scores = query @ key.transpose(-2, -1)

    assert scores.var().item() == pytest.approx(width, rel=0.1)
    expected = (scores / math.sqrt(width)).softmax(-1)
    torch.testing.assert_close(attention_weights(query, key), expected)
    assert (scores / math.sqrt(width)).var().item() == pytest.approx(1, rel=0.1)


def test_an_additive_mask_and_a_bias_are_torchs() -> None:
    """A float mask is added to the scores, like torch's; a bias besides a boolean mask, too."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 4, 5, 8) for _ in range(3))
    additive, allowed = torch.randn(1, 4, 5, 5), causal_mask(5)
    both = additive.masked_fill(~allowed, float("-inf"))

    expected = functional.scaled_dot_product_attention(query, key, value, attn_mask=additive)
    torch.testing.assert_close(scaled_dot_product_attention(query, key, value, additive)[0], expected)
    expected = functional.scaled_dot_product_attention(query, key, value, attn_mask=both)
    torch.testing.assert_close(scaled_dot_product_attention(query, key, value, allowed, bias=additive)[0], expected)


def test_returned_weights_are_those_that_were_used() -> None:
    """Their product with the values is the result."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 4, 5, 8) for _ in range(3))
    result, weights = scaled_dot_product_attention(query, key, value, causal_mask(5))

    torch.testing.assert_close(weights @ value, result)


def test_grouped_heads_equal_torch() -> None:
    """Four heads of queries share two of keys and values, neighbours together."""
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)

    expected = functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    torch.testing.assert_close(scaled_dot_product_attention(query, key, value)[0], expected)


def test_valid_lengths_take_a_bias_and_grouped_heads() -> None:
    """The form of the decode step equals the boolean mask with both."""
    torch.manual_seed(0)
    attention = MultiHeadAttention(make_config(num_key_value_heads=2))
    states, memory, bias = torch.randn(2, 3, 32), torch.randn(2, 6, 32), torch.randn(1, 4, 3, 6)
    keys_values = attention.project_key_value(memory)
    lengths = torch.tensor([6, 4])

    expected = attention(states, keys_values, padding_mask(lengths, 6), bias=bias)
    torch.testing.assert_close(attention(states, keys_values, ValidLengths(lengths), bias=bias), expected)
    weights = attention.weights(states, keys_values, ValidLengths(lengths), bias=bias)
    torch.testing.assert_close(weights, attention.weights(states, keys_values, padding_mask(lengths, 6), bias=bias))
