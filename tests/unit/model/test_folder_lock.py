"""A folder that one process holds, and what the others see."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.model.folder_lock import FolderInUse, hold_folder

HOLD = "import sys; from pathlib import Path; from dragoman.model.folder_lock import hold_folder\n"


def test_the_holder_is_named_until_it_lets_go(tmp_path: Path) -> None:
    """The folder is made, and free again after the block."""
    folder = tmp_path / "new" / "run"
    with hold_folder(folder):
        with pytest.raises(FolderInUse) as error, hold_folder(folder):
            pass
        assert error.value.holder == str(os.getpid())
    with hold_folder(folder):
        pass


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    """The kernel lets go for it; nobody has to delete a file."""
    script = f"{HOLD}with hold_folder(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(FolderInUse) as error, hold_folder(tmp_path):
            pass
        assert error.value.holder == str(process.pid)
        process.kill()
    with hold_folder(tmp_path):
        pass


@pytest.mark.parametrize(("code", "goes_on"), [(errno.ENOSYS, True), (errno.ENOLCK, True), (errno.EIO, False)])
def test_a_file_system_without_locks_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, goes_on: bool
) -> None:
    """Some network file systems have none; any other failure is one."""

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("dragoman.model.folder_lock.fcntl.flock", fail)
    if goes_on:
        with hold_folder(tmp_path):
            pass
    else:
        with pytest.raises(OSError, match=os.strerror(code)), hold_folder(tmp_path):
            pass
