"""`dragoman train` as a user runs it: formats, pictures, TensorBoard, and what goes wrong."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest
import torch

from dragoman.cli.main import main
from dragoman.model.checkpoint import load_checkpoint, save_checkpoint
from dragoman.model.generated import write_corpus
from dragoman.model.languages import Languages
from dragoman.model.readers import read_pairs

RECIPE = """
[languages]
source = "en"
target = "de"
[tokenizer]
vocab_size = 330
[model]
preset = "tiny"
d_model = 16
d_ff = 32
num_heads = 2
num_encoder_layers = 1
num_decoder_layers = 1
[training]
batch_tokens = 200
max_steps = 3
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_corpus(tmp_path / "data", train=200, valid=20, test=20, seed=1)
    return tmp_path / "data"


def train(recipe: Path, out: Path, *arguments: object) -> int:
    return main(["train", "--recipe", str(recipe), "--out", str(out), "--threads", "1", *map(str, arguments)])


def test_two_text_files_and_compressed_json_lines(recipe: Path, data: Path, tmp_path: Path) -> None:
    """A user's own files, without a corpus folder; the run has the preset's recurrent decoder."""
    pairs = list(read_pairs(data / "train.tsv"))
    (tmp_path / "t.en").write_text("".join(f"{pair.source}\n" for pair in pairs), "utf-8")
    (tmp_path / "t.de").write_text("".join(f"{pair.target}\n" for pair in pairs), "utf-8")
    with gzip.open(tmp_path / "v.jsonl.gz", "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"translation": {"en": p.source, "de": p.target}}) + "\n" for p in pairs[:9])
    files = ("--train", tmp_path / "t.en", tmp_path / "t.de", "--valid", tmp_path / "v.jsonl.gz")

    assert train(recipe, tmp_path / "run", *files) == 0
    model = load_checkpoint(tmp_path / "run").model
    assert model.config.decoder_layer == "ssru"
    assert model.config.d_model == 16


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures_of_a_run(recipe: Path, data: Path, tmp_path: Path, suffix: str) -> None:
    """Curves and an attention map; also for a run that is finished already."""
    pytest.importorskip("matplotlib")
    magic = {"png": b"\x89PNG", "svg": b"<?xml"}[suffix]
    assert train(recipe, tmp_path / "run", "--data", data) == 0
    assert train(recipe, tmp_path / "run", "--data", data, "--plot", suffix) == 0
    for name in ("curves", "attention"):
        assert (tmp_path / "run" / f"{name}.{suffix}").read_bytes().startswith(magic)


def test_tensorboard_gets_the_log(recipe: Path, data: Path, tmp_path: Path) -> None:
    """An event file with the scalars of the log."""
    pytest.importorskip("tensorboard")
    assert train(recipe, tmp_path / "run", "--data", data, "--tensorboard") == 0
    events = next((tmp_path / "run" / "tensorboard").glob("events.*")).read_bytes()

    assert b"train_loss" in events
    assert b"learning_rate" in events


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--train", "a.tsv"], "--train needs --valid"),
        (["--train", "a", "b", "c", "--valid", "d.tsv"], "--train has 3 files"),
        (["--train", "gone.tsv", "--valid", "gone.tsv"], "--train: gone.tsv: does not exist"),
        (["--train", "data/train.tsv", "--valid", "gone.tsv"], "--valid: gone.tsv: does not exist"),
        (["--train", "data/train.tsv", "--valid", "wrong.tsv"], "--valid: wrong.tsv: line 1: 1 column(s)"),
        (["--data", "gone"], "--data: gone/train.tsv: does not exist"),
        (["--train", "recipe.toml", "--valid", "recipe.toml"], "unknown format .toml"),
        (["--data", "data", "--out", "wrong.tsv"], "--out wrong.tsv cannot be written into: File exists"),
        (["--data", "data", "--out", "wrong.tsv/run"], "--out wrong.tsv/run cannot be written into: Not a directory"),
    ],
)
@pytest.mark.usefixtures("data")
def test_wrong_data_is_named(
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    """Before anything is trained, the vocabulary included: with a large corpus that takes minutes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.tsv").write_text("no tab here\n")
    assert train(recipe, tmp_path / "run", *arguments) == 1
    shown = capsys.readouterr().err
    assert said in shown
    assert "training a vocabulary" not in shown


def test_a_bad_line_ends_training_before_it_begins(
    recipe: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With file and line; the tokenizer reads the whole file first, so no hours are lost."""
    with (data / "train.tsv").open("a", encoding="utf-8") as lines:
        lines.write("no tab here\n")
    assert train(recipe, tmp_path / "run", "--data", data) == 1
    shown = capsys.readouterr().err.strip().splitlines()[-1]
    assert shown.startswith(f"dragoman train: --data: {data / 'train.tsv'}: line 201: 1 column(s)")
    assert "INTERNAL" not in shown
    assert not list((tmp_path / "run").glob("checkpoint-*"))


def test_an_unknown_preset_is_named(
    recipe: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With those that exist."""
    recipe.write_text(RECIPE.replace('"tiny"', '"huge"'))
    assert train(recipe, tmp_path / "run", "--data", data) == 1
    assert "model.preset is 'huge'; choose one of transformer-base" in capsys.readouterr().err


def test_a_run_starts_from_the_weights_of_another(recipe: Path, data: Path, tmp_path: Path) -> None:
    """Fine-tuning: weights and vocabulary are taken over, updates count from zero."""
    assert train(recipe, tmp_path / "first", "--data", data) == 0
    recipe.write_text(RECIPE + "learning_rate = 1e-12\n")
    assert train(recipe, tmp_path / "second", "--data", data, "--start-from", tmp_path / "first") == 0

    first, second = (load_checkpoint(tmp_path / name) for name in ("first", "second"))
    assert second.step == 3
    assert second.tokenizer.files() == first.tokenizer.files()
    for name, tensor in first.model.state_dict().items():
        torch.testing.assert_close(second.model.state_dict()[name], tensor, atol=1e-9, rtol=0)


def test_a_run_does_not_start_from_another_architecture(
    recipe: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The setting that differs is named; dropout, which has no weights, may differ."""
    assert train(recipe, tmp_path / "first", "--data", data) == 0
    recipe.write_text(RECIPE.replace("d_ff = 32", "d_ff = 32\ndropout = 0.3"))
    assert train(recipe, tmp_path / "second", "--data", data, "--start-from", tmp_path / "first") == 0
    recipe.write_text(RECIPE.replace("d_ff = 32", "d_ff = 48"))
    assert train(recipe, tmp_path / "third", "--data", data, "--start-from", tmp_path / "first") == 1
    assert "d_ff was 32 and is 48. Describe the same model" in capsys.readouterr().err


@pytest.mark.parametrize(("precision", "extra"), [("fp16", ""), ("fp32", "stages = [{max_pieces = 9999}]")])
def test_settings_that_do_not_fit_show_before_the_vocabulary_is_made(
    recipe: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], precision: str, extra: str
) -> None:
    """Not after it."""
    recipe.write_text(f'{RECIPE}precision = "{precision}"\n{extra}\n')
    assert train(recipe, tmp_path / "run", "--data", data, "--device", "cpu") == 1
    assert "training a vocabulary" not in capsys.readouterr().err


@pytest.mark.parametrize("threads", ["-3", "1.5", "4294967296"])
def test_a_wrong_number_of_threads_is_wrong_usage(capsys: pytest.CaptureFixture[str], threads: str) -> None:
    """With the range, instead of what torch says."""
    with pytest.raises(SystemExit, match="2"):
        main(["train", "--recipe", "r", "--data", "d", "--out", "o", "--threads", threads])
    assert f"argument --threads: '{threads}' is not a whole number from 0" in capsys.readouterr().err


def test_ctrl_c_while_a_command_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Importing torch takes seconds; no traceback."""

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dragoman.cli.main.importlib.import_module", interrupt)
    assert main(["train", "--help"]) == 130
    assert capsys.readouterr().err == "dragoman train: interrupted\n"


def test_as_many_checkpoints_as_were_kept_can_be_averaged(recipe: Path, data: Path, tmp_path: Path) -> None:
    """The README's example: keep_checkpoints = N, then --last N."""
    recipe.write_text(RECIPE + "keep_checkpoints = 3\ncheckpoint_minutes = 0\n")
    assert train(recipe, tmp_path / "run", "--data", data) == 0
    mean = tmp_path / "mean"
    assert main(["average", "--run", str(tmp_path / "run"), "--last", "3", "--out", str(mean)]) == 0
    assert load_checkpoint(mean).step == 3
    assert load_checkpoint(mean).trained_with["training"]["keep_checkpoints"] == 3


def test_neither_a_run_nor_a_mean_is_written_into_a_bundle(
    recipe: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next export into it would delete days of training; the bundle is as it was."""
    bundle = Path(shutil.copytree(Path(__file__).parents[1] / "data" / "tiny-v1", tmp_path / "bundle"))
    names = sorted(path.name for path in bundle.iterdir())
    (tmp_path / "run").mkdir()

    assert train(recipe, bundle, "--data", data) == 1
    assert main(["average", "--run", str(tmp_path / "run"), "--last", "1", "--out", str(bundle)]) == 1

    assert capsys.readouterr().err.count(f"{bundle} is a bundle, which is replaced or deleted as a whole") == 2
    assert sorted(path.name for path in bundle.iterdir()) == names


def test_a_model_of_several_languages_is_not_trained_on(
    recipe: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its language tokens would silently be left out."""
    assert train(recipe, tmp_path / "first", "--data", data) == 0
    first = load_checkpoint(tmp_path / "first")
    several = Languages.pair("en", "de")
    save_checkpoint(tmp_path / "many", first.model, first.tokenizer, languages=("en", "de"), step=1, several=several)
    assert train(recipe, tmp_path / "second", "--data", data, "--start-from", tmp_path / "many") == 1
    assert "translates several languages" in capsys.readouterr().err
