"""`dragoman import`: what is wrong with its options is said before the bundle is made."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dragoman.cli.main import main
from dragoman.export.commands import import_
from dragoman.export.errors import ExportError
from dragoman.model.checkpoint import Checkpoint
from tests.fakes.verification import many_pairs, one_pair

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    path.write_text("one\teins\n" * 3, "utf-8")
    return path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return what imports a model that is at hand, says how far it came, and makes no bundle."""

    def run(checkpoint: Checkpoint, *options: object) -> tuple[int, str]:
        def import_model(path: Path, args: argparse.Namespace) -> Checkpoint:  # noqa: ARG001  # an importer's signature
            print("model read")
            return checkpoint

        def publish(made: Checkpoint, *_: object) -> None:
            raise ExportError(f"bundle made: {made.source_language} to {made.target_language}")

        module = SimpleNamespace(SUMMARY="a model", add_arguments=lambda _: None, import_model=import_model)
        monkeypatch.setattr(import_, "FORMATS", {"here": "here"})
        monkeypatch.setattr(import_, "importer", lambda _: module)
        monkeypatch.setattr(import_, "publish", publish)
        code = main(["import", "here", "model", "-o", str(tmp_path / "bundle"), *map(str, options)])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return run


def test_languages_are_checked_before_the_bundle_is_made(run: Run, data: Path) -> None:
    """Those of the model must be known for that, and no more."""
    _, message = run(many_pairs(), "--data", data, "--source-language", "en", "--target-language", "es")
    assert "'es' is not a target language of the model" in message
    assert "bundle made" not in message

    _, message = run(many_pairs(), "--data", data)
    assert "no default source language" in message
    assert "bundle made" not in message

    _, message = run(many_pairs(), "--data", data, "--source-language", "en", "--target-language", "it")
    assert "bundle made" in message


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--sentences", 0), "--sentences is 0; it must be at least 1"),
        (("--report", "nowhere/report.json"), "there is no folder"),
        (("--data", "nowhere.tsv"), "nowhere.tsv does not exist"),
        (("--precision", "fp16", "--device", "cpu"), "fp16 cannot run on 'cpu', it is for cuda"),
        (("--precision", "int8", "--device", "cuda"), "int8 cannot run on 'cuda', it is for cpu"),
    ],
)
def test_other_options_are_checked_before_the_model_is_read(run: Run, options: tuple[object, ...], reason: str) -> None:
    """Reading a large model takes minutes."""
    code, message = run(one_pair(), *options)

    assert code == 1
    assert reason in message
    assert "model read" not in message


def test_languages_of_a_model_of_one_pair_are_what_the_user_says(run: Run, data: Path) -> None:
    """They are no choice of what to compare, so none of them is wrong."""
    _, message = run(one_pair(), "--data", data, "--source-language", "fr", "--target-language", "it")

    assert "bundle made: fr to it" in message
