"""tests/gpu/serve_check.py on a machine without a GPU: it says so, and its steps and comparisons work on the CPU."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import serve_check

SCRIPT = Path(serve_check.__file__)
TINY = Path(__file__).parents[1] / "data" / "tiny-v1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what `prepare` makes, with a tiny model in every place."""
    folder = tmp_path_factory.mktemp("prepared")
    for kind in (serve_check.TEXTS, serve_check.SPEED):
        shutil.copytree(TINY, folder / kind / "fp32")
    return folder


def run_script(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)


def test_without_a_gpu_it_says_why_and_exits_with_2(folder: Path) -> None:
    """Nothing is measured elsewhere in its place."""
    done = run_script("run", folder)

    assert done.returncode == 2
    assert done.stderr.startswith("nothing to check here: the installed onnxruntime")
    assert done.stdout == ""


def test_only_gpus_are_checked(folder: Path) -> None:
    """Another device would be no check; argparse says so."""
    for device in ("cpu", "auto", "cuda:x"):
        done = run_script("run", folder, "--device", device)

        assert done.returncode == 2
        assert f"argument --device: invalid gpu value: '{device}'" in done.stderr


def test_a_dry_run_takes_every_step(folder: Path) -> None:
    """Servers start and stop, texts agree with themselves, every batch has a speed, memory stays."""
    small = ("--texts", "6", "--batches", "1,2", "--source-words", "9", "--new-tokens", "6", "--repeats", "1")
    done = run_script("run", folder, "--dry-run", *small)

    report = json.loads(done.stdout)
    assert (done.returncode, report["problems"]) == (0, [])
    assert report["texts"]["fp32"]["beam 1"] == {"equal": 1.0, "likeness_of_others": 1.0}
    assert [(row["beams"], row["batch"]) for row in report["speed"]] == [(1, 1), (1, 2), (4, 1), (4, 2)]
    assert all(row["tokens_per_s"] > 0 for row in report["speed"])
    assert report["ctranslate2"] in ("not installed", f"{folder / 'ctranslate2'} is missing")


def test_a_server_that_does_not_start_is_a_problem(folder: Path, tmp_path: Path) -> None:
    """With what it said; the exit code is 1 and the report is still one document."""
    shutil.copytree(folder / "texts", tmp_path / "texts")
    (tmp_path / "texts" / "fp32" / "decoder.onnx").write_bytes(b"damaged")
    done = run_script("run", tmp_path, "--dry-run", "--texts", "2", "--batches", "1", "--repeats", "1")

    assert done.returncode == 1
    assert "decoder.onnx does not have the sha256" in json.loads(done.stdout)["problems"][0]


def test_texts_that_differ_are_counted() -> None:
    """The share of equal ones, and how much the others share."""
    assert serve_check.compare(["a", "b", "same"], ["a", "x", "same"]) == {"equal": 0.6667, "likeness_of_others": 0.0}
    assert serve_check.compare(["abcd"], ["abce"])["likeness_of_others"] == 0.75


def test_a_server_on_another_device_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says of itself is compared with what was asked for."""

    class Fallen:
        device = "cpu"

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def stop(self) -> int:
            return 0

    monkeypatch.setattr(serve_check, "Server", Fallen)
    problems: list[str] = []
    with serve_check.serving(Path("fp16"), "cuda", problems, rows=1):
        pass

    assert problems == ["fp16 was to be served on cuda:0 and says cpu"]
