"""`dragoman evaluate` reads every format that training reads, in the languages of what it evaluates."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.cli.main import main
from dragoman.model.checkpoint import save_checkpoint
from dragoman.model.generated import examples
from dragoman.model.readers import Pair
from tests.e2e.process import BUNDLE
from tests.fakes import parallel_texts
from tests.fakes.bundles import make_checkpoint
from tests.fakes.translation_server import FakeTranslationService, serve

PAIRS = [Pair(e.source, e.target) for e in itertools.islice(examples(seed=11), 12)]

Evaluate = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def threads_stay() -> Iterator[None]:
    """What --threads sets is the process's."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model from English to German."""
    made = make_checkpoint()
    run = tmp_path_factory.mktemp("run")
    save_checkpoint(run, made.model, made.tokenizer, languages=("en", "de"), step=1, training_state={})
    return run


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serve(FakeTranslationService()) as address:
        yield address


@pytest.fixture
def system(request: pytest.FixtureRequest, checkpoint: Path, server: str, tmp_path: Path) -> list[str]:
    """Return the arguments that name a system from English to German."""
    if request.param == "translations":
        lines = tmp_path / "made.de"
        lines.write_text("".join(f"{pair.target}\n" for pair in PAIRS), "utf-8")
        return ["--translations", str(lines), "--source-language", "en", "--target-language", "de"]
    return {
        "checkpoint": ["--checkpoint", str(checkpoint)],
        "bundle": ["--bundle", str(BUNDLE)],
        "server": ["--server", server],
    }[request.param]


KINDS = ("checkpoint", "bundle", "server", "translations")


def write(folder: Path, name: str, pairs: list[Pair]) -> Path:
    path = folder / name
    path.write_bytes(parallel_texts.WRITERS[name](pairs))
    return path


@pytest.mark.parametrize("system", KINDS, indirect=True)
def test_every_format_gives_the_same_numbers(
    system: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also those that hold several languages, and two text files."""
    for name, texts in (("t.en", [p.source for p in PAIRS]), ("t.de", [p.target for p in PAIRS])):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in texts), "utf-8")
    sets = [[write(tmp_path, name, PAIRS)] for name in ("a.tsv", "hf.jsonl", "a.tmx", "a.xlf", "a.po")]
    sets.append([tmp_path / "t.en", tmp_path / "t.de"])
    found = []
    for files in sets:
        assert main(["evaluate", "--json", *system, "--data", *map(str, files)]) == 0
        values = json.loads(capsys.readouterr().out)
        assert values.pop("data") == " and ".join(map(str, files))
        found.append(values)

    assert found[0]["sentences"] == len(PAIRS)
    assert all(values == found[0] for values in found)


@pytest.mark.parametrize("system", KINDS, indirect=True)
def test_data_in_the_other_direction_is_refused(
    system: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be scored, and badly."""
    path = write(tmp_path, "a.xlf", PAIRS)
    text = path.read_text("utf-8").replace(
        'source-language="en-US" target-language="de"', 'source-language="de" target-language="en"'
    )
    path.write_text(text, "utf-8")
    assert main(["evaluate", *system, "--data", str(path)]) == 1
    assert "a.xlf: unit 1 (line 1): is de to en, but en to de is wanted" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a.tmx", "hf.jsonl"])
def test_a_file_of_translations_says_no_languages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """The options that do are named; one of the two is not enough."""
    lines = tmp_path / "made.de"
    lines.write_text("".join(f"{pair.target}\n" for pair in PAIRS), "utf-8")
    arguments = ["evaluate", "--translations", str(lines), "--data", str(write(tmp_path, name, PAIRS))]
    assert main(arguments) == 1
    assert "which are source and target: --source-language en --target-language de" in capsys.readouterr().err
    assert main([*arguments, "--target-language", "de"]) == 1
    assert "belong together" in capsys.readouterr().err


def test_more_than_two_files_are_refused(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what there may be."""
    assert main(["evaluate", "--checkpoint", str(checkpoint), "--data", "a", "b", "c"]) == 1
    assert "--data has 3 files; give one of .tsv" in capsys.readouterr().err


# Where it computes


def test_a_checkpoint_takes_device_and_threads(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The number of threads is set; a device that is not there is named."""
    arguments = ["evaluate", "--checkpoint", str(checkpoint), "--data", str(write(tmp_path, "a.tsv", PAIRS))]
    assert main([*arguments, "--device", "cpu", "--threads", "2"]) == 0
    assert torch.get_num_threads() == 2
    assert main([*arguments, "--device", "tpu"]) == 1
    assert "device is 'tpu'; choose auto, cpu, cuda" in capsys.readouterr().err


def test_a_checkpoint_goes_to_the_device(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that is, `choose_device` says; torch's meta device stands in for one that is not the CPU."""
    monkeypatch.setattr("dragoman.evaluation.checkpoint.choose_device", lambda _: torch.device("meta", 0))
    with pytest.raises(NotImplementedError, match="meta"):  # reached, and without numbers there
        main(["evaluate", "--checkpoint", str(checkpoint), "--data", str(write(tmp_path, "a.tsv", PAIRS))])


def test_a_bundle_takes_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both graphs get them."""
    import onnxruntime

    made: list[int] = []
    session = onnxruntime.InferenceSession

    def spy(graph: Any, options: Any, *rest: Any, **more: Any) -> Any:
        made.append(options.intra_op_num_threads)
        return session(graph, options, *rest, **more)

    monkeypatch.setattr("dragoman.export.decode.onnxruntime.InferenceSession", spy)
    data = str(write(tmp_path, "a.tsv", PAIRS))
    assert main(["evaluate", "--bundle", str(BUNDLE), "--data", data, "--threads", "1"]) == 0
    assert made == [1, 1]


@pytest.mark.parametrize("system", ["bundle", "server", "translations"], indirect=True)
def test_options_of_other_systems_are_refused(system: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Instead of being ignored."""
    assert main(["evaluate", *system, "--data", "a.tsv", "--device", "cuda"]) == 1
    assert "--device is for --checkpoint" in capsys.readouterr().err
    if "--bundle" not in system:
        assert main(["evaluate", *system, "--data", "a.tsv", "--threads", "2"]) == 1
        assert "--threads is for --checkpoint and --bundle" in capsys.readouterr().err
