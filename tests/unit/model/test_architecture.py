"""What holds for the model with every option: cached = uncached, padding, causality, gradients; presets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from dragoman.model.config import ModelConfig
from dragoman.model.data import Batch
from dragoman.model.errors import ConfigError
from dragoman.model.loss_module import LossModule
from dragoman.model.masks import ValidLengths, padding_mask
from dragoman.model.presets import PRESETS, SINGLE_STACK_PRESETS
from dragoman.model.transformer import Transformer, count_parameters
from tests.fakes.models import VARIANTS, make_config, make_model, random_batch

with_variants = pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())


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


def test_the_embedding_norm_stands_in_front_of_both_stacks() -> None:
    """Scaling all embedded tokens and positions changes nothing behind it."""
    model = make_model(embedding_norm=True, norm_epsilon=1e-12)
    source, lengths, target = random_batch()
    tables = [model.encoder.positions.table, model.decoder.positions.table, model.embedding.tokens.weight]
    before = model(source, lengths, target)
    with torch.no_grad():
        for table in tables:
            table.mul_(3)

    torch.testing.assert_close(model(source, lengths, target), before, atol=1e-4, rtol=1e-4)


def test_configurations_from_before_a_setting_are_read() -> None:
    """A setting that a checkpoint does not name has the value that changes nothing."""
    old = make_config().to_dict()
    del old["first_position"], old["embedding_norm"]

    assert ModelConfig.from_dict(old) == make_config()


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
        (
            {"positions": "alibi"},
            "positions is 'alibi'; choose one of sinusoidal, sinusoidal-half, sinusoidal-half-paper, learned",
        ),
        ({"first_position": -1}, "first_position is -1; it must not be negative"),
        ({"positions": "learned", "first_position": 2}, "positions 'learned' have no use for it"),
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
