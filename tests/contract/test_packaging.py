"""The namespace layout: five folders, one import root, one package for clients."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PORTIONS = ("model", "export", "server", "clients", "protos")


@pytest.mark.parametrize("folder", PORTIONS)
def test_namespace_portions_have_no_init(folder: str) -> None:
    """An __init__.py in a portion would hide the other four."""
    assert (ROOT / folder / "dragoman").is_dir()

    assert not (ROOT / folder / "dragoman" / "__init__.py").exists()


def test_every_package_is_typed() -> None:
    """Each leaf package ships a py.typed marker."""
    packages = [p.parent for folder in PORTIONS for p in (ROOT / folder / "dragoman").glob("*/__init__.py")]
    assert len(packages) == 7

    assert [p.name for p in packages if p.name != "v1" and not (p / "py.typed").exists()] == []


def test_base_install_is_small() -> None:
    """The client needs gRPC, protobuf, the error details and a progress bar."""
    base = set(re.findall(r"^[\w-]+", "\n".join(r for r in requires("dragoman") or [] if "extra ==" not in r), re.M))

    assert base == {"grpcio", "protobuf", "googleapis-common-protos", "tqdm"}


@pytest.mark.skipif(
    os.environ.get("DRAGOMAN_TEST_ENVIRONMENT") != "server", reason="only the server environment must be without torch"
)
@pytest.mark.parametrize("package", ["torch", "onnx", "onnxscript", "safetensors"])
def test_server_environment_has_no(package: str) -> None:
    """The server's tests prove little if these could be imported."""
    assert find_spec(package) is None


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("dragoman.server.app", {"torch", "onnx", "onnxscript", "safetensors"}),
        ("dragoman.client", {"torch", "onnx", "onnxruntime", "numpy", "sentencepiece", "prometheus_client"}),
        ("dragoman.client.commands.translate", {"torch", "onnx", "onnxruntime", "numpy", "sentencepiece"}),
        ("dragoman.cli.main", {"torch", "onnx", "onnxruntime", "numpy", "grpc", "sentencepiece"}),
        ("dragoman.export.bundle", {"torch", "onnx", "onnxruntime", "numpy"}),
        ("dragoman.model.tokenizers", {"torch", "onnx", "numpy"}),
    ],
)
def test_import_stays_light(module: str, absent: set[str]) -> None:
    """Importing a module does not load what its users need not have."""
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & {absent!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []


def test_subcommand_without_its_extra_says_which_to_install() -> None:
    """The message names the missing package and the extra, and there is no traceback."""
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch': raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from dragoman.cli.main import main\n"
        "sys.exit(main(['train', '--help']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "pip install '.[train]'" in done.stderr
    assert "torch" in done.stderr or "safetensors" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_subcommand_module_exists() -> None:
    """The table of the command line names modules that are there."""
    commands = importlib.import_module("dragoman.cli.main").COMMANDS

    assert [c.module for c in commands.values() if not _source(c.module).is_file()] == []


def _source(module: str) -> Path:
    parts = module.split(".")
    folder = {"client": "clients", "evaluation": "clients"}.get(parts[1], parts[1])
    return ROOT / folder / Path(*parts).with_suffix(".py")
