"""Each subcommand imports only what its extra installs; the development environment has more."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import packages_distributions, requires

import pytest

from dragoman.cli.main import COMMANDS

# setuptools is loaded by its .pth file; grpc imports the others by itself where they are installed.
_UNASKED = {"dragoman", "setuptools", "grpcio-health-checking", "grpcio-reflection", "grpcio-tools"}
_EXTRA = re.compile(r"extra == ['\"](\w[\w-]*)['\"]")


def closure(extra: str) -> set[str]:
    """Return every distribution that the base install and `extra` bring, normalised."""
    found: set[str] = set()
    queue = [r for r in requires("dragoman") or [] if not _EXTRA.search(r) or _EXTRA.findall(r) == [extra]]
    while queue:
        name = normalised(re.match(r"[\w.-]+", queue.pop())[0])  # type: ignore[index]  # a requirement starts with a name
        if name not in found:
            found.add(name)
            try:
                queue += [r for r in requires(name) or [] if not _EXTRA.search(r)]
            except ModuleNotFoundError:
                continue  # for another platform or Python
    return found


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("command", COMMANDS)
def test_subcommand_needs_no_more_than_its_extra(command: str) -> None:
    """The README's table of extras is true: importing the command loads nothing that they do not install."""
    code = f"import sys, {COMMANDS[command].module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    owners = packages_distributions()
    loaded = {normalised(owner) for name in done.stdout.split() for owner in owners.get(name, [])}

    # `google` is a namespace that several distributions share; it says nothing about which was loaded.
    shared = {normalised(owner) for owner in owners.get("google", [])}
    assert loaded - closure(COMMANDS[command].extra) - shared - _UNASKED == set()
