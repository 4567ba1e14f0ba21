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
from dragoman.model.recipe import TrainConfig
from dragoman.model.tokenizers import Tokenizer, train_tokenizer
from dragoman.model.transformer import Transformer

SIZES: dict[str, Any] = {"d_ff": 16, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(["one two three four", "eins zwei drei vier"], 280)


def save(
    run: Path, tokenizer: Tokenizer, step: int, d_model: int = 16, trained_with: dict[str, Any] | None = None
) -> Path:
    torch.manual_seed(step)
    model = Transformer(ModelConfig(vocab_size=tokenizer.vocab_size, d_model=d_model, **SIZES))
    return save_checkpoint(
        run,
        model,
        tokenizer,
        languages=("en", "de"),
        step=step,
        training_state={"step": step},
        keep=5,
        trained_with=trained_with,
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
    assert "holds 3 checkpoint(s)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("run", "said"), [("gone", "--run gone: there is no such folder"), ("empty", "--run empty holds no checkpoint")]
)
def test_a_run_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], run: str, said: str
) -> None:
    """A missing folder is something else than one without checkpoints."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(["average", "--run", run, "--out", "mean"]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("last", ["0", "-1", "x"])
def test_fewer_than_one_checkpoint_is_wrong_usage(capsys: pytest.CaptureFixture[str], last: str) -> None:
    """With the range."""
    with pytest.raises(SystemExit, match="2"):
        main(["average", "--run", "a", "--out", "b", "--last", last])
    assert f"argument --last: '{last}' is not a whole number from 1" in capsys.readouterr().err


def test_how_more_checkpoints_are_kept_is_said(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By default training keeps one, so the default of --last needs a setting."""
    save(tmp_path / "run", tokenizer, 1)
    assert main(["average", "--run", str(tmp_path / "run"), "--out", str(tmp_path / "mean")]) == 1
    said = capsys.readouterr().err

    assert "train with keep_checkpoints = 5 in [training], or give --last 1" in said
    assert TrainConfig(max_steps=1).keep_checkpoints == 1


def test_the_mean_keeps_what_is_known_about_its_training(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """So that --start-from can compare the settings of the vocabulary."""
    made_with = {"tokenizer": {"split_digits": True}}
    for step in (1, 2):
        save(tmp_path / "run", tokenizer, step, trained_with=made_with)
    average_checkpoints(checkpoints(tmp_path / "run"), tmp_path / "mean")

    assert load_checkpoint(tmp_path / "mean").trained_with == made_with


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
