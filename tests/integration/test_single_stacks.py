"""Decoder-only and encoder-only models learn the generated task."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dragoman.model.config import ModelConfig
from dragoman.model.generated import Example, examples, is_held_out
from dragoman.model.loss import label_smoothed_loss
from dragoman.model.masks import padding_mask
from dragoman.model.optimizer import Optimizers
from dragoman.model.padding import pad_rows
from dragoman.model.recipe import TrainConfig
from dragoman.model.single_stack import DecoderOnly, EncoderOnly
from dragoman.model.tokenizers import Tokenizer, train_tokenizer

ROWS = 64


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """More threads would wait for one another: the tensors are small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def corpus() -> tuple[list[Example], list[Example]]:
    found = list(itertools.islice(examples(seed=3, max_number=9999), 8000))
    held_out = {e.source: e for e in found if is_held_out(e)}
    return [e for e in found if not is_held_out(e)], list(held_out.values())[:200]


@pytest.fixture(scope="module")
def tokenizer(corpus: tuple[list[Example], list[Example]]) -> Tokenizer:
    return train_tokenizer((text for e in corpus[0] for text in (e.source, e.target)), 400)


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    return pad_rows(rows, 0), torch.tensor([len(row) for row in rows])


def batches(data: list[Example], updates: int) -> list[list[Example]]:
    generator = random.Random(1)
    return [generator.sample(data, ROWS) for _ in range(updates)]


def optimize(optimizers: Optimizers, loss: Tensor, left: float) -> None:
    optimizers.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    optimizers.step(left, torch.amp.GradScaler("cpu", enabled=False))


def test_decoder_only_continues_a_source_with_its_translation(
    corpus: tuple[list[Example], list[Example]], tokenizer: Tokenizer
) -> None:
    """Source EOS target EOS as one text, loss on the target; LLaMA-like, at least 98 % exact on held-out text."""
    training, held_out = corpus
    torch.manual_seed(0)
    model = DecoderOnly(
        ModelConfig(
            vocab_size=tokenizer.vocab_size, d_model=64, d_ff=176, num_heads=4, num_key_value_heads=2,
            num_decoder_layers=3, positions="rotary", norm="rms", bias=False, activation="silu", gated=True,
            dropout=0.0, max_target_tokens=128,
        )
    )  # fmt: skip
    optimizers = Optimizers(model, TrainConfig(max_steps=1, optimizer="muon", learning_rate=4e-3))
    updates = 450
    for number, batch in enumerate(batches(training, updates)):
        sources = [tokenizer.encode(e.source) for e in batch]
        ids, _ = padded([s + tokenizer.encode(e.target) for s, e in zip(sources, batch, strict=True)])
        states, labels = model(ids[:, :-1]), ids[:, 1:]
        positions = torch.arange(labels.size(1))
        counted = (labels != 0) & (positions >= torch.tensor([len(s) - 1 for s in sources])[:, None])
        total = label_smoothed_loss(states[counted], model.output_weight, labels[counted], 0.0)
        optimize(optimizers, total / counted.sum(), 1 - number / updates)

    right = sum(continued(model.eval(), tokenizer, e.source) == e.target for e in held_out)
    assert right / len(held_out) >= 0.98


@torch.inference_mode()
def continued(model: DecoderOnly, tokenizer: Tokenizer, source: str) -> str:
    ids = tokenizer.encode(source)
    past, used, found = model.initial_state(1, 128), 0, []
    tokens = torch.tensor([ids])
    while used + tokens.size(1) < 128:
        states, past = model.step(tokens, past, torch.tensor([used]))
        used += tokens.size(1)
        token = int(model.project(states[:, -1]).argmax())
        if token == tokenizer.special.eos:
            break
        found.append(token)
        tokens = torch.tensor([[token]])
    return tokenizer.decode(found)


def test_encoder_only_fills_gaps(corpus: tuple[list[Example], list[Example]], tokenizer: Tokenizer) -> None:
    """BERT-like: source EOS target EOS with three in ten target tokens masked; the source says what they were."""
    training, held_out = corpus
    torch.manual_seed(0)
    model = EncoderOnly(
        ModelConfig(
            vocab_size=tokenizer.vocab_size, d_model=64, d_ff=128, num_heads=4, num_encoder_layers=3,
            positions="rotary", norm_position="pre", activation="gelu", output_bias=True, dropout=0.0,
            max_source_tokens=128,
        )
    )  # fmt: skip
    optimizers = Optimizers(model, TrainConfig(max_steps=1, optimizer="muon", learning_rate=4e-3))
    updates = 600
    generator = random.Random(2)
    for number, batch in enumerate(batches(training, updates)):
        logits, labels = masked(model, tokenizer, batch, generator)
        optimize(optimizers, cross_entropy(logits, labels), 1 - number / updates)

    with torch.inference_mode():
        logits, labels = masked(model.eval(), tokenizer, held_out, generator)
    assert (logits.argmax(-1) == labels).float().mean().item() >= 0.98


def masked(
    model: EncoderOnly, tokenizer: Tokenizer, batch: Sequence[Example], generator: random.Random
) -> tuple[Tensor, Tensor]:
    """Return logits [N, V] at the masked target positions, three in ten, and the tokens that were there."""
    sources = [tokenizer.encode(e.source) for e in batch]
    targets = [tokenizer.encode(e.target) for e in batch]
    ids, lengths = padded([s + t for s, t in zip(sources, targets, strict=True)])
    gaps = torch.zeros_like(ids, dtype=torch.bool)
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        places = generator.sample(range(len(target)), -(-3 * len(target) // 10))
        gaps[row, [len(source) + place for place in places]] = True
    states = model(ids.masked_fill(gaps, tokenizer.special.unk), padding_mask(lengths, ids.size(1)))
    return model.project(states[gaps]), ids[gaps]
