"""What verification says: JSON with the same keys always, a table with the worst sentences, exit codes, files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.main import main
from dragoman.export import bundle
from dragoman.export.verify import report as report_module
from dragoman.export.verify import require
from dragoman.export.verify.requirements import REQUIREMENTS
from dragoman.model.checkpoint import save_checkpoint
from tests.fakes.bundles import plant
from tests.fakes.faults import shift_positions
from tests.fakes.verification import check, held_out, many_pairs, one_pair

KEYS = {
    "": {
        "format", "passed", "problems", "bundle", "checkpoint", "requirement", "languages", "logits", "tokenizer",
        "searches",
    },
    "bundle": {"name", "version", "precision", "format_version"},
    "checkpoint": {"path", "step"},
    "requirement": {"logit_tolerance", "same_texts", "max_chrf_drop", "tie", "needs_references"},
    "logits": {"max_difference", "where", "spread", "masked", "cases"},
    "tokenizer": {"texts", "read_differently", "written_differently"},
    "searches": {
        "name", "beams", "sentences", "identical", "ties", "alone", "alone_identical", "alone_ties", "references",
        "chrf_model", "chrf_bundle", "different",
    },
    "different": {"languages", "source", "model", "bundle", "position", "margin", "tie"},
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the model of one pair."""
    out, made = tmp_path_factory.mktemp("run"), one_pair()
    save_checkpoint(out, made.model, made.tokenizer, languages=("en", "de"), step=7)
    return out


@pytest.fixture(scope="module")
def broken(fp32_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With source positions off by one."""
    return plant(fp32_bundle, tmp_path_factory.mktemp("broken") / "bundle", bundle.ENCODER, shift_positions)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "held-out.tsv"
    path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in held_out()), "utf-8")
    return path


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run `dragoman` and return its exit code and what it printed."""

    def call(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_the_report_has_all_its_keys(broken: Path) -> None:
    """Those that the module documents, in JSON without extensions; differing texts with their margins."""
    report = check(broken, one_pair(), held_out())
    values = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    examples = values["searches"][0]["different"]

    assert values.keys() == KEYS[""]
    for name in ("bundle", "checkpoint", "requirement", "logits", "tokenizer"):
        assert values[name].keys() == KEYS[name]
    assert all(search.keys() == KEYS["searches"] for search in values["searches"])
    assert all(example.keys() == KEYS["different"] for example in examples)
    assert all(name in (report_module.__doc__ or "") for name in KEYS["searches"] | KEYS["different"] | KEYS[""])
    assert (values["format"], values["passed"], values["problems"]) == (1, False, list(report.problems))
    assert values["languages"] == [["en", "de"]]
    assert len(examples) == values["searches"][0]["sentences"] - values["searches"][0]["identical"] > 5


def test_examples_are_real_texts_and_the_worst_come_first(broken: Path) -> None:
    """The source, PyTorch's text, the bundle's, and how sure PyTorch was of its token."""
    report = check(broken, one_pair(), held_out())
    examples, known = report.search("greedy").different, {pair.source: pair.target for pair in held_out()}

    assert all(known[example.source] == example.model != example.bundle for example in examples)
    assert all(example.margin > 0 for example in examples)
    assert not any(example.tie for example in examples)
    shared = [len(set(example.model.split()) & set(example.bundle.split())) for example in examples]
    assert sum(shared[: len(shared) // 2]) <= sum(shared[len(shared) // 2 :])
    table = report.table()
    assert "FAILED" in table
    assert f"PyTorch    {examples[0].model}" in table
    assert f"margin {examples[0].margin:.3g}" in table


def test_long_texts_are_shown_where_they_differ(broken: Path) -> None:
    """Their beginning, which is the same, is left out."""
    report = check(broken, one_pair(), held_out())
    example = replace(report.search("greedy").different[0], model=f"{'same ' * 99}one", bundle=f"{'same ' * 99}other")
    search = replace(report.search("greedy"), different=(example,))
    table = replace(report, searches=(search,)).table()

    assert "same same one\n" in table
    assert "same same other\n" in table
    assert max(map(len, table.splitlines())) < 200


def test_the_manifest_keeps_a_summary(fp32_bundle: Path) -> None:
    """A few numbers, none of the texts."""
    summary = require(check(fp32_bundle, one_pair(), held_out()))

    assert set(summary) == {"max_logit_difference", "sentences"} | {
        f"{name}{of}"
        for name in ("identical_texts", "ties", "batched_equals_alone", "chrf_model", "chrf_bundle")
        for of in ("", "_beam_4")
    }
    assert all(isinstance(value, int | float) for value in summary.values())
    assert summary["chrf_model"] == summary["chrf_bundle"] == 100


def test_verify_writes_json_and_ends_with_0_or_1(
    fp32_bundle: Path, broken: Path, run: Path, data: Path, tmp_path: Path, command: Any
) -> None:
    """The same report on standard output and in the file."""
    asked = ("--checkpoint", run, "--data", data, "--sentences", 8, "--report", tmp_path / "report.json")
    for folder, expected in ((fp32_bundle, 0), (broken, 1)):
        code, out, _ = command("verify", folder, *asked, "--json")
        values = json.loads(out)

        assert code == expected
        assert values["passed"] is (expected == 0)
        assert values["checkpoint"]["step"] == 7
        assert values == json.loads((tmp_path / "report.json").read_text("utf-8"))
    code, out, _ = command("verify", broken, "--checkpoint", run, "--sentences", 4)
    assert code == 1
    assert "FAILED: logits differ" in out


def test_a_refused_export_leaves_its_report_and_nothing_else(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Any
) -> None:
    """No bundle, no scratch folder; the numbers say why."""
    monkeypatch.setitem(REQUIREMENTS, "fp32", replace(REQUIREMENTS["fp32"], logit_tolerance=0.0))
    folder = tmp_path / "out"
    folder.mkdir()
    code, out, err = command(
        "export", "--checkpoint", run, "--out", folder / "bundle", "--sentences", 4, "--report", folder / "report.json"
    )

    assert (code, out) == (1, f"{run}/checkpoint-00000007: checkpoint of step 7\n")
    assert "logits differ by" in err
    assert [path.name for path in folder.iterdir()] == ["report.json"]
    assert json.loads((folder / "report.json").read_text())["passed"] is False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--precision", "int8"), "int8 changes the numbers, so its quality must be measured"),
        (("--sentences", "0"), "--sentences is 0; it must be at least 1"),
        (("--report", "nowhere/report.json"), "there is no folder"),
        (("--report", "report.json", "--no-verify"), "give one of them"),
        (("--source-language", "fr"), "'fr' is not a source language of the model; give --source-language .*: en"),
    ],
)
def test_wrong_options_are_refused(
    run: Path, tmp_path: Path, command: Any, options: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is allowed, and before anything is written."""
    monkeypatch.chdir(tmp_path)
    code, _, err = command("export", "--checkpoint", run, "--out", tmp_path / "bundle", *options)

    assert code == 1
    assert re.search(message, err)
    assert list(tmp_path.iterdir()) == []


def test_a_language_pair_of_several_can_be_chosen(
    several_bundle: Path, data: Path, tmp_path: Path, command: Any
) -> None:
    """It is the one that the sentences are in."""
    made = many_pairs()
    save_checkpoint(tmp_path, made.model, made.tokenizer, languages=("", ""), step=1, several=made.languages)
    asked = ("verify", several_bundle, "--checkpoint", tmp_path, "--data", data, "--sentences", 8, "--json")
    code, _, err = command(*asked)
    assert (code, "no default source language" in err) == (1, True)

    code, out, _ = command(*asked, "--source-language", "it", "--target-language", "fr")
    assert (code, json.loads(out)["languages"][0]) == (0, ["it", "fr"])
