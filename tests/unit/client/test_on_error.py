"""`dragoman translate` and `score` with lines that fail, servers that take fewer lines, and servers that restart."""

import io
import json
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from dragoman.cli.main import main
from dragoman.v1 import translation_pb2 as pb
from tests.fakes.translation_server import Failure, FakeTranslationService, fail, serve

WAIT_S = 20  # a test that needs this long has failed
INTERNAL = Failure(grpc.StatusCode.INTERNAL, "engine fault 4711")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(address: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    def command(name: str, *arguments: str, stdin: bytes = b"", server: str = address) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main([name, "--server", server, *arguments])
        captured = capsysbinary.readouterr()
        return code, captured.out.decode(), captured.err.decode()

    return command


class _Picky(FakeTranslationService):
    """Refuses the first text with "long" in it, as the server does, and more texts in a call than `most`."""

    most = 1000

    def Translate(self, request: pb.TranslateRequest, context: grpc.ServicerContext) -> pb.TranslateResponse:  # noqa: N802 - gRPC's name
        field, problem = "texts", f"{len(request.texts)} texts were sent, the limit is {self.most}; split the call"
        if len(request.texts) <= self.most:
            index = next((i for i, text in enumerate(request.texts) if "long" in text), None)
            field, problem = f"texts[{index}]", "700 tokens, the limit is 512; split it" if index is not None else ""
        if problem:
            fail(context, Failure(grpc.StatusCode.INVALID_ARGUMENT, problem, violations=((field, problem),)))
        return super().Translate(request, context)

    def GetModel(self, request: pb.GetModelRequest, context: grpc.ServicerContext) -> pb.GetModelResponse:  # noqa: N802 - gRPC's name
        response = super().GetModel(request, context)
        response.model.limits.max_texts = self.most
        return response


@pytest.fixture
def service() -> FakeTranslationService:
    return _Picky()


LINES = b"a\nlong one\nb\r\n\nlong two\nlong three"


def test_lines_that_fail_are_skipped_on_request(run: Run) -> None:
    """Their lines of output are empty, the others are as ever, and each is named with its reason."""
    code, out, errors = run("translate", "--on-error", "skip", stdin=LINES)

    assert (code, out) == (3, "A\n\nB\r\n\n\n")
    assert errors.splitlines() == [
        *(
            f"dragoman translate: stdin: line {number} skipped: 700 tokens, the limit is 512; split it"
            for number in (2, 5, 6)
        ),
        "dragoman translate: 3 of 6 lines were skipped; the output is empty there",
    ]


def test_a_file_with_skipped_lines_is_written(run: Run, tmp_path: Path) -> None:
    """The job is done, but for what it could not do."""
    code, _, _ = run("translate", "--on-error", "skip", "--output", str(tmp_path / "out"), stdin=LINES)

    assert (code, (tmp_path / "out").read_bytes()) == (3, b"A\n\nB\r\n\n\n")


def test_json_of_a_skipped_line_has_the_reason(run: Run) -> None:
    """Beside an empty translation."""
    _, out, _ = run("translate", "--on-error", "skip", "--json", stdin=b"long one\nb\n")

    objects = [json.loads(line) for line in out.splitlines()]
    assert objects[0] == {"text": "long one", "translation": "", "error": "700 tokens, the limit is 512; split it"}
    assert objects[1]["translation"] == "B"


def test_other_forms_keep_their_lines(run: Run) -> None:
    """An n-best list has a line with the number of the skipped one, so that numbers have no gaps."""
    _, scores, _ = run("translate", "--on-error", "skip", "--scores", stdin=b"long one\nb\n")
    _, best, _ = run(
        "translate", "--on-error", "skip", "--n-best", "--num-hypotheses", "2", "--beam-size", "2",
        stdin=b"long one\nb\n",
    )  # fmt: skip

    assert scores == "\nB ||| -0.500000\n"
    assert [line.split(" ||| ")[:2] for line in best.splitlines()] == [["0", ""], ["1", "B"], ["1", "B!"]]


def test_a_stream_skips_lines_too(run: Run, service: FakeTranslationService) -> None:
    """One after the other."""
    service.rejected["x"] = Failure(
        grpc.StatusCode.INVALID_ARGUMENT, "no", violations=(("text", "700 tokens, the limit is 512"),)
    )

    code, out, errors = run("translate", "--stream", "--on-error", "skip", stdin=b"a\nx\nb\n")

    assert (code, out) == (3, "A\n\nB\n")
    assert "stdin: line 2 skipped" in errors


def test_an_engine_fault_at_one_line_costs_that_line(run: Run, service: FakeTranslationService) -> None:
    """The call is halved until the line is alone."""
    service.rejected["bad"] = INTERNAL

    code, out, errors = run("translate", "--on-error", "skip", stdin=b"a\nb\nbad\nc\nd\n")

    assert (code, out) == (3, "A\nB\n\nC\nD\n")
    assert "stdin: line 3 skipped: engine fault 4711" in errors


def test_a_fault_at_every_line_is_the_servers(run: Run, service: FakeTranslationService) -> None:
    """Nobody wants an empty file."""
    service.rejected.update(dict.fromkeys("abc", INTERNAL))

    code, out, errors = run("translate", "--on-error", "skip", stdin=b"a\nb\nc\n")

    assert (code, out) == (1, "")
    assert "stdin: lines 1-3 not translated: engine fault 4711" in errors


def test_what_is_wrong_with_the_call_is_not_skipped(run: Run, service: FakeTranslationService) -> None:
    """A wrong option fails every line."""
    service.failures.append(
        Failure(grpc.StatusCode.INVALID_ARGUMENT, "no", violations=(("options.beam_size", "99 is out of range"),))
    )

    code, out, _ = run("translate", "--on-error", "skip", stdin=b"a\nb\n")

    assert (code, out) == (1, "")


def test_bytes_that_are_no_text_are_skipped(run: Run, tmp_path: Path) -> None:
    """In files, which are read twice, and on stdin; a line that is far too long is not kept in memory."""
    data = b"a\nna\xefve\n" + b"x" * (2**20 + 2**17) + b"\r\nb"
    (tmp_path / "in").write_bytes(data)

    for given in (["--file", str(tmp_path / "in")], []):
        code, out, errors = run("translate", "--on-error", "skip", *given, stdin=data)

        assert (code, out.replace("\r", "")) == (3, "A\n\n\nB")
        assert "line 2 skipped: is not UTF-8: byte 0xef at byte 3 of the line, offset 4 of the input" in errors
        assert "line 3 skipped: is longer than 1048576 bytes" in errors


def test_score_skips_lines_too(run: Run) -> None:
    """A line without a tab, for example."""
    code, out, errors = run("score", "--on-error", "skip", stdin=b"a\tb\nno tab\nc\td\n")

    assert (code, [bool(line) for line in out.splitlines()]) == (3, [True, False, True])
    assert "stdin: line 2 skipped: has 0 tabs" in errors


def test_a_batch_above_the_limit_is_sent_in_parts(run: Run, service: FakeTranslationService) -> None:
    """The server is asked for its limit once the first call is refused, and the user is told."""
    assert isinstance(service, _Picky)
    service.most = 3
    lines = b"".join(b"line %d\n" % number for number in range(1, 21))

    code, out, errors = run("translate", "--batch", "8", stdin=lines)

    assert (code, out) == (0, lines.decode().upper())
    assert errors == (
        "dragoman translate: --batch is more than this server takes; sending 3 lines per call, its limit\n"
    )


def test_messages_that_are_too_large_are_halved(run: Run, service: FakeTranslationService) -> None:
    """Only gRPC knows how large an answer becomes."""
    service.failures.extend([Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "Sent message larger than max (9 vs. 8)")] * 2)

    code, out, _ = run("translate", stdin=b"a\nb\nc\nd\n")

    assert (code, out) == (0, "A\nB\nC\nD\n")


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_a_restart_in_the_middle_does_not_lose_the_job(run: Run) -> None:
    """The server goes after some answers and stays away for longer than the library tries again."""
    address = _free_address()
    first, second = FakeTranslationService(), FakeTranslationService()
    enough, is_down = threading.Event(), threading.Event()
    first.before_translate = lambda request: enough.set() if "line 9" in request.texts else None
    outcome: list[tuple[int, str, str]] = []
    lines = b"".join(b"line %d\n" % number for number in range(2000))
    worker = threading.Thread(
        target=lambda: outcome.append(run("translate", "--batch", "2", server=address, stdin=lines)), daemon=True
    )

    with serve(first, address):
        worker.start()
        assert enough.wait(WAIT_S)
    is_down.wait(2.5)  # the library alone would give up
    with serve(second, address):
        worker.join(WAIT_S)

    (code, out, errors), *_ = outcome
    assert (code, out) == (0, lines.decode().upper())
    assert "does not answer" in errors
    assert "answers again after" in errors
    assert second.translated


def test_a_server_that_starts_is_waited_for_on_request(run: Run) -> None:
    """--wait holds before the first answer, too."""
    address = _free_address()
    outcome: list[tuple[int, str, str]] = []
    worker = threading.Thread(
        target=lambda: outcome.append(run("translate", "--wait", "30", server=address, stdin=b"a\n")), daemon=True
    )

    worker.start()
    threading.Event().wait(2.5)
    with serve(FakeTranslationService(), address):
        worker.join(WAIT_S)

    assert outcome[0][:2] == (0, "A\n")


def test_time_that_is_up_before_the_first_answer_is_waited_for_on_request(run: Run) -> None:
    """A server that is starting may take a connection and say nothing."""
    address, service = _free_address(), FakeTranslationService()
    service.failures.append(Failure(grpc.StatusCode.DEADLINE_EXCEEDED, "late"))

    with serve(service, address):
        code, out, errors = run("translate", "--wait", "30", server=address, stdin=b"a\n")

    assert (code, out) == (0, "A\n")
    assert "does not answer (late); trying again for 30 s" in errors


def test_a_server_that_stays_away_ends_the_command(run: Run) -> None:
    """After the time that the user gave, with the flag that gives more."""
    code, _, errors = run("translate", "--wait", "0.5", server=_free_address(), stdin=b"a\n")

    assert code == 1
    assert "stdin: line 1 not translated" in errors
    assert "--wait S keeps trying for S seconds" in errors


@pytest.mark.parametrize("given", [["--wait", "-1"], ["--wait", "x"], ["--on-error", "maybe"]], ids=" ".join)
def test_wrong_values_are_wrong_usage(run: Run, given: list[str]) -> None:
    """Refused by the parser."""
    with pytest.raises(SystemExit) as caught:
        run("translate", *given, "a")

    assert caught.value.code == 2
