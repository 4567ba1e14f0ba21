"""`dragoman translate` that is told to stop."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.process import WAIT_S, ServerProcess, clean_environment, wait_for


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_terminated_translation_leaves_no_file(server: ServerProcess, tmp_path: Path, number: int) -> None:
    """Neither a part of the output nor a temporary file."""
    output = tmp_path / "out.txt"
    command = [
        sys.executable,
        "-m",
        "dragoman.cli.main",
        "translate",
        "--server",
        server.address,
        "--output",
        str(output),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment(), start_new_session=True
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        wait_for(lambda: any(tmp_path.iterdir()), "a temporary file")
        process.send_signal(number)
        code = process.wait(WAIT_S)

    assert code == 128 + number
    assert list(tmp_path.iterdir()) == []
