"""`dragoman train` into a folder that holds a run: what is kept, what is continued, and what is said about it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.main import main
from dragoman.model.checkpoint import checkpoints, latest_checkpoint, load_checkpoint
from dragoman.model.folder_lock import FolderInUse, hold_folder
from dragoman.model.generated import write_corpus
from dragoman.model.train import Trainer

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
[training]
batch_tokens = 200
validate_pairs = 10
max_steps = 3
"""

Train = Callable[..., int]


def train_in(folder: Path) -> Train:
    """Return the command on the data in a folder, with a recipe in which some text is replaced."""

    def run(*arguments: object, out: str = "run", replaced: tuple[str, str] = ("", ""), extra: str = "") -> int:
        recipe = folder / "recipe.toml"
        recipe.write_text(RECIPE.replace(*replaced) + extra if replaced[0] else RECIPE + extra)
        given = list(map(str, arguments))
        if "--train" not in given:
            given += ["--data", str(folder / "data")]
        return main(["train", "--recipe", str(recipe), "--out", str(folder / out), "--threads", "1", *given])

    return run


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and a run on it, made once: most tests are about what happens to it then."""
    folder = tmp_path_factory.mktemp("first")
    write_corpus(folder / "data", train=200, valid=20, test=20, seed=1)
    assert train_in(folder)() == 0
    return folder


@pytest.fixture
def data(tmp_path: Path, first: Path) -> Path:
    return Path(shutil.copytree(first / "data", tmp_path / "data"))


@pytest.fixture
def train(tmp_path: Path, data: Path) -> Train:
    """Run the command into tmp_path/run."""
    assert data.parent == tmp_path
    return train_in(tmp_path)


@pytest.fixture
def finished(tmp_path: Path, first: Path) -> Path:
    """A copy of the run, in tmp_path/run."""
    return Path(shutil.copytree(first / "run", tmp_path / "run"))


def content(folder: Path) -> dict[str, bytes]:
    """Return everything in a folder but its lock."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


# --restart


@pytest.mark.parametrize(
    ("arguments", "settings", "said"),
    [
        (["--start-from", "gone"], {}, "--start-from gone does not exist"),
        (["--start-from", "{out}"], {}, "lies in --out, which --restart deletes"),
        (["--start-from", "{out}/checkpoint-00000003"], {}, "lies in --out, which --restart deletes"),
        (["--start-from", "{other}"], {"replaced": ("d_ff = 32", "d_ff = 48")}, "d_ff was 32 and is 48"),
        (["--train", "gone.tsv", "--valid", "gone.tsv"], {}, "--train: gone.tsv: does not exist"),
        (["--train", "{data}/train.tsv", "--valid", "gone.tsv"], {}, "--valid: gone.tsv: does not exist"),
        ([], {"replaced": ("= 330", "= 20000")}, "vocab_size is 20000; this data gives at most"),
        ([], {"extra": "stages = [{max_pieces = 9999}]"}, "max_pieces 9999"),
        ([], {"extra": 'precision = "fp16"'}, "fp16 needs a CUDA device"),
        ([], {"extra": "origin_shares = {dates = 0.5}"}, "origin_shares names ['dates']"),
        ([], {"extra": "stages = [{max_pieces = 2}]"}, "raise max_pieces"),
        ([], {"replaced": ("vocab_size = 330", "vocab_size = 330\nsample_pairs = 100")}, "train.tsv: line 201: "),
    ],
)
def test_a_restart_that_fails_costs_nothing(
    train: Train,
    finished: Path,
    tmp_path: Path,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    settings: dict[str, Any],
    said: str,
) -> None:
    """The run in --out is as it was, whenever the mistake shows: a run can be days of work."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished, tmp_path / "other")
    if "line 201" in said:
        with (data / "train.tsv").open("a", encoding="utf-8") as lines:
            lines.write("no tab here\n")
    before = content(finished)
    capsys.readouterr()
    places = {"out": finished, "other": tmp_path / "other", "data": data}

    assert train("--restart", *(a.format(**places) for a in arguments), **settings) == 1
    assert said in capsys.readouterr().err
    assert content(finished) == before


def test_a_restart_whose_first_update_fails_costs_nothing(
    train: Train, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of memory, for example, or no compiler for `compile = true`."""
    before = content(finished)

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Trainer, "_update", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        train("--restart")
    assert content(finished) == before


def test_a_restart_leaves_nothing_of_the_old_run(train: Train, tmp_path: Path) -> None:
    """Neither checkpoints nor entries in the log; other files stay."""
    assert train(replaced=("max_steps = 3", "max_steps = 5")) == 0
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    assert train("--restart") == 0

    assert [folder.name for folder in checkpoints(tmp_path / "run")] == ["checkpoint-00000003"]
    assert [json.loads(line)["step"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()] == [3]
    assert (tmp_path / "run" / "thesis.txt").exists()


# Stopped runs


@pytest.mark.parametrize(("arguments", "command"), [([], "same command"), (["--restart"], "command without --restart")])
def test_what_continues_a_stopped_run(
    train: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    command: str,
) -> None:
    """Not the same command if it has --restart: it would delete what was just saved."""
    update = Trainer._update

    def interrupted(trainer: Trainer, *rest: Any) -> None:
        update(trainer, *rest)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Trainer, "_update", interrupted)
    assert train(*arguments) == 130
    assert f"{command} continues" in capsys.readouterr().err
    assert load_checkpoint(tmp_path / "run").step == 1


def test_a_restart_that_is_stopped_at_once_changes_nothing(
    train: Train, finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says so."""
    before = content(finished)
    monkeypatch.setattr(Trainer, "_ends", lambda _: True)

    assert train("--restart") == 130
    assert "what lies in --out is as it was" in capsys.readouterr().err
    assert content(finished) == before


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("", "max_steps = 3"),
        ("checkpoint_minutes = 0\npatience = 1\nlearning_rate = 1e-12\n", "patience = 1: the last 1"),
    ],
)
def test_why_a_run_has_ended_is_said(train: Train, capsys: pytest.CaptureFixture[str], extra: str, said: str) -> None:
    """Early stopping, above all, is no accident."""
    assert train(extra=extra) == 0
    assert f"the run has ended by {said}" in capsys.readouterr().err


# One training per folder


def test_two_trainings_do_not_share_a_folder(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would delete each other's checkpoints; the second one names the first."""
    update = Trainer._update
    seen: list[str] = []

    def spy(trainer: Trainer, *rest: Any) -> None:
        with pytest.raises(FolderInUse) as error, hold_folder(tmp_path / "run"):
            pass
        seen.append(error.value.holder)
        update(trainer, *rest)

    monkeypatch.setattr(Trainer, "_update", spy)
    assert train() == 0
    assert seen == [str(os.getpid())] * 3

    before = content(tmp_path / "run")
    with hold_folder(tmp_path / "run"):
        assert train("--restart") == 1
    assert f"in use by another training (process {os.getpid()})" in capsys.readouterr().err
    assert content(tmp_path / "run") == before


# Changed settings


def forget_settings(run: Path) -> None:
    """Make a checkpoint look like one of an older version."""
    folder = latest_checkpoint(run)
    assert folder is not None
    meta = json.loads((folder / "config.json").read_text())
    del meta["trained_with"]
    (folder / "config.json").write_text(json.dumps(meta))


@pytest.mark.parametrize(
    ("setting", "said"),
    [("split_digits = true", "split_digits was false and is true"), ('user_symbols = ["<b>"]', "user_symbols was []")],
)
def test_a_vocabulary_of_other_settings_is_not_continued(
    train: Train, finished: Path, capsys: pytest.CaptureFixture[str], setting: str, said: str
) -> None:
    """Neither by resuming nor by --start-from; a checkpoint that does not say how it was made is taken as it is."""
    changed = ("vocab_size = 330", f"vocab_size = 330\n{setting}")
    start_from = ("--start-from", finished)
    assert train(replaced=changed) == 1
    assert said in capsys.readouterr().err
    assert train(*start_from, out="second", replaced=changed) == 1
    assert said in capsys.readouterr().err

    forget_settings(finished)
    assert train(replaced=changed) == 0
    assert train(*start_from, out="second", replaced=changed) == 0


@pytest.mark.usefixtures("finished")
def test_settings_that_changed_between_two_starts_are_named(
    train: Train, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What decides the batches, the updates and the data; nothing if nothing changed, or if a file was moved."""
    moved = data.rename(data.with_name("moved"))
    files = ["--train", moved / "train.tsv", "--valid", moved / "valid.tsv"]
    capsys.readouterr()
    assert train(*files) == 0
    assert "changed since" not in capsys.readouterr().err

    with (moved / "train.tsv").open("a", encoding="utf-8") as lines:
        lines.write("one more\teins mehr\n")
    changes = ("batch_tokens = 200", "batch_tokens = 300\nseed = 7\naugmentation = {title = 0.5}")
    assert train(*files, replaced=changes) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("changed since the last start")]
    for change in (
        "batch_tokens was 200 and is 300",
        "seed was 1 and is 7",
        "augmentation.title was 0.0 and is 0.5",
        "the training data was ",
    ):
        assert change in line
    assert "validation data" not in line
    assert "max_steps" not in line


def test_start_from_has_no_effect_on_a_run_that_exists(
    train: Train, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run goes on, as after a stop with the same command; but that is said."""
    assert train("--start-from", finished, out="second") == 0
    assert train("--start-from", "gone", out="second", replaced=("max_steps = 3", "max_steps = 4")) == 0

    assert "--start-from is of no effect" in capsys.readouterr().err
    assert load_checkpoint(tmp_path / "second").step == 4
