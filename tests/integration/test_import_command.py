"""`dragoman import` as a user runs it: bundle, checkpoint, and what goes wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from dragoman.cli.main import main
from dragoman.export import bundle
from dragoman.export.decode import BundleSession
from dragoman.model import importers
from dragoman.model.checkpoint import load_checkpoint
from tests.fakes.marian_models import EOS, SSRU, VOCABULARY, MarianModel, Reference, random_model

LIMIT = 20
TINY = Path(__file__).parents[1] / "data" / "tiny-v1"


@pytest.fixture(scope="module")
def model() -> MarianModel:
    return random_model(3, **SSRU)


@pytest.fixture
def folder(model: MarianModel, tmp_path: Path) -> Path:
    """Return a folder as Bergamot ships it."""
    folder = tmp_path / "ende"
    folder.mkdir()
    model.write_bin(folder / "model.ende.intgemm.alphas.bin", bits=16)
    (folder / "vocab.ende.yml").write_text(
        "</s>: 0\n<unk>: 1\n" + "".join(f"w{i}: {i}\n" for i in range(2, VOCABULARY))
    )
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    draw = np.random.default_rng(0)
    lines = [" ".join(f"w{i}" for i in draw.integers(2, VOCABULARY, 2 * n)) for n in range(2, 12) for _ in range(3)]
    path.write_text("".join(f"{line}\t{line}\ttest\n" for line in lines))
    return path


def run(*arguments: object) -> int:
    return main(["import", *map(str, arguments)])


def test_a_bundle_translates_as_the_imported_model(model: MarianModel, folder: Path, tmp_path: Path) -> None:
    """The whole way, from the file's integers to the texts of the graphs, is that of the formulas."""
    out = tmp_path / "bundle"

    assert run("bergamot", folder, "-o", out, "--max-tokens", 40, "--sentences", 20) == 0

    manifest = bundle.load_manifest(out)
    reference = Reference(model.rounded(16))
    sources = [[5, 9, 31, EOS], [44, 7, EOS], [8, 8, 21, 3, 50, 12, EOS]]
    expected = [reference.greedy(source, LIMIT) for source in sources]
    assert len({tuple(tokens) for tokens in expected}) == 3
    assert BundleSession(out).greedy(sources, [LIMIT] * 3) == expected
    assert (manifest.name, manifest.source_language, manifest.target_language) == ("bundle", "en", "de")
    assert manifest.verification
    assert bundle.load_tokenizer(out, manifest).encode("w5 w9") == [5, 9, EOS]


def test_a_checkpoint_can_be_verified_evaluated_and_trained_on(
    folder: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What --checkpoint saves is a checkpoint like any other."""
    out, saved, run_folder = tmp_path / "bundle", tmp_path / "run", tmp_path / "fine-tuned"

    code = run("bergamot", folder, "-o", out, "--checkpoint", saved, "--max-tokens", 40, "--data", data,
               "--sentences", 10, "--report", tmp_path / "report.json", "--name", "mine")  # fmt: skip

    assert code == 0
    assert bundle.load_manifest(out).name == "mine"
    assert json.loads((tmp_path / "report.json").read_text())
    assert main(["verify", str(out), "--checkpoint", str(saved), "--sentences", "10"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "--data", str(data), "--checkpoint", str(saved), "--json", "--threads", "1"]) == 0
    assert json.loads(capsys.readouterr().out)
    recipe = saved / "recipe.toml"
    recipe.write_text(recipe.read_text("utf-8").replace("max_minutes = 30", "max_steps = 2"))
    trained = main(["train", "--recipe", str(recipe), "--train", str(data), "--valid", str(data), "--out",
                    str(run_folder), "--start-from", str(saved), "--threads", "1"])  # fmt: skip
    assert trained == 0
    before, after = load_checkpoint(saved).model.state_dict(), load_checkpoint(run_folder).model.state_dict()
    assert before.keys() == after.keys()
    change = max(float((after[name] - tensor).abs().max()) for name, tensor in before.items())
    assert 0 < change < 0.1
    start = load_checkpoint(saved).tokenizer.special.start
    torch.testing.assert_close(after["output.bias"][start], before["output.bias"][start], atol=1e-2, rtol=0)


def test_int8_is_measured(folder: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A precision that changes the numbers is not written without sentences to measure it on."""
    out = tmp_path / "bundle"

    assert run("bergamot", folder, "-o", out, "--precision", "int8") == 1
    assert "give --data" in capsys.readouterr().err
    assert not out.exists()
    assert run("bergamot", folder, "-o", out, "--precision", "int8", "--data", data, "--no-verify") == 0
    assert bundle.load_manifest(out).precision == "int8"


def test_languages_must_be_known(
    model: MarianModel, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bundle says what it translates: the user does where the model does not, and may where it does."""
    model.write_npz(folder / "model.npz")
    saved = tmp_path / "run"

    assert run("marian", folder, "--checkpoint", saved) == 1
    assert "give --source-language and --target-language" in capsys.readouterr().err
    assert not saved.exists()
    assert run("marian", folder, "--checkpoint", saved, "--source-language", "en", "--target-language", "de-AT") == 0
    assert load_checkpoint(saved).target_language == "de-AT"


def test_mistakes_are_told_before_anything_is_written(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line on standard error says what is wrong; the exit code is 1."""
    out, saved = tmp_path / "bundle", tmp_path / "run"
    assert run("bergamot", folder, "--checkpoint", saved) == 0
    tiny = Path(shutil.copytree(TINY, tmp_path / "tiny"))
    capsys.readouterr()

    for arguments, reason in (
        (("bergamot", folder), "nothing to write: give --out BUNDLE"),
        (("bergamot", folder, "--checkpoint", saved), "holds a checkpoint already"),
        (("bergamot", tmp_path / "nowhere", "-o", out), "there is no such file"),
        (("bergamot", tmp_path, "-o", out), "has no model; looked for model*.bin"),
        (("bergamot", folder, "-o", out, "--max-tokens", 1), "--max-tokens is 1"),
        (("marian", folder / "vocab.ende.yml", "-o", out), "cannot be read as a .npz file"),
        (("bergamot", folder, "-o", out, "--data", tmp_path / "none.tsv"), "none.tsv"),
        (("bergamot", folder, "-o", folder), "is not a bundle"),
        (("bergamot", folder, "--checkpoint", tiny), "is a bundle, which is replaced or deleted as a whole"),
        (("bergamot", folder, "--checkpoint", tiny / "run"), f"choose another --checkpoint, such as {tiny}.run"),
        (("bergamot", folder, "-o", out, "--checkpoint", out), "lies in --out"),
        (("bergamot", folder, "-o", out, "--checkpoint", out / "run"), "lies in --out"),
        (("bergamot", folder, "--checkpoint", tmp_path / "2", "--report", tmp_path / "r"), "--report"),
    ):
        assert run(*arguments) == 1
        message = capsys.readouterr().err
        assert reason in message
        assert message.startswith("dragoman import: ")
    assert not out.exists()


def test_a_format_that_cannot_be_read_here_does_not_keep_others_from_being_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing library of one format is that format's trouble."""
    monkeypatch.setitem(importers.FORMATS, "exotic", "not_there")

    assert run("bergamot", folder, "--checkpoint", tmp_path / "run") == 0
    assert run("exotic", folder, "--out", tmp_path / "bundle") == 1
    assert "the format 'exotic' cannot be read here: No module named" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("--help")
    assert "exotic" in capsys.readouterr().out
