import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc

from tests.fakes.translation_server import Failure, FakeTranslationService

WAIT_S = 20  # a test that needs this long has failed


def _start(address: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dragoman.cli.main", "translate", "--server", address, *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )


def test_results_flow_while_the_input_is_open(address: str) -> None:
    """A line sent through a pipe comes back before the next one is written."""
    with _start(address) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in (b"one\n", b"two\n", b"three\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == line.upper()
        process.stdin.close()
        assert process.wait(WAIT_S) == 0


def test_a_failure_ends_the_command_while_the_input_is_open(address: str, service: FakeTranslationService) -> None:
    """The command does not wait for input that it will not use, and ends without complaints of Python's."""
    service.failures.append(Failure(grpc.StatusCode.INTERNAL, "engine fault"))

    with _start(address) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()

        assert process.wait(WAIT_S) == 1
        assert process.stderr.read() == b"dragoman translate: stdin: line 1 not translated: engine fault\n"


def test_an_interrupt_cancels_the_calls(address: str, service: FakeTranslationService, tmp_path: Path) -> None:
    """Ctrl-C ends the command with 130, its calls on the server, and leaves no file behind."""
    arrived = service.hold_calls(WAIT_S)

    with _start(address, "--output", str(tmp_path / "out")) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert arrived.wait(WAIT_S)
        process.send_signal(signal.SIGINT)

        assert process.wait(WAIT_S) == 130
    assert service.call_over.wait(WAIT_S)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_leaves_ends_the_command(address: str) -> None:
    """Like other filters, the command ends quietly when nobody reads on."""
    with _start(address) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"ONE\n"
        process.stdout.close()
        process.stdin.write(b"two\n")
        process.stdin.flush()

        assert process.wait(WAIT_S) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""
