"""`dragoman evaluate` on a model of several languages: the pair is chosen, and all systems translate it alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.main import main
from dragoman.export.write import write_bundle
from dragoman.model.checkpoint import load_checkpoint, save_checkpoint
from tests.e2e.process import start_server
from tests.fakes.verification import TOKENS, held_out, many_pairs

PAIR = ("--source-language", "it", "--target-language", "fr")
OTHER = ("--source-language", "it", "--target-language", "de")
Evaluate = Callable[..., tuple[dict[str, Any], list[str]]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out, made = tmp_path_factory.mktemp("run"), many_pairs()
    save_checkpoint(out, made.model, made.tokenizer, languages=("", ""), step=1, several=made.languages)
    return out


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "bundle"
    write_bundle(load_checkpoint(run), out, name="b", precision="fp32", verify=None)
    return out


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "test.tsv"
    sources = [*(pair.source for pair in held_out()), " ".join(["one"] * 200), ""]
    path.write_text("".join(f"{source}\tegal {i}\n" for i, source in enumerate(sources) if source), "utf-8")
    return path


@pytest.fixture
def evaluate(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Evaluate:
    """Run the command and return its JSON and the translations."""

    def call(*arguments: object) -> tuple[dict[str, Any], list[str]]:
        out = tmp_path / "out.txt"
        code = main(["evaluate", "--data", str(data), "--json", "--out", str(out), *map(str, arguments)])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return json.loads(captured.out), out.read_text("utf-8").splitlines()

    return call


def test_all_systems_translate_the_chosen_pair_alike(evaluate: Evaluate, run: Path, exported: Path) -> None:
    """Tokens around the source and in front of the target: PyTorch, ONNX Runtime and the server."""
    numbers, texts = evaluate("--checkpoint", run, *PAIR)
    with start_server(model=exported) as server:
        served = evaluate("--server", server.address, *PAIR, "--batch", 7)

    assert evaluate("--bundle", exported, *PAIR, "--batch", 5)[1] == texts == served[1]
    assert numbers["refused"] == 1
    assert len(set(texts)) > len(texts) / 3
    assert evaluate("--checkpoint", run, *OTHER)[1] != texts
    assert evaluate("--bundle", exported, *OTHER)[1] == evaluate("--checkpoint", run, *OTHER)[1]


def test_a_pair_has_to_be_chosen(run: Path, exported: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model's languages are listed."""
    listing = ", ".join(sorted(TOKENS))
    for system in (("--checkpoint", str(run)), ("--bundle", str(exported))):
        assert main(["evaluate", "--data", str(data), *system]) == 1
        assert f"no default source language; give --source-language with one of its own: {listing}" in (
            capsys.readouterr().err
        )
        assert main(["evaluate", "--data", str(data), *system, *PAIR[:2], "--target-language", "es"]) == 1
        assert f"'es' is not a target language of the model; give --target-language with one of its own: {listing}" in (
            capsys.readouterr().err
        )
