"""Every option of the model against an independent reference: torch, transformers, or the closed formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dragoman.model.attention import KeyValue, MultiHeadAttention
from dragoman.model.config import ModelConfig
from dragoman.model.data import Batch
from dragoman.model.dot_product import attention_weights, scaled_dot_product_attention
from dragoman.model.dropout import Dropout
from dragoman.model.embedding import TokenEmbedding
from dragoman.model.errors import ConfigError
from dragoman.model.feed_forward import FeedForward
from dragoman.model.layers import Cell
from dragoman.model.loss import label_smoothed_loss
from dragoman.model.masks import ValidLengths, causal_mask, padding_mask
from dragoman.model.norms import make_norm
from dragoman.model.positions import RelativeBias, relative_bucket, rotate, sinusoidal_positions
from dragoman.model.presets import PRESETS, SINGLE_STACK_PRESETS
from dragoman.model.schedule import learning_rate
from dragoman.model.single_stack import DecoderOnly, EncoderOnly
from dragoman.model.ssru import SSRU
from dragoman.model.train import LossModule
from dragoman.model.transformer import Transformer, count_parameters

SMALL: dict[str, Any] = {
    "vocab_size": 50, "d_model": 32, "d_ff": 64, "num_heads": 4, "num_encoder_layers": 2, "num_decoder_layers": 2,
    "dropout": 0.0, "max_source_tokens": 20, "max_target_tokens": 20,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "post": {"norm_position": "post"},
    "sinusoidal-half": {"positions": "sinusoidal-half"},
    "learned": {"positions": "learned"},
    "rotary": {"positions": "rotary"},
    "relative": {"positions": "relative", "relative_buckets": 8, "relative_max_distance": 12},
    "none": {"positions": "none"},
    "gelu": {"activation": "gelu"},
    "silu gated": {"activation": "silu", "gated": True},
    "gelu-tanh gated": {"activation": "gelu-tanh", "gated": True},
    "rms": {"norm": "rms", "bias": False},
    "post with final norm": {"norm_position": "post", "final_norm": True},
    "grouped": {"num_key_value_heads": 2},
    "one head of keys": {"num_key_value_heads": 1, "positions": "rotary"},
    "wide heads": {"d_head": 12},
    "t5": {
        "norm": "rms", "bias": False, "positions": "relative", "scale_attention": False, "scale_embedding": False,
        "scale_output": True, "activation": "gelu-tanh", "gated": True,
    },
    "source-target": {"tied_embeddings": "source-target"},
    "target-output": {"tied_embeddings": "target-output", "source_vocab_size": 44, "output_bias": True},
    "source-output": {"tied_embeddings": "source-output"},
    "untied": {"tied_embeddings": "none", "source_vocab_size": 44, "output_bias": True},
    "ssru": {"decoder_layer": "ssru"},
    "ssru post": {"decoder_layer": "ssru", "norm_position": "post", "output_bias": True},
    "ssru relative": {"decoder_layer": "ssru", "positions": "relative"},
}  # fmt: skip
with_variants = pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())


def make_config(**settings: Any) -> ModelConfig:
    return ModelConfig(**{**SMALL, **settings})


def make_model(**settings: Any) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(make_config(**settings))
    with torch.no_grad():  # a bias of zero and a norm of one would hide mistakes
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def random_batch() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randint(4, 44, (3, 7)), torch.tensor([7, 5, 3]), torch.randint(4, 50, (3, 6))


# --- the whole model, for each option ---


@with_variants
def test_cached_steps_equal_the_full_pass(settings: dict[str, Any]) -> None:
    """Decoding from a state gives the states of one pass, also with several tokens in one call."""
    model = make_model(**settings)
    source, lengths, target = random_batch()
    full = model(source, lengths, target)
    cross = model.encode(source, ValidLengths(lengths))
    past = model.initial_state(3, 10)
    used = torch.zeros(3, dtype=torch.int64)
    states = []
    for start, stop in ((0, 3), (3, 4), (4, 6)):
        state, past = model.decode_step(target[:, start:stop], cross, lengths, past, used)
        states.append(state)
        used = used + stop - start

    torch.testing.assert_close(torch.cat(states, dim=1), full, atol=2e-5, rtol=1e-4)


@with_variants
def test_padding_changes_nothing(settings: dict[str, Any]) -> None:
    """A row alone, without padding, has the states it has in a padded batch."""
    model = make_model(**settings)
    source, lengths, target = random_batch()
    batch = model(source, lengths, target)
    for row, length in enumerate(lengths.tolist()):
        alone = model(source[row : row + 1, :length], lengths[row : row + 1], target[row : row + 1, :4])
        torch.testing.assert_close(batch[row, :4], alone[0], atol=2e-5, rtol=1e-4)


@with_variants
def test_no_position_sees_the_future(settings: dict[str, Any]) -> None:
    """Another token at position 4 changes positions 4 and behind, and nothing before."""
    model = make_model(**settings)
    source, lengths, target = random_batch()
    other = target.clone()
    other[:, 4] = (other[:, 4] - 3) % 46 + 4
    before, after = model(source, lengths, target), model(source, lengths, other)

    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4], after[:, 4])


@with_variants
def test_every_weight_is_trained(settings: dict[str, Any]) -> None:
    """Each parameter gets a gradient, and a checkpoint holds each once."""
    model = make_model(**settings)
    source, lengths, target = random_batch()
    logits = model.project(model(source, lengths, target))
    functional.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    assert logits.shape == (3, 6, 50)
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    stored = sum(tensor.numel() for tensor in model.state_dict().values())
    assert stored == count_parameters(model)


@with_variants
def test_the_trained_loss_is_that_of_the_logits(settings: dict[str, Any]) -> None:
    """What training minimises is the cross entropy of what the model is asked for."""
    model = make_model(**settings)
    source, lengths, target = random_batch()
    labels = target.masked_fill(torch.arange(6) >= torch.tensor([[6], [4], [5]]), 0)
    batch = Batch(source, lengths, target, labels)
    logits = model.project(model(source, lengths, target)).flatten(0, 1)

    expected = functional.cross_entropy(logits, labels.flatten(), ignore_index=0, reduction="sum")
    torch.testing.assert_close(LossModule(model, 0)(batch, 0.0), expected, rtol=1e-5, atol=1e-4)


def test_without_positions_the_encoder_is_permutation_equivariant() -> None:
    """Shuffled tokens give the same states, shuffled; with positions they do not."""
    order = torch.tensor([3, 0, 4, 1, 2])
    source, _, _ = random_batch()
    tokens = source[:1, :5]
    for positions, expected in (("none", True), ("sinusoidal", False), ("rotary", False), ("relative", False)):
        model = make_model(positions=positions)
        mask = padding_mask(torch.tensor([5]), 5)
        plain = model.encoder(model.embedding(tokens), mask)
        shuffled = model.encoder(model.embedding(tokens[:, order]), mask)
        assert torch.allclose(plain[:, order], shuffled, atol=1e-5) is expected, positions


@pytest.mark.parametrize("name", sorted(PRESETS | SINGLE_STACK_PRESETS))
def test_presets_are_models(name: str) -> None:
    """Each is a valid configuration."""
    assert ModelConfig(vocab_size=100, **(PRESETS | SINGLE_STACK_PRESETS)[name]).d_model >= 256


@pytest.mark.parametrize(
    ("name", "millions"),
    [("transformer-base", 65), ("transformer-big", 213)],
)
def test_presets_have_the_published_size(name: str, millions: int) -> None:
    """Table 3 of the paper, with its 37,000 shared tokens."""
    with torch.device("meta"):
        model = Transformer(ModelConfig(vocab_size=37_000, **PRESETS[name]))

    assert count_parameters(model) / 1e6 == pytest.approx(millions, rel=0.05)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_key_value_heads": 3}, "num_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"positions": "alibi"}, "positions is 'alibi'; choose one of sinusoidal, sinusoidal-half, learned"),
        ({"positions": "rotary", "d_head": 5}, "rotary positions need an even number"),
        ({"positions": "relative", "relative_max_distance": 16}, "must exceed half the 32 relative_buckets"),
        ({"source_vocab_size": 44}, "choose 'target-output' or 'none'"),
        ({"attention_dropout": 1.0}, "attention_dropout is 1.0; it must be in"),
        ({"decoder_layer": "lstm"}, "choose one of self-attention, ssru"),
    ],
)
def test_settings_that_conflict_are_named(settings: dict[str, Any], said: str) -> None:
    """With the values and the way out."""
    with pytest.raises(ConfigError) as error:
        make_config(**settings)
    assert said in str(error.value)


# --- attention ---


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


# --- positions ---


def test_half_split_positions_follow_marians_formula() -> None:
    """Sines in the first half, cosines in the second, angles pos / 10000^(i / (E/2 - 1))."""
    table = sinusoidal_positions(30, 16, half_split=True)
    for pos, i in ((0, 0), (1, 0), (7, 3), (29, 7)):
        angle = pos / 10000 ** (i / 7)
        assert table[pos, i].item() == pytest.approx(math.sin(angle), abs=1e-5)
        assert table[pos, 8 + i].item() == pytest.approx(math.cos(angle), abs=1e-5)


@pytest.mark.parametrize("half_split", [False, True])
def test_a_shift_of_positions_is_a_fixed_linear_map(half_split: bool) -> None:
    """PE(pos + 5) = M PE(pos) with one M for all positions (3.5)."""
    table = sinusoidal_positions(60, 16, half_split=half_split)
    steps = torch.arange(8) / 7 if half_split else torch.arange(8) / 8
    sines = torch.arange(8) if half_split else torch.arange(0, 16, 2)
    cosines = sines + (8 if half_split else 1)
    angles = 5 * 10000.0**-steps
    matrix = torch.zeros(16, 16)  # a rotation of each pair of columns
    matrix[sines, sines] = matrix[cosines, cosines] = angles.cos()
    matrix[cosines, sines], matrix[sines, cosines] = angles.sin(), -angles.sin()

    torch.testing.assert_close(table[:50] @ matrix, table[5:55], atol=1e-5, rtol=1e-5)


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


# --- feed-forward, norms, embedding, dropout ---


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


# --- the recurrent cell ---


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


# --- single stacks ---


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


# --- loss and schedules ---


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
