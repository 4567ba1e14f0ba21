import io
import json
import os
import socket
import stat
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from dragoman.cli.main import main
from dragoman.v1 import translation_pb2 as pb
from tests.fakes.translation_server import Failure, FakeTranslationService

WAIT_S = 20  # a test that needs this long has failed
TOO_LONG = Failure(
    grpc.StatusCode.INVALID_ARGUMENT,
    "texts[1] has 700 tokens",
    violations=(("texts[1]", "texts[1] has 700 tokens; max_source_tokens is 512"),),
)


@dataclass(frozen=True)
class Outcome:
    """What a run of the command left behind."""

    code: int
    out: bytes
    err: str


Translate = Callable[..., Outcome]


@pytest.fixture
def translate(address: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Translate:
    def run(*arguments: str, stdin: bytes = b"", server: str = address) -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main(["translate", "--server", server, *arguments])
        captured = capsysbinary.readouterr()
        return Outcome(code, captured.out, captured.err.decode())

    return run


def test_arguments_are_translated(translate: Translate) -> None:
    """Each argument is one text and one line of output."""
    assert translate("good morning", "", "bye") == Outcome(0, b"GOOD MORNING\n\nBYE\n", "")


@pytest.mark.parametrize(
    "data", [b"", b"a\n", b"a", b"\n\n", b"a\n\n \nb\r\n\r\nc", "grüße\n日本\n".encode()], ids=repr
)
def test_stdin_keeps_its_lines(translate: Translate, data: bytes) -> None:
    """Line breaks, blank lines and a missing last line feed come out as they went in."""
    expected = data.decode().upper().replace(" \n", "\n").encode()

    assert translate(stdin=data) == Outcome(0, expected, "")


def test_files_are_translated_in_their_order(translate: Translate, tmp_path: Path) -> None:
    """Several files, stdin among them, are one long input."""
    (tmp_path / "1").write_text("a\nb")
    (tmp_path / "2").write_text("c\n")

    outcome = translate("--file", str(tmp_path / "1"), "-", "--file", str(tmp_path / "2"), stdin=b"x\n")

    assert outcome == Outcome(0, b"A\nB\nX\nC\n", "")


def test_options_reach_the_server(translate: Translate, service: FakeTranslationService) -> None:
    """Model, languages and limits are sent with every batch."""
    given = ["--model", "m", "--source", "en", "--target", "de", "--max-new-tokens", "9", "--batch", "2"]

    translate(*given, stdin=b"a\nb\nc\n")

    expected = pb.TranslateRequest(
        model="m", source_language="en", target_language="de", options=pb.DecodingOptions(max_new_tokens=9)
    )
    requests = [request for request in service.requests if isinstance(request, pb.TranslateRequest)]
    assert sorted(list(request.texts) for request in requests) == [["a", "b"], ["c"]]
    for request in requests:
        request.ClearField("texts")
        assert request == expected


def test_order_is_kept_when_a_later_batch_is_faster(translate: Translate, service: FakeTranslationService) -> None:
    """Batches overlap on the server, and the first one waits for the fourth without losing its place."""
    fourth_arrived = threading.Event()

    def wait(request: pb.TranslateRequest) -> None:
        if "line 7" in request.texts:
            fourth_arrived.set()
        if "line 0" in request.texts:
            assert fourth_arrived.wait(WAIT_S)

    service.before_translate = wait
    lines = [f"line {number}\n" for number in range(40)]

    outcome = translate("--batch", "2", stdin="".join(lines).encode())

    assert outcome == Outcome(0, "".join(lines).upper().encode(), "")


def test_line_breaks_in_a_translation_become_spaces(translate: Translate) -> None:
    """Line N of the output stays the translation of line N of the input."""
    outcome = translate(stdin="a\u2028b\r c\x85\nnext\n".encode())

    assert outcome.out == b"A B  C \nNEXT\n"


def test_json_has_one_object_per_line(translate: Translate) -> None:
    """Text and translation are untouched, and the numbers of the answer are there."""
    outcome = translate("--json", "--max-new-tokens", "2", stdin="grüße\n\na\u2028b c".encode())

    lines = outcome.out.decode().removesuffix("\n").split("\n")
    assert [json.loads(line) for line in lines] == [
        {"text": "grüße", "translation": "GRÜSSE", "finish_reason": "EOS", "source_tokens": 1, "target_tokens": 1},
        {"text": "", "translation": "", "finish_reason": "EOS", "source_tokens": 0, "target_tokens": 0},
        {"text": "a\u2028b c", "translation": "A B", "finish_reason": "LENGTH", "source_tokens": 3, "target_tokens": 2},
    ]  # fmt: skip
    assert "1 of 3 translations reached the limit on new tokens" in outcome.err


def test_cut_translations_are_counted_once_at_the_end(translate: Translate) -> None:
    """One warning for all batches says how many translations may be incomplete."""
    outcome = translate("--max-new-tokens", "1", "--batch", "1", stdin=b"a b\nc\nd e\n")

    assert (outcome.code, outcome.out) == (0, b"A\nC\nD\n")
    assert outcome.err == (
        "dragoman translate: 2 of 3 translations reached the limit on new tokens and may be incomplete: stdin: "
        "lines 1, 3; --max-new-tokens sets it\n"
    )


def test_many_cut_translations_are_named_up_to_ten(translate: Translate, tmp_path: Path) -> None:
    """The note names files and lines, and says how many more there are."""
    (tmp_path / "1").write_text("a b\n" * 2)
    (tmp_path / "2").write_text("a b\n" * 10)

    outcome = translate("--max-new-tokens", "1", "--file", str(tmp_path / "1"), str(tmp_path / "2"))

    assert f": {tmp_path}/1: lines 1, 2; {tmp_path}/2: lines 1, 2, 3, 4, 5, 6, 7, 8 and 2 more (--json" in outcome.err


def test_stream_writes_the_same_text(translate: Translate, service: FakeTranslationService) -> None:
    """Streamed output equals the output of whole translations."""
    outcome = translate("--stream", "--max-new-tokens", "3", stdin=b"one two three\n\nfour\r\na b c d")

    assert outcome.out == b"ONE TWO THREE\n\nFOUR\r\nA B C"
    assert "1 of 4 translations reached the limit" in outcome.err
    assert all(isinstance(request, pb.StreamTranslateRequest) for request in service.requests)


def test_stream_names_the_line_that_failed(translate: Translate, service: FakeTranslationService) -> None:
    """A stream that breaks off ends its line of output before the message."""
    service.stream_failure = Failure(grpc.StatusCode.INTERNAL, "engine fault 4711")

    outcome = translate("--stream", "one two")

    assert (outcome.code, outcome.out) == (1, b"ONE\n")
    assert outcome.err == "dragoman translate: argument 1 not translated: engine fault 4711\n"


def test_a_text_the_server_refuses_is_named_by_its_line(
    translate: Translate, service: FakeTranslationService, tmp_path: Path
) -> None:
    """The place in the request becomes the place in the file; lines before the batch are written."""
    path = tmp_path / "corpus.en"
    path.write_text("".join(f"line {number}\n" for number in range(1, 8)))
    service.rejected["line 4"] = TOO_LONG

    outcome = translate("--file", str(path), "--batch", "2")

    assert (outcome.code, outcome.out) == (1, b"LINE 1\nLINE 2\n")
    assert outcome.err == (
        f"dragoman translate: {path}: lines 3-4 not translated: "
        f"{path}: line 4 has 700 tokens; max_source_tokens is 512. With --on-error skip, such a line is left empty and "
        "the others are done\n"
    )


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (Failure(grpc.StatusCode.INTERNAL, "engine fault 4711"), "engine fault 4711"),
        (Failure(grpc.StatusCode.NOT_FOUND, "no model 'x'; there is 'y'"), "no model 'x'; there is 'y'"),
        (
            Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue is full", retry_after_s=1000),
            "stayed overloaded (queue is full). Raise --timeout to wait longer, or lower --batch",
        ),
        (Failure(grpc.StatusCode.DEADLINE_EXCEEDED, "late"), "gave no answer within 60 s (late). Raise --timeout"),
        (
            Failure(grpc.StatusCode.INVALID_ARGUMENT, "bad", violations=(("target_language", "'xx' is unknown"),)),
            "target_language: 'xx' is unknown",
        ),
        (
            Failure(grpc.StatusCode.INVALID_ARGUMENT, "bad", violations=(("texts", "3 texts; max_texts is 2"),)),
            "3 texts; max_texts is 2 (--batch sets how many are sent at once)",
        ),
    ],
    ids=lambda value: value.code.name if isinstance(value, Failure) else None,
)
def test_a_failure_names_lines_reason_and_remedy(
    translate: Translate, service: FakeTranslationService, failure: Failure, reason: str
) -> None:
    """The message says which lines failed, why, and what to change."""
    service.failures.append(failure)

    outcome = translate(stdin=b"a\nb\nc\n")

    assert (outcome.code, outcome.out) == (1, b"")
    assert outcome.err.startswith("dragoman translate: stdin: lines 1-3 not translated: ")
    assert reason in outcome.err


def test_an_absent_server_is_named_with_a_way_to_start_one(translate: Translate) -> None:
    """Who forgot the server learns the address that was tried and the command that serves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{probe.getsockname()[1]}"

        outcome = translate("hello", server=server)

    assert outcome.code == 1
    assert f"argument 1 not translated: {server} is not available" in outcome.err
    assert "`dragoman serve`" in outcome.err


def test_invalid_utf8_in_a_file_is_found_before_anything_is_sent(
    translate: Translate, service: FakeTranslationService, tmp_path: Path
) -> None:
    """A file can be checked first, so that a bad last line does not cost the work on all others."""
    path = tmp_path / "latin1.txt"
    path.write_bytes(b"one\n" * 1000 + b"na\xefve\n")

    outcome = translate("--file", str(path), "--batch", "1")

    assert (outcome.code, outcome.out, service.requests) == (1, b"", [])
    assert f"{path}: line 1001 is not UTF-8: byte 0xef at byte 3 of the line, offset 4002" in outcome.err


def test_invalid_utf8_on_stdin_ends_after_the_lines_before_it(
    translate: Translate, service: FakeTranslationService
) -> None:
    """What was read before is translated, and the bad line is never sent."""
    outcome = translate("--batch", "2", stdin=b"one\ntwo\nthree\nna\xefve\nfive\n")

    assert (outcome.code, outcome.out) == (1, b"ONE\nTWO\nTHREE\n")
    assert sorted(service.translated) == [["one", "two"], ["three"]]
    assert "stdin: line 4 is not UTF-8" in outcome.err


def test_a_missing_file_is_reported_before_anything_is_sent(
    translate: Translate, service: FakeTranslationService, tmp_path: Path
) -> None:
    """A misspelt second file does not cost the translation of the first."""
    (tmp_path / "here").write_text("a\n")

    outcome = translate("--file", str(tmp_path / "here"), str(tmp_path / "gone"))

    assert (outcome.code, service.requests) == (1, [])
    assert "gone: No such file or directory" in outcome.err


def test_output_appears_complete(translate: Translate, tmp_path: Path) -> None:
    """A new file has the usual permissions; a replaced one keeps its own, and a link stays a link."""
    target = tmp_path / "corpus.de"
    link = tmp_path / "link"
    link.symlink_to(target)
    usual = tmp_path / "usual"
    usual.touch()

    assert translate("a", "--output", str(target)) == Outcome(0, b"", "")
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)
    target.chmod(0o600)
    translate("b", "--output", str(link))

    assert target.read_bytes() == b"B\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.de", "link", "usual"]


def test_a_failed_run_leaves_the_old_output(
    translate: Translate, service: FakeTranslationService, tmp_path: Path
) -> None:
    """An existing file keeps its content, and no temporary file stays behind."""
    target = tmp_path / "corpus.de"
    target.write_text("old\n")
    service.rejected["c"] = Failure(grpc.StatusCode.INTERNAL)

    outcome = translate("--output", str(target), "--batch", "1", stdin=b"a\nb\nc\n")

    assert outcome.code == 1
    assert target.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [target]


def test_an_input_may_be_its_own_output(translate: Translate, tmp_path: Path) -> None:
    """The file is replaced after it has been read."""
    path = tmp_path / "text"
    path.write_text("a\nb\n")

    translate("--file", str(path), "--output", str(path))

    assert path.read_text() == "A\nB\n"


def test_a_device_is_written_not_replaced(translate: Translate, tmp_path: Path) -> None:
    """A pipe or /dev/null as output must survive."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()

    outcome = translate("a", "--output", str(pipe))
    reader.join(WAIT_S)

    assert outcome.code == 0
    assert received == [b"A\n"]
    assert pipe.is_fifo()


def test_an_output_that_cannot_be_written_is_named(translate: Translate, tmp_path: Path) -> None:
    """The message names the file as it was given, once, and says what to do."""
    (tmp_path / "file").touch()
    texts = {
        str(tmp_path / "no folder" / "out"): f"there is no folder {tmp_path}/no folder; make it first",
        str(tmp_path / "file" / "out"): f"there is no folder {tmp_path}/file; make it first",
        str(tmp_path): "is a folder; name a file in it",
        "": "'' is a folder; name a file in it",
        "/dev/full": "/dev/full cannot be written: No space left on device; make room",
    }
    for output, expected in texts.items():
        outcome = translate("a", "--output", output)

        assert (outcome.code, expected in outcome.err) == (1, True), outcome.err
        assert "was not written" not in outcome.err
        assert "Errno" not in outcome.err
