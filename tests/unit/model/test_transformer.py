"""The Transformer: equations against torch's own, and the equivalences that every faster path relies on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import pytest
import torch
from torch import nn

from dragoman.model.attention import KeyValue, MultiHeadAttention
from dragoman.model.config import ModelConfig
from dragoman.model.dot_product import scaled_dot_product_attention
from dragoman.model.layers import LayerState
from dragoman.model.masks import ValidLengths, causal_mask, padding_mask, valid_mask
from dragoman.model.positions import sinusoidal_positions
from dragoman.model.search import greedy
from dragoman.model.transformer import Transformer
from dragoman.model.vocab import SPECIAL_IDS

NormPosition = Literal["pre", "post"]
NORMS: tuple[NormPosition, ...] = ("pre", "post")


NO_DROPOUT = ModelConfig(vocab_size=50, d_model=32, num_heads=4, dropout=0.0)


def make_model(norm_position: NormPosition, *, dropout: float = 0.0) -> Transformer:
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=50,
        d_model=32,
        d_ff=64,
        num_heads=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        norm_position=norm_position,
        dropout=dropout,
        max_source_tokens=20,
        max_target_tokens=20,
    )
    return Transformer(config).eval()


@pytest.fixture(params=NORMS)
def model(request: pytest.FixtureRequest) -> Transformer:
    return make_model(request.param)


def random_batch(rows: int = 3, source: int = 7, target: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    lengths = torch.tensor([source, *[source - 1 - 2 * i for i in range(rows - 1)]])
    return torch.randint(4, 50, (rows, source)), lengths, torch.randint(4, 50, (rows, target))


def test_attention_equals_torch() -> None:
    """Equation 1 is torch's scaled_dot_product_attention, with our mask polarity."""
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 8)
    mask = padding_mask(torch.tensor([7, 3]), 7)

    ours, _ = scaled_dot_product_attention(query, key, value, mask)
    theirs = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    torch.testing.assert_close(ours, theirs)


def test_multi_head_attention_equals_torch() -> None:
    """The module computes nn.MultiheadAttention's function for the same weights."""
    torch.manual_seed(0)
    ours, theirs = MultiHeadAttention(NO_DROPOUT), nn.MultiheadAttention(32, 4, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key.weight, ours.value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key.bias, ours.value.bias]))
        theirs.out_proj.weight.copy_(ours.output.weight)
        theirs.out_proj.bias.copy_(ours.output.bias)
    states, memory, lengths = torch.randn(2, 5, 32), torch.randn(2, 7, 32), torch.tensor([7, 4])
    mask = padding_mask(lengths, 7)

    expected, _ = theirs(states, memory, memory, key_padding_mask=~mask[:, 0, 0])
    torch.testing.assert_close(ours(states, ours.project_key_value(memory), mask), expected)


@pytest.mark.parametrize("causal", [False, True])
def test_valid_lengths_equal_the_boolean_mask(causal: bool) -> None:
    """Both ways to write a mask down give the same attention."""
    torch.manual_seed(0)
    attention = MultiHeadAttention(NO_DROPOUT)
    states, memory = torch.randn(3, 2, 32), torch.randn(3, 9, 32)
    valid = ValidLengths(torch.tensor([9, 4, 2]), causal=causal)
    keys_values = attention.project_key_value(memory)

    expected = attention(states, keys_values, valid_mask(valid, 2, 9))
    torch.testing.assert_close(attention(states, keys_values, valid), expected)


def test_masks_say_true_for_attend() -> None:
    """The causal mask is lower triangular; the padding mask covers what lies behind a length."""
    assert causal_mask(3)[0, 0].tolist() == [[True, False, False], [True, True, False], [True, True, True]]
    assert padding_mask(torch.tensor([1, 3]), 3)[:, 0, 0].tolist() == [[True, False, False], [True, True, True]]


def test_positions_follow_the_closed_formula() -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i/E)) and PE(pos, 2i+1) the cosine."""
    table = sinusoidal_positions(30, 16)

    for pos, i in ((0, 0), (1, 0), (7, 3), (29, 7)):
        angle = pos / 10000 ** (2 * i / 16)
        assert table[pos, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-5)
        assert table[pos, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)


def test_cached_steps_equal_the_full_pass(model: Transformer) -> None:
    """Decoding token by token from a cache gives the states of one pass, also with a prefix in one call."""
    source, lengths, target = random_batch()
    full = model(source, lengths, target)
    cross = model.encode(source, ValidLengths(lengths))
    past: Sequence[LayerState] = [KeyValue(torch.zeros(3, 4, 10, 8), torch.zeros(3, 4, 10, 8)) for _ in range(2)]
    used = torch.zeros(3, dtype=torch.int64)
    states = []
    for start, stop in ((0, 3), (3, 4), (4, 6)):
        state, past = model.decode_step(target[:, start:stop], cross, lengths, past, used)
        states.append(state)
        used = used + stop - start

    torch.testing.assert_close(torch.cat(states, dim=1), full, atol=1e-5, rtol=1e-5)


def test_rows_of_different_age_share_a_step(model: Transformer) -> None:
    """A step over rows with unequal caches equals each row's own step."""
    source, lengths, target = random_batch()
    full = model(source, lengths, target)
    cross = model.encode(source, ValidLengths(lengths))
    past: Sequence[LayerState] = [KeyValue(torch.randn(3, 4, 10, 8), torch.randn(3, 4, 10, 8)) for _ in range(2)]
    ages = torch.tensor([4, 0, 2])
    for step in range(int(ages.max())):  # age the rows one by one; the others write behind their end
        used = torch.minimum(ages, torch.tensor(step))
        tokens = target.gather(1, used[:, None])
        _, past = model.decode_step(tokens, cross, lengths, past, used)

    state, _ = model.decode_step(target.gather(1, ages[:, None]), cross, lengths, past, ages)
    expected = full[torch.arange(3), ages]
    torch.testing.assert_close(state[:, 0], expected, atol=1e-5, rtol=1e-5)


def test_no_position_sees_the_future(model: Transformer) -> None:
    """Changing a target token changes no state before it, and changes the states from it on."""
    source, lengths, target = random_batch()
    changed = target.clone()
    changed[:, 3] = (changed[:, 3] - 4 + 1) % 46 + 4
    before, after = model(source, lengths, target), model(source, lengths, changed)

    torch.testing.assert_close(after[:, :3], before[:, :3])
    assert (after[:, 3:] - before[:, 3:]).abs().amax(dim=(0, 2)).min() > 1e-3


def test_padding_changes_nothing(model: Transformer) -> None:
    """A row's states are those of the row alone, whatever stands in its padding."""
    source, lengths, target = random_batch()
    together = model(source, lengths, target)

    for row, length in enumerate(lengths.tolist()):
        alone = model(source[row : row + 1, :length], lengths[row : row + 1], target[row : row + 1])
        torch.testing.assert_close(together[row], alone[0], atol=1e-5, rtol=1e-5)


def test_source_matters(model: Transformer) -> None:
    """Another source token gives other decoder states: the tests above are not about constants."""
    source, lengths, target = random_batch()
    changed = source.clone()
    changed[:, 0] = (changed[:, 0] - 4 + 1) % 46 + 4

    assert (model(changed, lengths, target) - model(source, lengths, target)).abs().max() > 1e-3


def test_norm_positions_differ() -> None:
    """Pre- and post-norm are different functions of the same weights' shapes."""
    pre, post = make_model("pre"), make_model("post")

    assert set(pre.state_dict()) - set(post.state_dict()) == {
        f"{stack}.norm.{name}" for stack in ("encoder", "decoder") for name in ("weight", "bias")
    }


def test_embeddings_are_tied() -> None:
    """One matrix serves source, target and output."""
    weights = make_model("pre").state_dict()

    assert [name for name, tensor in weights.items() if 50 in tensor.shape] == ["embedding.tokens.weight"]


def test_greedy_batch_equals_alone(model: Transformer) -> None:
    """The oracle's rows do not know each other."""
    generator = torch.Generator().manual_seed(2)
    sources = [[*torch.randint(4, 50, (n,), generator=generator).tolist(), SPECIAL_IDS.eos] for n in (1, 4, 9)]
    limits = [12, 5, 8]

    together = greedy(model, sources, limits)
    assert together == [greedy(model, [s], [m])[0] for s, m in zip(sources, limits, strict=True)]
    assert all(len(ids) <= limit for ids, limit in zip(together, limits, strict=True))


def test_greedy_never_generates_reserved_ids() -> None:
    """Pad, unknown and start are masked even when their logits are the highest."""
    model = make_model("pre")
    with torch.no_grad():
        model.embedding.tokens.weight[:3] *= 50
    found = greedy(model, [[5, 6, SPECIAL_IDS.eos]], [20])[0]

    assert not set(found) & set(SPECIAL_IDS.never_generated)
