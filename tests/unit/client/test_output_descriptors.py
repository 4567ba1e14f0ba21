"""`--output` with a path that leads to an open descriptor: what others have written there must survive."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from dragoman.client.commands.output import descriptor_of, is_replaced_when_complete, open_output
from dragoman.client.errors import OutputError
from tests.fakes.translation_server import Failure, FakeTranslationService

WAIT_S = 20  # a test that needs this long has failed


def _shell(script: str, address: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in which `$translate` is the command."""
    command = f"{sys.executable} -m dragoman.cli.main translate --server {address}"
    environment = {**os.environ, "translate": command}
    return subprocess.run(
        ["sh", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
    )


@pytest.mark.parametrize(
    ("path", "redirection"),
    [
        ("/dev/stdout", ">"),
        ("/dev/fd/1", ">"),
        ("/proc/self/fd/1", ">"),
        ("/proc/thread-self/fd/1", ">"),
        ("link", ">"),
        ("/dev/../dev/stdout", ">>"),
        ("/dev/stderr", "2>"),
        ("/dev/fd/3", "3>"),
    ],
)
def test_what_stands_before_and_behind_survives(address: str, tmp_path: Path, path: str, redirection: str) -> None:
    """The descriptor is written at its position; the file behind it is neither replaced nor truncated."""
    (tmp_path / "link").symlink_to("/dev/stdout")
    number = redirection.rstrip(">") or "1"
    script = f"{{ echo header >&{number}; $translate --output {path} X; echo footer >&{number}; }} {redirection} f"

    done = _shell(script, address, tmp_path)

    assert (tmp_path / "f").read_text() == "header\nX\nfooter\n", done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "link"]


def test_a_failed_command_does_not_say_that_nothing_was_written(
    address: str, service: FakeTranslationService, tmp_path: Path
) -> None:
    """The lines before the failure are there."""
    service.rejected["b"] = Failure(grpc.StatusCode.INTERNAL, "engine fault 4711")

    done = _shell("printf 'a\\nb\\n' | $translate --batch 1 --output /dev/stdout > f", address, tmp_path)

    assert (tmp_path / "f").read_text() == "A\n"
    assert done.stderr == "dragoman translate: stdin: line 2 not translated: engine fault 4711\n"


def test_a_descriptor_that_cannot_be_written_is_named(address: str, tmp_path: Path) -> None:
    """One that is not open, one that is open for reading, and one of another process."""
    (tmp_path / "f").write_text("kept\n")
    advice = "cannot be written: Bad file descriptor; open the descriptor for writing, for example with 3>FILE"

    closed = _shell("$translate --output /dev/fd/9 X", address, tmp_path)
    reading = _shell("$translate --output /dev/fd/3 X 3< f", address, tmp_path)
    other = _shell("$translate --output /proc/$$/fd/1 X > f2; echo", address, tmp_path)

    assert closed.stderr == f"dragoman translate: /dev/fd/9 {advice}\n"
    assert reading.stderr == f"dragoman translate: /dev/fd/3 {advice}\n"
    assert "is a descriptor of another process; name a file, or - for stdout" in other.stderr
    assert (tmp_path / "f").read_text() == "kept\n"


def test_only_descriptors_are_taken_for_some(tmp_path: Path) -> None:
    """Files, links to files, links in a circle, and folders are none."""
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "1").touch()
    (tmp_path / "link").symlink_to("1")
    for name in ("circle", "1", "link", "absent", ""):
        assert descriptor_of(str(tmp_path / name)) is None
    assert [descriptor_of(path) for path in ("/dev/stdin", "/dev/fd/63", "/dev/null", "")] == [0, 63, None, None]
    assert is_replaced_when_complete(str(tmp_path / "1"))
    assert not any(map(is_replaced_when_complete, ("-", "/dev/stdout", "/dev/null")))


def test_a_descriptor_stays_open(tmp_path: Path) -> None:
    """It belongs to whoever opened it."""
    with open(tmp_path / "f", "wb", buffering=0) as stream:
        for text in ("a", "b"):
            with open_output(f"/dev/fd/{stream.fileno()}") as write:
                write(text)
        stream.write(b"c")

    assert (tmp_path / "f").read_bytes() == b"abc"
    with pytest.raises(OutputError, match="Bad file descriptor"), open_output("/dev/fd/999"):
        pass
