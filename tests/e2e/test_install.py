"""What a caller gets from `pip install .`: the client and little else."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.e2e.process import ServerProcess

ROOT = Path(__file__).parents[2]
ALLOWED = {
    "dragoman",
    "grpcio",
    "protobuf",
    "googleapis-common-protos",
    "tqdm",
    "typing-extensions",
    "pip",
    "setuptools",
}


@pytest.fixture(scope="module")
def client_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of a fresh environment with the base install."""
    folder = tmp_path_factory.mktemp("client") / "venv"
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "pip", "install", "--quiet", ROOT], check=True, stdin=subprocess.DEVNULL)
    return folder / "bin"


def test_base_install_is_the_client_and_little_else(client_only: Path) -> None:
    """No runtime, no tokenizer, no numpy."""
    listed = subprocess.run([client_only / "pip", "list", "--format", "json"], capture_output=True, check=True)
    names = {entry["name"].lower().replace("_", "-") for entry in json.loads(listed.stdout)}

    assert names <= ALLOWED
    assert {"dragoman", "grpcio", "protobuf"} <= names


def test_installed_client_translates(client_only: Path, server: ServerProcess) -> None:
    """The wheel's own command talks to a server."""
    command = [str(client_only / "dragoman"), "translate", "--server", server.address, "twenty-three"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "dreiundzwanzig\n"), done.stderr


@pytest.mark.parametrize(("command", "extra"), [("serve", "server"), ("train", "train"), ("export", "export")])
def test_missing_extra_is_named(client_only: Path, command: str, extra: str) -> None:
    """Other subcommands say what to install."""
    done = subprocess.run([client_only / "dragoman", command], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert f"pip install '.[{extra}]'" in done.stderr


def test_wheel_brings_the_built_in_model(client_only: Path) -> None:
    """The extra `server` is enough to serve."""
    code = "import importlib.util, pathlib; print(importlib.util.find_spec('dragoman.server').origin)"
    found = subprocess.run([client_only / "python", "-c", code], capture_output=True, text=True, check=True)

    assert sorted(p.name for p in (Path(found.stdout.strip()).parent / "models" / "en-de").glob("*.onnx")) == [
        "decoder.onnx",
        "encoder.onnx",
    ]
    assert sys.prefix not in found.stdout
