"""Training as processes: killed without warning and started again, and two of them as one run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from dragoman.model.checkpoint import latest_checkpoint
from dragoman.model.generated import write_corpus

RECIPE = """
[languages]
source = "en"
target = "de"
[tokenizer]
vocab_size = 330
[model]
d_model = 16
d_ff = 32
num_heads = 2
num_encoder_layers = 1
num_decoder_layers = 1
dropout = {dropout}
[training]
batch_tokens = 200
accumulate = {accumulate}
warmup_steps = 20
schedule = "cosine"
max_steps = {steps}
checkpoint_minutes = 0.005
validate_pairs = 10
[training.augmentation]
bpe_dropout = {bpe_dropout}
"""

STEPS = 800  # enough for several checkpoints, 0.3 s apart, on a fast machine


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_corpus(folder, train=300, valid=20, test=20, seed=1)
    return folder


def command(folder: Path, data: Path, run: str, launcher: list[str], **settings: Any) -> list[str]:
    recipe = folder / f"{run}.toml"
    recipe.write_text(RECIPE.format(**{"dropout": 0.0, "bpe_dropout": 0.0, "accumulate": 1, "steps": 60, **settings}))
    arguments = ["train", "--recipe", str(recipe), "--data", str(data), "--out", str(folder / run), "--threads", "1"]
    return [sys.executable, *launcher, "-m", "dragoman.cli.main", *arguments, "--device", "cpu"]


def finish(arguments: list[str]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]


def weights(run: Path) -> dict[str, torch.Tensor]:
    folder = latest_checkpoint(run)
    assert folder is not None
    return safetensors.torch.load_file(folder / "model.safetensors")


def losses(run: Path) -> list[float]:
    return [json.loads(line)["validation_loss"] for line in (run / "log.jsonl").read_text().splitlines()]


def test_killed_and_resumed_equals_undisturbed(tmp_path: Path, data: Path) -> None:
    """Kill -9 twice in mid-training, then to the end: the same weights, bit for bit, dropout of both kinds included."""
    settings = {"dropout": 0.1, "bpe_dropout": 0.1, "steps": STEPS}
    finish(command(tmp_path, data, "whole", [], **settings))
    disturbed = command(tmp_path, data, "parts", [], **settings)
    run = tmp_path / "parts"
    killed_at = []
    for _ in range(2):
        before = latest_checkpoint(run)
        with subprocess.Popen(disturbed, stderr=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + 120
            while latest_checkpoint(run) == before:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
        newest = latest_checkpoint(run)
        assert newest is not None
        killed_at.append(int(newest.name.split("-")[1]))
    assert 0 < killed_at[0] < killed_at[1] < STEPS
    finish(disturbed)

    expected, found = weights(tmp_path / "whole"), weights(run)
    assert expected.keys() == found.keys()
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


def test_two_processes_train_like_one_with_the_same_global_batch(tmp_path: Path, data: Path) -> None:
    """Torchrun with 2 processes = 1 process that accumulates 2 batches, also where a chunk ends with an odd one."""
    finish(command(tmp_path, data, "one", [], accumulate=2))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    finish(command(tmp_path, data, "two", launcher))

    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, atol=2e-4, rtol=1e-3)
    assert losses(tmp_path / "two")[-1] == pytest.approx(losses(tmp_path / "one")[-1], rel=1e-3)
