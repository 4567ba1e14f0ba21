"""What the trainer does with each setting: accumulation, averages, early stopping, precision, optimisers."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.model.checkpoint import latest_checkpoint, load_checkpoint
from dragoman.model.data import Group
from dragoman.model.device import Precision, choose_device
from dragoman.model.errors import ConfigError, TrainingError
from dragoman.model.progress import Meter
from dragoman.model.tokenizers import Tokenizer
from dragoman.model.train import Trainer
from tests.fakes.trainers import assert_same_weights, make_tokenizer, make_trainer, resume


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return make_tokenizer()


def test_accumulated_gradients_are_those_of_one_batch(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Two batches in one update weigh by their tokens: the same as if they were one batch."""
    small = make_trainer(tokenizer, tmp_path / "small", steps=1, accumulate=2, clip_norm=1e9, schedule="constant")
    small.model.eval()  # without dropout
    small.model.train = lambda *_: small.model  # type: ignore[method-assign]
    group = next(small._groups())
    assert len(group.batches) == 2
    small._update(group, Meter())

    large = make_trainer(tokenizer, tmp_path / "large", steps=1, clip_norm=1e9, schedule="constant")
    large.model.eval()
    large.model.train = lambda *_: large.model  # type: ignore[method-assign]
    large._update(Group(0, [[example for batch in group.batches for example in batch]]), Meter())
    for one, other in zip(small.model.parameters(), large.model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-6, rtol=1e-4)


def test_the_average_is_the_formula(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A checkpoint holds a_t = d * a_(t-1) + (1 - d) * w_t, not the last weights."""
    trainer = make_trainer(tokenizer, tmp_path, steps=3, ema_decay=0.5)
    seen: list[torch.Tensor] = []
    update = trainer._update

    def spy(group: Any, meter: Any) -> None:
        update(group, meter)
        seen.append(trainer.model.output_weight.detach().clone())

    trainer._update = spy  # type: ignore[method-assign]
    trainer.train()
    expected = 0.5 * (0.5 * seen[0] + 0.5 * seen[1]) + 0.5 * seen[2]

    torch.testing.assert_close(load_checkpoint(tmp_path).model.output_weight.detach(), expected)


def test_training_stops_when_validation_gets_no_better(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """After `patience` validations without a better chrF; the best checkpoint is kept and is what RUN means."""
    trainer = make_trainer(
        tokenizer, tmp_path, steps=100, checkpoint_minutes=0, validate_chrf_pairs=4, patience=3, keep_checkpoints=2
    )
    scores = iter([10.0, 30.0, 20.0, 29.0, 30.0, 99.0])
    trainer._validate = lambda: noted(trainer, next(scores))  # type: ignore[method-assign]
    trainer.train()

    assert trainer.progress.step == 5
    assert trainer.finished
    steps = sorted(int(path.name.split("-")[1]) for path in tmp_path.glob("checkpoint-*"))
    assert steps == [2, 4, 5]
    assert load_checkpoint(tmp_path).step == 2
    newest = latest_checkpoint(tmp_path)
    assert newest is not None
    assert newest.name == "checkpoint-00000005"


def noted(trainer: Trainer, score: float) -> dict[str, float]:
    trainer._note(score)
    return {"validation_chrf": score}


def test_validation_measures_loss_and_chrf(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Both are in the log, and with chrF it decides what is best."""
    trainer = make_trainer(tokenizer, tmp_path, steps=2, validate_chrf_pairs=5)
    trainer.train()
    entry = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])

    assert {"validation_loss", "validation_chrf", "train_loss", "learning_rate", "gradient_norm"} <= set(entry)
    assert trainer.progress.best == entry["validation_chrf"]


def test_training_in_bfloat16_follows_float32(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Autocast changes the loss a little, not the weights' type."""
    losses = {}
    for precision in ("fp32", "bf16"):
        trainer = make_trainer(tokenizer, tmp_path / precision, steps=10, precision=precision)
        trainer.train()
        losses[precision] = trainer.validation.loss(trainer.model)
        assert trainer.model.output_weight.dtype is torch.float32

    assert losses["bf16"] != losses["fp32"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.02)


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_loss_scaling_skips_an_update_that_overflows(tokenizer: Tokenizer, tmp_path: Path, optimizer: str) -> None:
    """fp16: an infinite gradient halves the scale and leaves all weights alone, instead of ending the run."""
    trainer = make_trainer(tokenizer, tmp_path, steps=2, optimizer=optimizer, ema_decay=0.5)
    trainer.precision = Precision("cpu", torch.float16)
    trainer._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    hook = trainer.model.output_weight.register_hook(lambda gradient: gradient * float("inf"))  # type: ignore[no-untyped-call]  # torch leaves it untyped
    trainer._update(next(trainer._groups()), Meter())
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.model.state_dict().items())
    assert trainer._scaler.get_scale() == 2.0**9

    hook.remove()
    trainer._update(next(trainer._groups()), Meter())
    after = trainer.model.state_dict()
    assert all(torch.isfinite(tensor).all() for tensor in after.values())
    assert not torch.equal(
        after["decoder.layers.0.cross_attention.query.weight"], before["decoder.layers.0.cross_attention.query.weight"]
    )


def test_fp16_on_the_cpu_is_refused() -> None:
    """With the precisions that it has."""
    with pytest.raises(ConfigError, match="on the CPU use fp32, bf16 or auto"):
        Precision.choose("fp16", torch.device("cpu"))


@pytest.mark.parametrize(("name", "said"), [("cuda", "sees no CUDA device"), ("tpu", "choose auto, cpu, cuda")])
def test_a_device_that_is_not_there_is_named(name: str, said: str) -> None:
    """Instead of training somewhere else."""
    if name == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(ConfigError, match=said):
        choose_device(name)


def test_muon_takes_the_matrices_of_the_layers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Embedding, norms and biases stay with Adam; no weight is left out or updated twice."""
    trainer = make_trainer(tokenizer, tmp_path, steps=1, optimizer="muon")
    adam, muon = (
        {id(p) for group in optimizer.param_groups for p in group["params"]} for optimizer in trainer.optimizers.each
    )

    assert adam.isdisjoint(muon)
    assert adam | muon == {id(p) for p in trainer.model.parameters()}
    names = {name for name, p in trainer.model.named_parameters() if id(p) in muon}
    assert "decoder.layers.0.cross_attention.query.weight" in names
    assert not any("embedding" in name or "norm" in name or name.endswith("bias") for name in names)


def test_a_stop_saves_without_a_validation(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """There may be seconds left; the checkpoint is not called the best, and no miss is counted."""
    trainer = make_trainer(tokenizer, tmp_path, steps=9, patience=1)
    trainer._stop = lambda: trainer.progress.step >= 3
    trainer._validate = lambda: pytest.fail("validated")  # type: ignore[method-assign]
    trainer.train()

    assert load_checkpoint(tmp_path).step == 3
    assert trainer.progress.misses == 0


@pytest.mark.parametrize("asked", range(1, 8))
def test_whenever_a_stop_comes_the_last_update_is_saved(tokenizer: Tokenizer, tmp_path: Path, asked: int) -> None:
    """The request may come between any two questions about it."""
    trainer = make_trainer(tokenizer, tmp_path, steps=20)
    questions = itertools.count()
    trainer._stop = lambda: next(questions) >= asked
    trainer.train()

    assert trainer.progress.step < 20
    assert load_checkpoint(tmp_path).step == trainer.progress.step


def test_a_log_of_updates_that_are_made_again_is_forgotten(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """After a kill the log goes on where the last checkpoint was; a line that was cut is dropped."""
    make_trainer(tokenizer, tmp_path, steps=2).train()
    with (tmp_path / "log.jsonl").open("a") as log:
        log.write('{"step": 3}\n{"step": 4, "tr')
    resume(tokenizer, tmp_path, steps=4).train()

    assert [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [2, 4]


def test_without_the_average_training_goes_on_from_the_raw_weights(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The optimiser's moments belong to them."""
    first = make_trainer(tokenizer, tmp_path, steps=3, ema_decay=0.9)
    first.train()
    second = resume(tokenizer, tmp_path, steps=4)

    assert_same_weights(first.model, second.model)


def test_another_optimizer_is_not_continued(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Its state would not fit."""
    make_trainer(tokenizer, tmp_path, steps=1, optimizer="muon").train()
    with pytest.raises(TrainingError, match=r"another optimizer.*--restart"):
        resume(tokenizer, tmp_path, steps=2)
