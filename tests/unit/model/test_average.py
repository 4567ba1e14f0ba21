"""Averaged checkpoints, and which ones may be averaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.cli.main import main
from dragoman.model.average import average_checkpoints
from dragoman.model.checkpoint import checkpoints, load_checkpoint, load_training_state, save_checkpoint
from dragoman.model.config import ModelConfig
from dragoman.model.errors import CheckpointError
from dragoman.model.tokenizers import Tokenizer, train_tokenizer
from dragoman.model.transformer import Transformer

SIZES: dict[str, Any] = {"d_ff": 16, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(["one two three four", "eins zwei drei vier"], 280)


def save(run: Path, tokenizer: Tokenizer, step: int, d_model: int = 16) -> Path:
    torch.manual_seed(step)
    model = Transformer(ModelConfig(vocab_size=tokenizer.vocab_size, d_model=d_model, **SIZES))
    return save_checkpoint(
        run, model, tokenizer, languages=("en", "de"), step=step, training_state={"step": step}, keep=5
    )


def test_the_result_is_the_mean(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Of every weight; it loads like a run, but cannot be trained on."""
    folders = [save(tmp_path / "run", tokenizer, step) for step in (1, 2, 3)]
    average_checkpoints(folders, tmp_path / "mean")
    parts = [load_checkpoint(folder).model.state_dict() for folder in folders]
    found = load_checkpoint(tmp_path / "mean")

    for name, tensor in found.model.state_dict().items():
        torch.testing.assert_close(tensor, torch.stack([part[name] for part in parts]).mean(0))
    assert found.step == 3
    with pytest.raises(CheckpointError, match="not trained on"):
        load_training_state(found.path)


def test_the_command_takes_the_last_ones(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says which."""
    for step in (1, 2, 3):
        save(tmp_path / "run", tokenizer, step)
    arguments = ["average", "--run", str(tmp_path / "run"), "--out", str(tmp_path / "mean"), "--last"]

    assert main([*arguments, "2"]) == 0
    assert "checkpoint-00000002, checkpoint-00000003 -> " in capsys.readouterr().out
    assert main([*arguments, "9"]) == 1
    assert "holds 3 checkpoints" in capsys.readouterr().err


def test_checkpoints_of_other_models_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Both are named."""
    folders = [save(tmp_path / "a", tokenizer, 1), save(tmp_path / "b", tokenizer, 1, d_model=32)]
    with pytest.raises(CheckpointError, match="do not belong together"):
        average_checkpoints(folders, tmp_path / "mean")


def test_nothing_is_overwritten(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A folder with checkpoints is not a target."""
    folder = save(tmp_path / "run", tokenizer, 1)
    with pytest.raises(CheckpointError, match="choose another folder"):
        average_checkpoints([folder], tmp_path / "run")
    assert checkpoints(tmp_path / "run") == [folder]
