"""torch.compile changes how fast a model trains, not what it learns."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.fakes.trainers import make_tokenizer, make_trainer


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling for the CPU needs g++")
@pytest.mark.filterwarnings("default")  # the compiler's own
def test_a_compiled_model_trains_like_any_other(tmp_path: Path) -> None:
    """Batches of several lengths, without dropout: the same losses.

    Not the same weights: where a gradient is zero but for rounding (key biases), Adam steps by its sign.
    """
    tokenizer = make_tokenizer()
    losses = []
    for compiled in (False, True):
        trainer = make_trainer(tokenizer, tmp_path / str(compiled), steps=4, compile=compiled, dropout=0.0)
        trainer.train()
        losses.append(trainer.validation.loss(trainer.model))

    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
