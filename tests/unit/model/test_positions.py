"""Positions against the closed formulas, LLaMA and T5."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dragoman.model.masks import padding_mask
from dragoman.model.positions import Layout, RelativeBias, relative_bucket, rotate, sinusoidal_positions
from tests.fakes.models import VARIANTS, make_config, make_model, random_batch


def test_half_split_positions_follow_marians_formula() -> None:
    """Sines in the first half, cosines in the second, angles pos / 10000^(i / (E/2 - 1))."""
    table = sinusoidal_positions(30, 16, "sinusoidal-half")
    for pos, i in ((0, 0), (1, 0), (7, 3), (29, 7)):
        angle = pos / 10000 ** (i / 7)
        assert table[pos, i].item() == pytest.approx(math.sin(angle), abs=1e-6)
        assert table[pos, 8 + i].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_half_split_positions_equal_marian_in_transformers() -> None:
    """It has the layout of the one formula and the rates of the other; so have we, for checkpoints from there."""
    marian = pytest.importorskip("transformers.models.marian.modeling_marian")
    expected = marian.MarianSinusoidalPositionalEmbedding(1024, 32).create_weight()

    torch.testing.assert_close(sinusoidal_positions(1024, 32, "sinusoidal-half-paper"), expected, atol=1e-6, rtol=0)


def test_positions_behind_the_padding_equal_m2m_in_transformers() -> None:
    """The first token stands at position 2 where the padding has id 1."""
    m2m = pytest.importorskip("transformers.models.m2m_100.modeling_m2m_100")
    expected = m2m.M2M100SinusoidalPositionalEmbedding(64, 32, 1)(torch.full((1, 64), 7))[0]

    torch.testing.assert_close(sinusoidal_positions(64, 32, "sinusoidal-half", 2), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("layout", ["sinusoidal", "sinusoidal-half", "sinusoidal-half-paper"])
def test_a_shift_of_positions_is_a_fixed_linear_map(layout: Layout) -> None:
    """PE(pos + 5) = M PE(pos) with one M for all positions (3.5)."""
    table = sinusoidal_positions(60, 16, layout)
    steps = torch.arange(8) / (7 if layout == "sinusoidal-half" else 8)
    sines = torch.arange(0, 16, 2) if layout == "sinusoidal" else torch.arange(8)
    cosines = sines + (1 if layout == "sinusoidal" else 8)
    angles = 5 * 10000.0**-steps
    matrix = torch.zeros(16, 16)  # a rotation of each pair of columns
    matrix[sines, sines] = matrix[cosines, cosines] = angles.cos()
    matrix[cosines, sines], matrix[sines, cosines] = angles.sin(), -angles.sin()

    torch.testing.assert_close(table[:50] @ matrix, table[5:55], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layout", ["sinusoidal", "sinusoidal-half", "sinusoidal-half-paper"])
def test_positions_may_begin_elsewhere(layout: Layout) -> None:
    """The table from 3 on is the tail of the one from 0 on."""
    assert torch.equal(sinusoidal_positions(20, 16, layout, 3), sinusoidal_positions(23, 16, layout)[3:])


def test_rotary_equals_transformers() -> None:
    """LLaMA's rotation of queries and keys."""
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    configuration = pytest.importorskip("transformers").LlamaConfig(
        hidden_size=32, num_attention_heads=4, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}
    )
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5], [7, 8, 9, 10, 11, 12]])
    cosine, sine = llama.LlamaRotaryEmbedding(configuration)(query, positions)

    expected = llama.apply_rotary_pos_emb(query, key, cosine, sine)
    torch.testing.assert_close((rotate(query, positions), rotate(key, positions)), expected, atol=1e-5, rtol=1e-5)


def test_rotated_products_depend_on_the_distance_alone() -> None:
    """Shifting both positions changes nothing; the length of a vector stays."""
    torch.manual_seed(0)
    query, key = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def product(one: int, other: int) -> Tensor:
        return (rotate(query, torch.tensor([one])) * rotate(key, torch.tensor([other]))).sum()

    torch.testing.assert_close(product(3, 1), product(13, 11), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(product(3, 1), product(3, 2))
    torch.testing.assert_close(rotate(query, torch.tensor([9])).norm(), query.norm())


@pytest.mark.parametrize("causal", [False, True])
def test_relative_buckets_equal_transformers(causal: bool) -> None:
    """T5's assignment of distances to buckets."""
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distances = torch.arange(-300, 301)
    expected = t5.T5Attention._relative_position_bucket(
        distances, bidirectional=not causal, num_buckets=32, max_distance=128
    )

    assert torch.equal(relative_bucket(distances, causal=causal, buckets=32, max_distance=128), expected)


def test_relative_bias_of_a_step_is_a_row_of_the_full_one() -> None:
    """Positions of a step are counted per row."""
    bias = RelativeBias(make_config(positions="relative"), causal=True)
    full = bias(torch.arange(9), 9)
    step = bias(torch.tensor([[4], [7]]), 9)

    torch.testing.assert_close(step[0, :, 0], full[0, :, 4])
    torch.testing.assert_close(step[1, :, 0], full[0, :, 7])


def test_the_encoder_layer_equals_t5() -> None:
    """Relative bias, RMS norm before, no bias, no scale, gated GELU: the layer of T5 v1.1 with the same weights."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = transformers.T5EncoderModel(
        transformers.T5Config(
            vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu",
            dropout_rate=0.0, tie_word_embeddings=False,
        )
    ).eval()  # fmt: skip
    ours = make_model(**{**VARIANTS["t5"], "norm_epsilon": 1e-6})
    encoder = theirs.encoder
    with torch.no_grad():
        ours.embedding.tokens.weight.copy_(theirs.shared.weight)
        assert ours.encoder.relative is not None
        table = encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
        ours.encoder.relative.weights.weight.copy_(table)
        layers: list[Any] = list(ours.encoder.layers)
        for mine, block in zip(layers, encoder.block, strict=True):
            attention, feed_forward = block.layer[0].SelfAttention, block.layer[1].DenseReluDense
            for linear, weight in (
                (mine.self_attention.query, attention.q), (mine.self_attention.key, attention.k),
                (mine.self_attention.value, attention.v), (mine.self_attention.output, attention.o),
                (mine.feed_forward.expand, feed_forward.wi_0), (mine.feed_forward.gate, feed_forward.wi_1),
                (mine.feed_forward.contract, feed_forward.wo),
                (mine.self_attention_sublayer.norm, block.layer[0].layer_norm),
                (mine.feed_forward_sublayer.norm, block.layer[1].layer_norm),
            ):  # fmt: skip
                linear.weight.copy_(weight.weight)
        final: Any = ours.encoder.norm
        final.weight.copy_(encoder.final_layer_norm.weight)
    source, lengths, _ = random_batch()
    mask = padding_mask(lengths, 7)

    expected = theirs(input_ids=source, attention_mask=mask[:, 0, 0].long()).last_hidden_state
    found = ours.encoder(ours.embedding(source), mask)
    torch.testing.assert_close(found[mask[:, 0, 0]], expected[mask[:, 0, 0]], atol=1e-4, rtol=1e-4)
