"""Data order, loss, schedule, checkpoints, and a resumed run that equals an uninterrupted one."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.model.checkpoint import delete_run, load_checkpoint, load_training_state
from dragoman.model.commands.starting_point import check_same
from dragoman.model.config import ModelConfig
from dragoman.model.data import Example, batches_of_epoch, collate
from dragoman.model.errors import CheckpointError, ConfigError, TrainingError
from dragoman.model.generated import write_corpus
from dragoman.model.lengths import LengthLimits
from dragoman.model.recipe import Augmentation, Recipe, Stage, TrainConfig
from dragoman.model.tokenizers import Tokenizer
from dragoman.model.train import Trainer
from tests.fakes.trainers import assert_same_weights, make_tokenizer, make_trainer, resume

SMALL_RECIPE = """
[languages]
source = "en"
target = "de"
[tokenizer]
vocab_size = 330
[model]
d_model = 16
d_ff = 16
num_heads = 2
num_encoder_layers = 1
num_decoder_layers = 1
[training]
batch_tokens = 200
max_steps = 300
"""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return make_tokenizer()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"optimizer": "muon", "ema_decay": 0.9},
        {"accumulate": 2, "schedule": "cosine", "shuffle_pairs": 100},
        {"augmentation": Augmentation(capitals=0.3, copies=0.3, numbers=0.5, bpe_dropout=0.2)},
    ],
    ids=["plain", "muon and average", "accumulated and streamed", "augmented"],
)
def test_resumed_run_equals_uninterrupted_run(tokenizer: Tokenizer, tmp_path: Path, settings: dict[str, Any]) -> None:
    """Weights after 4 + 5 steps equal those after 9, bit for bit, dropout included."""
    whole = make_trainer(tokenizer, tmp_path / "whole", steps=9, **settings)
    whole.train()
    stopped = make_trainer(tokenizer, tmp_path / "parts", steps=9, **settings)
    stopped._stop = lambda: stopped.progress.step >= 4
    stopped.train()
    assert stopped.progress.step == 4
    resumed = resume(tokenizer, tmp_path / "parts", steps=9, **settings)
    resumed.train()

    assert_same_weights(whole.model, resumed.model)
    assert_same_weights(load_checkpoint(tmp_path / "whole").model, load_checkpoint(tmp_path / "parts").model)


def test_training_lowers_the_loss(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A few dozen updates help, and the log says so."""
    trainer = make_trainer(tokenizer, tmp_path, steps=60)
    before = trainer.validation.loss(trainer.model)
    trainer.train()

    assert trainer.validation.loss(trainer.model) < 0.9 * before
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert entries[-1]["step"] == 60


def test_a_stopped_run_continues_as_if_it_had_not_been(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A request that comes in the middle of an update takes effect after it; the resumed run equals a whole one."""
    whole = make_trainer(tokenizer, tmp_path / "whole", steps=9)
    whole.train()
    stopped = make_trainer(tokenizer, tmp_path / "parts", steps=9)
    forward = stopped.model.forward

    def forward_and_ask(*arguments: torch.Tensor) -> torch.Tensor:
        if stopped.progress.step == 4:
            stopped._stop = lambda: True
        return forward(*arguments)

    stopped.model.forward = forward_and_ask  # type: ignore[method-assign,assignment]
    stopped.train()
    assert (stopped.progress.step, stopped.finished) == (5, False)

    resumed = resume(tokenizer, tmp_path / "parts", steps=9)
    resumed.train()
    assert_same_weights(whole.model, resumed.model)


def test_sigint_stops_the_command_between_two_updates(tmp_path: Path) -> None:
    """Exit code 130, a checkpoint, and the same command goes on from it to the end."""
    data = tmp_path / "data"
    write_corpus(data, train=300, valid=20, test=20, seed=1)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(SMALL_RECIPE)
    command = [sys.executable, "-m", "dragoman.cli.main", "train", "--recipe", str(recipe), "--data", str(data)]
    command += ["--out", str(tmp_path / "run"), "--threads", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "step 20 " not in process.stderr.readline():  # the bar writes \r, which text mode reads as \n
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130, rest
    assert "the same command continues" in rest
    assert 20 <= load_checkpoint(tmp_path / "run").step < 300

    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert load_checkpoint(tmp_path / "run").step == 300


def test_another_model_is_not_continued(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """What differs is named, and how to go on."""
    make_trainer(tokenizer, tmp_path, steps=1).train()
    recipe = Recipe("en", "fr", {"d_model": 32, "max_source_tokens": 64})
    with pytest.raises(ConfigError, match=r"d_model was 16 and is 32.*target_language was de and is fr.*--restart"):
        check_same(load_checkpoint(tmp_path), recipe, {"tokenizer": {}}, "Use --restart")


def test_restart_deletes_the_run_and_nothing_else(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A mistyped --out does not cost anybody's files."""
    make_trainer(tokenizer, tmp_path, steps=1).train()
    (tmp_path / "thesis.txt").write_text("mine")
    delete_run(tmp_path)

    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_stage_that_is_gone_is_an_error(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Instead of an index error in the middle of the run."""
    trainer = make_trainer(tokenizer, tmp_path, steps=1)
    trainer.train()
    state = load_training_state(load_checkpoint(tmp_path).path)
    state["progress"]["stage"] = 3
    with pytest.raises(TrainingError, match="in stage 4, but the recipe has 1"):
        trainer.restore(state)


def test_a_gradient_that_is_not_finite_spares_the_weights(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A finite loss can have an infinite gradient; the weights stay as they were."""
    trainer = make_trainer(tokenizer, tmp_path, steps=9)
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    trainer.model.embedding.tokens.weight.register_hook(lambda gradient: gradient * float("inf"))  # type: ignore[no-untyped-call]  # torch leaves it untyped
    with pytest.raises(TrainingError, match="gradient norm is"):
        trainer.train()

    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.model.state_dict().items())


def test_loss_that_is_not_finite_stops_training(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The message names the step; the last checkpoint stays usable."""
    make_trainer(tokenizer, tmp_path, steps=2).train()
    trainer = make_trainer(tokenizer, tmp_path, steps=9)
    with torch.no_grad():
        trainer.model.embedding.tokens.weight.fill_(float("nan"))
    with pytest.raises(TrainingError, match="loss is nan at step 1"):
        trainer.train()

    assert load_checkpoint(tmp_path).step == 2


def test_stages_go_from_short_to_long(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A stage trains on pairs within its limit only, and ends after its minutes."""
    ticks = itertools.count()
    trainer = make_trainer(tokenizer, tmp_path, steps=12)
    stages = (Stage(max_pieces=15, minutes=0.1), Stage(max_pieces=64))
    config = TrainConfig(batch_tokens=300, max_steps=12, checkpoint_minutes=9, stages=stages)
    seen: list[int] = []
    trainer = Trainer(
        trainer.model, tokenizer, config, training=trainer.training, validation=[], run=tmp_path,
        languages=("en", "de"), clock=lambda: float(next(ticks)),
    )  # fmt: skip
    update = trainer._update

    def spy(group: Any, meter: Any) -> None:
        seen.append(max(e.length for batch in group.batches for e in batch))
        update(group, meter)

    trainer._update = spy  # type: ignore[method-assign]
    trainer.train()

    assert max(seen[:6]) <= 15
    assert max(seen[6:]) > 15


def test_a_stage_that_no_pair_fits_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Instead of looping over nothing."""
    trainer = make_trainer(tokenizer, tmp_path, steps=1)
    config = TrainConfig(max_steps=1, stages=(Stage(max_pieces=2),))
    trainer = Trainer(
        trainer.model, tokenizer, config, training=trainer.training, validation=[], run=tmp_path,
        languages=("en", "de"),
    )  # fmt: skip
    with pytest.raises(TrainingError, match=r"as short as 2 pieces of source, 2 of target.*raise max_pieces"):
        trainer.train()


def test_batches_cover_each_example_once_within_the_budget() -> None:
    """Nothing is lost or repeated in an epoch; padded tokens stay within the limit."""
    data = [Example((4,) * (1 + i % 17), (5,) * (1 + i % 13)) for i in range(200)]
    batches = batches_of_epoch(data, limits=LengthLimits(15, 15), batch_tokens=60, seed=1, epoch=0)

    assert sorted(i for batch in batches for i in batch) == [i for i, e in enumerate(data) if e.length <= 15]
    assert all(len(batch) * max(data[i].length for i in batch) <= 60 for batch in batches)
    assert batches == batches_of_epoch(data, limits=LengthLimits(15, 15), batch_tokens=60, seed=1, epoch=0)
    assert batches != batches_of_epoch(data, limits=LengthLimits(15, 15), batch_tokens=60, seed=1, epoch=1)


def test_collate_shifts_the_target() -> None:
    """The decoder reads the start token and predicts the first one; padding fills the rest."""
    batch = collate([Example((7, 3), (8, 9, 3)), Example((7, 7, 7, 3), (8, 3))], pad=0, start=2)

    assert batch.source_ids.tolist() == [[7, 3, 0, 0], [7, 7, 7, 3]]
    assert batch.source_lengths.tolist() == [2, 4]
    assert batch.target_in.tolist() == [[2, 8, 9], [2, 8, 0]]
    assert batch.target_out.tolist() == [[8, 9, 3], [8, 3, 0]]


def test_missing_checkpoint_is_named(tmp_path: Path) -> None:
    """The message says which folder and what to give."""
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        load_checkpoint(tmp_path)


def test_damaged_checkpoint_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A truncated weight file is an error, not a crash."""
    make_trainer(tokenizer, tmp_path, steps=1).train()
    weights = next(tmp_path.glob("checkpoint-*/model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="cannot read the checkpoint"):
        load_checkpoint(tmp_path)


def test_a_failed_save_keeps_the_old_checkpoint(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk while writing leaves the previous checkpoint and no half one."""
    trainer = make_trainer(tokenizer, tmp_path, steps=1)
    trainer.train()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dragoman.model.checkpoint.torch.save", full)
    trainer = make_trainer(tokenizer, tmp_path, steps=2)
    with pytest.raises(CheckpointError, match="No space left"):
        trainer.train()

    assert load_checkpoint(tmp_path).step == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-00000001", "log.jsonl"]


def test_configuration_reports_all_problems_at_once() -> None:
    """Every wrong setting is named in one message."""
    with pytest.raises(ConfigError) as error:
        ModelConfig(vocab_size=100, d_model=30, num_heads=4, dropout=1.5)

    assert "not a multiple of num_heads 4" in str(error.value)
    assert "dropout is 1.5" in str(error.value)


def test_unknown_setting_in_a_recipe_is_refused(tmp_path: Path) -> None:
    """A misspelt key is an error that lists the allowed ones."""
    path = tmp_path / "r.toml"
    path.write_text('[languages]\nsource = "en"\ntarget = "de"\n[training]\nmax_step = 3\n')
    with pytest.raises(ConfigError, match=r"unknown training setting \['max_step'\].*max_steps"):
        Recipe.load(path)


@pytest.mark.parametrize("name", ["numbers", "en-de"])
def test_shipped_recipes_load(name: str) -> None:
    """The recipes in the repository are valid."""
    recipe = Recipe.load(Path(__file__).parents[3] / "model" / "recipes" / f"{name}.toml")

    assert (recipe.source_language, recipe.target_language) == ("en", "de")
