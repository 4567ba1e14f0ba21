"""`dragoman evaluate` over its four kinds of systems: they agree where they must, and say what is wrong."""

from __future__ import annotations

import itertools
import json
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from dragoman.cli.main import main
from dragoman.export import bundle
from dragoman.export.write import write_bundle
from dragoman.model.checkpoint import load_checkpoint, save_checkpoint
from dragoman.model.generated import examples
from dragoman.v1 import translation_pb2 as pb
from tests.e2e.process import BUNDLE, WAIT_S, start_server
from tests.fakes.bundles import make_checkpoint
from tests.fakes.translation_server import Failure, FakeTranslationService, serve

NUM_PAIRS = 60
TOO_LONG = " ".join(["one"] * 200)
# Words the tiny model has never seen make it repeat itself.
STRANGE = [
    "Zebras hardly ever fly over frozen volcanoes",
    "the the the the the the the the",
    "xylophone xylophone yacht yacht quartz",
]

Evaluate = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Small models on one thread: several would spend their time waiting for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generated pairs with their origin, strange ones, and a source beyond every model's limit."""
    pairs = [f"{e.source}\t{e.target}\t{e.kind}" for e in itertools.islice(examples(seed=11), NUM_PAIRS - 4)]
    pairs[20:20] = [f"{source}\tunbekannt\tstrange" for source in (*STRANGE, TOO_LONG)]
    path = tmp_path_factory.mktemp("data") / "test.tsv"
    path.write_text("".join(f"{pair}\n" for pair in pairs), "utf-8")
    return path


@pytest.fixture
def evaluate(data: Path, capsys: pytest.CaptureFixture[str]) -> Evaluate:
    """Run the command and return its JSON."""

    def run(*arguments: object) -> dict[str, Any]:
        code = main(["evaluate", "--data", str(data), "--json", *map(str, arguments)])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        values: dict[str, Any] = json.loads(captured.out)
        return values

    return run


@pytest.fixture
def fail(data: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the command and return why it failed."""

    def run(*arguments: object) -> str:
        assert main(["evaluate", "--data", str(data), *map(str, arguments)]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err

    return run


@pytest.fixture(scope="module")
def tiny_out(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Translations by the tiny bundle."""
    out = tmp_path_factory.mktemp("tiny") / "bundle.de"
    assert main(["evaluate", "--data", str(data), "--bundle", str(BUNDLE), "--out", str(out)]) == 0
    return out


def without_system(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "system"}


# Equal systems


def test_bundle_and_its_server_give_the_same(evaluate: Evaluate, tiny_out: Path, tmp_path: Path) -> None:
    """The same translations, scores and faults, through plain calls and through batching over gRPC."""
    served = tmp_path / "server.de"
    with start_server() as server:
        over_server = evaluate("--server", server.address, "--out", served, "--examples", "--batch", 7)
    over_bundle = evaluate("--bundle", BUNDLE, "--examples")

    assert served.read_bytes() == tiny_out.read_bytes()
    assert without_system(over_server) == without_system(over_bundle)
    assert over_server["system"].startswith("server 127.0.0.1:")
    assert over_server["sentences"] == NUM_PAIRS
    assert (over_server["refused"], over_server["refused_pairs"]) == (1, [24])
    assert over_server["chrf"] > 80
    for table in ("by_source_words", "by_origin"):
        assert sum(group["sentences"] for group in over_server[table]) == NUM_PAIRS


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose texts vary with the source."""
    made = make_checkpoint()
    run = tmp_path_factory.mktemp("run")
    save_checkpoint(run, made.model, made.tokenizer, languages=("en", "de"), step=1, training_state={})
    return run


def test_checkpoint_and_its_export_give_the_same(evaluate: Evaluate, checkpoint: Path, tmp_path: Path) -> None:
    """PyTorch with a cache and ONNX Runtime, fp32: every text and every number."""
    folder, texts = tmp_path / "bundle", [tmp_path / "checkpoint.de", tmp_path / "bundle.de"]
    write_bundle(load_checkpoint(checkpoint), folder, name="random", precision="fp32", verify=None)
    over_checkpoint = evaluate("--checkpoint", checkpoint, "--out", texts[0], "--examples", 100)
    over_bundle = evaluate("--bundle", folder, "--out", texts[1], "--examples", 100, "--batch", 5)

    assert without_system(over_checkpoint) == without_system(over_bundle)
    assert texts[0].read_bytes() == texts[1].read_bytes()
    assert len(set(texts[0].read_text("utf-8").splitlines())) > NUM_PAIRS / 4
    assert over_checkpoint["looping"] >= over_checkpoint["cut"] > 0
    assert over_checkpoint["refused"] >= 1
    assert over_checkpoint["system"].endswith(", step 1")


def test_written_translations_score_the_same(evaluate: Evaluate, tiny_out: Path) -> None:
    """What --out writes is what --translations reads; only the ends of texts are not in it."""
    again = evaluate("--translations", tiny_out)
    made = evaluate("--bundle", BUNDLE)

    assert tiny_out.read_text("utf-8").count("\n") == NUM_PAIRS
    assert [again[name] for name in ("bleu", "chrf", "length_ratio")] == [
        made[name] for name in ("bleu", "chrf", "length_ratio")
    ]
    assert again["by_origin"] == made["by_origin"]
    assert (again["cut"], again["refused"], again["empty"]) == (None, 0, made["empty"] + 1)


def test_limit_takes_the_first_pairs(evaluate: Evaluate, tiny_out: Path) -> None:
    """Of the data and of the translations."""
    assert evaluate("--translations", tiny_out, "--limit", 7)["sentences"] == 7
    assert evaluate("--bundle", BUNDLE, "--limit", 7)["refused"] == 0


def test_text_report(data: Path, tiny_out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Summary, two aligned tables, and the examples that were asked for."""
    lines = tiny_out.read_text("utf-8").splitlines()
    lines[20:24] = [STRANGE[0].upper(), "eins " * 9, "", ""]
    tiny_out = tiny_out.with_name("faulty.de")
    tiny_out.write_text("\n".join(lines), "utf-8")
    assert main(["evaluate", "--data", str(data), "--translations", str(tiny_out), "--examples", "1"]) == 0
    summary, by_words, by_origin, *rest = capsys.readouterr().out.split("\n\n")

    assert f"sentences     {NUM_PAIRS}" in summary.splitlines()
    assert "cut at limit  unknown" in summary.splitlines()
    for table in (by_words, by_origin):
        assert len({len(line) for line in table.splitlines()}) == 1
    assert by_words.startswith("source words  sentences")
    assert by_origin.startswith("origin")
    assert "looping: the worst 1 of" in rest[0]
    assert f"    translation  {'eins ' * 9}" in rest[1].splitlines()
    assert f"    translation  {STRANGE[0].upper()}" in rest[3].splitlines()


# A server that does not cooperate


@pytest.fixture
def service() -> Iterator[tuple[FakeTranslationService, str]]:
    service = FakeTranslationService()
    with serve(service) as address:
        yield service, address


def test_calls_in_flight_are_bounded(evaluate: Evaluate, service: tuple[FakeTranslationService, str]) -> None:
    """Four calls at a time: the server's queue is not ours to fill."""
    fake, address = service
    lock, four, running, most = threading.Lock(), threading.Barrier(4), 0, 0

    def count(_: pb.TranslateRequest) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        four.wait(WAIT_S)  # none is answered before four of the twenty are there
        with lock:
            running -= 1

    fake.before_translate = count
    evaluate("--server", address, "--batch", NUM_PAIRS // 20)

    assert most == 4
    assert [len(texts) for texts in fake.translated] == [NUM_PAIRS // 20] * 20


def test_refused_texts_are_left_out_and_reported(
    data: Path, service: tuple[FakeTranslationService, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The others of their call are translated all the same, in their order."""
    fake, address = service
    sources = [line.split("\t")[0] for line in data.read_text("utf-8").splitlines()]

    def refuse(request: pb.TranslateRequest) -> None:
        fake.rejected = {
            text: Failure(grpc.StatusCode.INVALID_ARGUMENT, violations=((f"texts[{i}]", "too long"),))
            for i, text in enumerate(request.texts)
            if text in (sources[1], sources[4])
        }

    fake.before_translate = refuse
    out = data.with_name("shout.de")
    assert main(["evaluate", "--data", str(data), "--server", address, "--limit", "6", "--out", str(out)]) == 0
    captured = capsys.readouterr()

    assert "2 of 6 sources were refused and count as empty translations: pair 2: too long; pair 5:" in captured.err
    assert "refused       2 (33.3%)" in captured.out
    expected = ["" if i in (1, 4) else source.upper() for i, source in enumerate(sources[:6])]
    assert out.read_text("utf-8").splitlines() == expected


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (Failure(grpc.StatusCode.INTERNAL, "boom"), "test.tsv: lines 1-10 not translated: boom"),
        (
            Failure(grpc.StatusCode.INVALID_ARGUMENT, violations=(("source_language", "is not supported"),)),
            "source_language: is not supported",
        ),
        (
            Failure(grpc.StatusCode.INVALID_ARGUMENT, violations=(("texts[99]", "too long"),)),
            "test.tsv: lines 1-10 not translated",
        ),
    ],
)
def test_other_failures_end_the_evaluation(
    fail: Callable[..., str],
    service: tuple[FakeTranslationService, str],
    tmp_path: Path,
    failure: Failure,
    message: str,
) -> None:
    """Nothing is scored from half a test set, and an older output stays."""
    fake, address = service
    out = tmp_path / "out.de"
    out.write_text("older", "utf-8")
    fake.rejected = dict.fromkeys((e.source for e in itertools.islice(examples(seed=11), 10)), failure)

    assert message in fail("--server", address, "--limit", 10, "--out", out)
    assert out.read_text("utf-8") == "older"
    assert [path.name for path in tmp_path.iterdir()] == ["out.de"]


# Wrong inputs


def test_server_that_is_not_there(fail: Callable[..., str]) -> None:
    """The address, and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    message = fail("--server", f"127.0.0.1:{port}")

    assert f"127.0.0.1:{port} is not available" in message
    assert "Start a server with `dragoman serve`" in message


def test_damaged_bundle(fail: Callable[..., str], tmp_path: Path) -> None:
    """By its hash, or, where the manifest agrees, by what ONNX Runtime says."""
    folder = Path(shutil.copytree(BUNDLE, tmp_path / "bundle"))
    (folder / bundle.DECODER).write_bytes(b"not a graph")
    assert "decoder.onnx does not have the sha256" in fail("--bundle", folder)

    manifest = json.loads((folder / bundle.MANIFEST).read_text("utf-8"))
    manifest["sha256"][bundle.DECODER] = bundle.file_sha256(folder / bundle.DECODER)
    (folder / bundle.MANIFEST).write_text(json.dumps(manifest), "utf-8")
    assert f"{folder} does not load: " in fail("--bundle", folder)


def test_missing_and_mismatched_files(fail: Callable[..., str], tmp_path: Path) -> None:
    """Each message names the file."""
    short = tmp_path / "short.de"
    short.write_text("eins\nzwei\n", "utf-8")
    (tmp_path / "latin1.de").write_bytes("Größe\n".encode("latin-1"))

    assert f"{short} has 2 lines for {NUM_PAIRS} pairs of the data" in fail("--translations", short)
    assert f"cannot read {tmp_path / 'no.de'}" in fail("--translations", tmp_path / "no.de")
    assert f"cannot read {tmp_path / 'latin1.de'}" in fail("--translations", tmp_path / "latin1.de")
    assert f"{tmp_path} holds no checkpoint" in fail("--checkpoint", tmp_path)
    assert f"{tmp_path} is not a bundle" in fail("--bundle", tmp_path)
    assert "cannot be written" in fail("--bundle", BUNDLE, "--out", tmp_path / "no" / "out.de")
    assert str(tmp_path / "no.tsv") in fail("--translations", short, "--data", tmp_path / "no.tsv")


def test_bundle_without_onnxruntime_says_what_to_install(
    fail: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra `train` is enough for everything else."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for module in ("dragoman.evaluation.bundle", "dragoman.export.decode"):
        monkeypatch.delitem(sys.modules, module, raising=False)

    assert "--bundle needs onnxruntime, which is not installed. Install the extra 'export'" in fail("--bundle", BUNDLE)


@pytest.mark.parametrize("system", [[], ["--bundle", "a", "--server", "b:1"]])
def test_exactly_one_system(system: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """None or two of them is wrong usage."""
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate", "--data", "test.tsv", *system])
    assert "--bundle" in capsys.readouterr().err
