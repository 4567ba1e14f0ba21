"""Which checkpoint is the best: scores are compared only where they can be."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.model.checkpoint import latest_checkpoint, load_checkpoint, load_training_state
from dragoman.model.tokenizers import Tokenizer
from dragoman.model.train import Trainer
from tests.fakes.trainers import PAIRS, make_tokenizer, make_trainer, resume

OFTEN = {"checkpoint_minutes": 0, "validate_pairs": 10}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return make_tokenizer()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"validate_chrf_pairs": 4}, {}),
        ({}, {"validate_chrf_pairs": 4}),
        ({"validate_chrf_pairs": 4}, {"validate_pairs": 0}),
        ({"validate_chrf_pairs": 4}, {"validate_chrf_pairs": 6}),
        ({"validate_pairs": 5}, {}),
    ],
    ids=["chrF off", "chrF on", "nothing", "other pairs for chrF", "other pairs for loss"],
)
def test_another_measure_begins_anew(
    tokenizer: Tokenizer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    before: dict[str, Any],
    after: dict[str, Any],
) -> None:
    """A loss is below every chrF: the run would stop early, and its best checkpoint would be the last old one."""
    first = make_trainer(tokenizer, tmp_path, steps=3, **{**OFTEN, **before})
    first.train()
    first.progress.best, first.progress.misses = math.inf, 2  # nothing could ever be better
    rewrite_progress(tmp_path, first)
    second = resume(tokenizer, tmp_path, steps=4, **{**OFTEN, **after})

    assert (second.progress.best, second.progress.misses) == (-math.inf, 0)
    said = capsys.readouterr().err
    assert f"measured {first.validation.measure_name} before" in said
    assert f"validation measures {second.validation.measure_name or 'nothing'} now" in said
    second.train()
    assert load_checkpoint(tmp_path).step == 4


def rewrite_progress(run: Path, trainer: Trainer) -> None:
    """Put the trainer's progress into its newest checkpoint."""
    folder = latest_checkpoint(run)
    assert folder is not None
    state = load_training_state(folder)
    torch.save({**state, "progress": asdict(trainer.progress)}, folder / "training.pt")


@pytest.mark.parametrize("settings", [{}, {"validate_chrf_pairs": 4}])
def test_the_same_measure_goes_on(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: dict[str, Any]
) -> None:
    """Best score and misses outlive a stop, also one of an older version, which kept no name of the measure."""
    first = make_trainer(tokenizer, tmp_path, steps=2, **{**OFTEN, **settings})
    first.train()
    first.progress.best = 99.0 if settings else -0.01
    first.progress.misses = 2
    for measure in (first.progress.measure, ""):
        first.progress.measure = measure
        rewrite_progress(tmp_path, first)
        second = resume(tokenizer, tmp_path, steps=3, **{**OFTEN, **settings})
        assert (second.progress.best, second.progress.misses) == (first.progress.best, 2)
        assert second.progress.measure == second.validation.measure_name != ""
    assert "anew" not in capsys.readouterr().err


def test_a_loss_of_an_older_version_is_not_taken_for_a_chrf(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """It is known by its sign."""
    first = make_trainer(tokenizer, tmp_path, steps=2, **OFTEN)
    first.train()
    first.progress.measure = ""
    rewrite_progress(tmp_path, first)
    assert resume(tokenizer, tmp_path, steps=3, **OFTEN, validate_chrf_pairs=4).progress.best == -math.inf


def test_why_a_run_ended(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """By its length, or because nothing got better; until then there is no reason."""
    trainer = make_trainer(tokenizer, tmp_path, steps=3, patience=2, max_minutes=5.0)
    assert (trainer.finished, trainer.ending) == (False, "")
    trainer.progress.misses, trainer.progress.best = 2, -1.25
    assert trainer.finished
    assert trainer.ending.startswith(
        "patience = 2: the last 2 validations were no better than 1.25, the best loss of 20"
    )
    trainer.progress.seconds = 300.0
    assert trainer.ending == "max_minutes = 5"
    trainer.progress.step = 3
    assert trainer.ending == "max_steps = 3"


def test_pairs_that_the_model_does_not_cover_are_counted(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each side against its own limit, once on stderr and in the log, for training and for validation."""
    sources = [len(tokenizer.encode(pair.source)) for pair in PAIRS]
    targets = [len(tokenizer.encode(pair.target)) for pair in PAIRS]
    most_target = sorted(targets)[300]
    assert max(sources) > most_target  # with one limit for both sides, more would be left out
    trainer = make_trainer(tokenizer, tmp_path, steps=60, max_target_tokens=most_target, checkpoint_minutes=0)
    trainer.train()
    too_long = [target > most_target for target in targets]

    assert 0 < sum(too_long[20:]) < 380
    said = capsys.readouterr().err
    assert said.count(f"{sum(too_long[20:])} of the 380 training pairs are left out: longer than the model covers") == 1
    assert said.count(f"{sum(too_long[:20])} of the 20 validation pairs are left out") == 1
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    numbers = [{name: entry[name] for name in entry if "_pairs" in name} for entry in entries]
    assert numbers[0] == {
        "training_pairs": 380,
        "training_pairs_left_out": sum(too_long[20:]),
        "validation_pairs": 20,
        "validation_pairs_left_out": sum(too_long[:20]),
    }
    assert not any(numbers[1:])
    assert trainer.progress.epoch > 0
    batches = trainer.training.batches(epoch=0, limits=trainer.limits)
    longest = max(len(example.source) for _, _, batch in batches for example in batch)
    assert longest == max(source for source, cut in zip(sources[20:], too_long[20:], strict=True) if not cut)
    assert longest > most_target


def test_nothing_is_said_where_every_pair_fits(
    tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log has the zero."""
    make_trainer(tokenizer, tmp_path, steps=1).train()

    assert "left out" not in capsys.readouterr().err
    assert json.loads((tmp_path / "log.jsonl").read_text())["training_pairs_left_out"] == 0


def test_advice_about_a_loss_that_is_not_finite(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Earlier checkpoints are only spoken of if there are any."""
    trainer = make_trainer(tokenizer, tmp_path, steps=1)
    with pytest.raises(Exception, match="start again: there is no checkpoint yet"):
        trainer._check_finite(math.nan, 1.0)
    trainer.train()
    with pytest.raises(Exception, match=r"Earlier checkpoints in .* are good"):
        trainer._check_finite(math.nan, 1.0)
