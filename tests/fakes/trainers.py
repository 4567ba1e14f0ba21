"""A trainer of a very small model on the generated task."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch

from dragoman.model.checkpoint import latest_checkpoint, load_checkpoint, load_training_state
from dragoman.model.config import ModelConfig
from dragoman.model.data import TrainingData
from dragoman.model.generated import examples
from dragoman.model.readers import Pair
from dragoman.model.recipe import TrainConfig
from dragoman.model.tokenizers import Tokenizer, train_tokenizer
from dragoman.model.train import Trainer
from dragoman.model.transformer import Transformer

PAIRS = [Pair(e.source, e.target) for e in itertools.islice(examples(seed=3), 400)]


def make_tokenizer() -> Tokenizer:
    return train_tokenizer((text for pair in PAIRS for text in (pair.source, pair.target)), 330)


def make_trainer(
    tokenizer: Tokenizer,
    run: Path,
    *,
    steps: int,
    seed: int = 5,
    dropout: float = 0.1,
    max_target_tokens: int = 64,
    **settings: Any,
) -> Trainer:
    torch.manual_seed(seed)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=16,
        d_ff=32,
        num_heads=2,
        num_encoder_layers=1,
        num_decoder_layers=1,
        dropout=dropout,
        max_source_tokens=64,
        max_target_tokens=max_target_tokens,
    )
    training = TrainConfig(**{"batch_tokens": 300, "warmup_steps": 10, "max_steps": steps, "seed": seed, **settings})
    return Trainer(
        Transformer(config),
        tokenizer,
        training,
        training=TrainingData(lambda: PAIRS[20:], tokenizer, training),
        validation=PAIRS[:20],
        run=run,
        languages=("en", "de"),
    )


def resume(tokenizer: Tokenizer, run: Path, *, steps: int, **settings: Any) -> Trainer:
    trainer = make_trainer(tokenizer, run, steps=steps, **settings)
    folder = latest_checkpoint(run)
    assert folder is not None
    checkpoint = load_checkpoint(folder)
    trainer.model.load_state_dict(checkpoint.model.state_dict())
    trainer.restore(load_training_state(checkpoint.path))
    return trainer


def assert_same_weights(expected: Transformer, found: Transformer) -> None:
    weights = expected.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in found.state_dict().items())
