import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.export import bundle
from dragoman.export.bundle import Manifest
from dragoman.server.errors import StartupError
from dragoman.server.runtime import OnnxRuntime, choose_device

BUNDLE = Path(__file__).parents[2] / "data" / "tiny-v1"


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return bundle.load_manifest(BUNDLE)


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_bundle_for_the_cpu_runs_on_the_cpu(manifest: Manifest, device: str) -> None:
    """Automatic choice and explicit wish end at the same device."""
    assert choose_device(device, manifest) == "cpu"


def test_an_unknown_device_is_refused(manifest: Manifest) -> None:
    """The message has the value and what there is."""
    with pytest.raises(StartupError, match="device is 'tpu'; this version runs on 'cpu'"):
        choose_device("tpu", manifest)


def test_a_bundle_for_another_device_is_refused(manifest: Manifest) -> None:
    """The message says which precision is meant for what, and what to do."""
    only_cuda = replace(manifest, precision="fp16", devices=("cuda",))

    with pytest.raises(StartupError, match=r"tiny \(fp16\) is meant for \['cuda'\], not for the CPU; export it again"):
        choose_device("auto", only_cuda)


def test_a_graph_that_does_not_load_is_a_startup_error(manifest: Manifest, tmp_path: Path) -> None:
    """Whatever the runtime raises, the operator reads which bundle it was."""
    folder = tmp_path / "broken"
    shutil.copytree(BUNDLE, folder)
    (folder / bundle.DECODER).write_bytes(b"not a graph")

    with pytest.raises(StartupError, match=f"ONNX Runtime cannot load .*{bundle.DECODER}"):
        OnnxRuntime(folder, manifest, device="cpu", threads=1, encode_tokens=64)
