import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.export import bundle
from dragoman.export.bundle import Manifest
from dragoman.server import runtime
from dragoman.server.cuda_memory import CudaError
from dragoman.server.device import Device
from dragoman.server.errors import StartupError
from dragoman.server.runtime import OnnxRuntime, device_memory

BUNDLE = Path(__file__).parents[2] / "data" / "tiny-v1"


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return bundle.load_manifest(BUNDLE)


def open_runtime(manifest: Manifest, device: str, folder: Path = BUNDLE) -> OnnxRuntime:
    return OnnxRuntime(folder, manifest, device=device, threads=1, encode_tokens=64)


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_bundle_for_the_cpu_runs_on_the_cpu(manifest: Manifest, device: str) -> None:
    """Automatic choice and explicit wish end at the same device, with NumPy's memory."""
    opened = open_runtime(replace(manifest, devices=("cpu",)), device)

    assert (opened.device, opened.memory) == ("cpu", None)


def test_a_gpu_that_is_wanted_and_not_there_is_a_startup_error(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No session is opened elsewhere in its place."""
    monkeypatch.setattr(runtime, "find_problem", lambda index: f"there is no GPU {index}")
    monkeypatch.setattr(runtime, "open_session", lambda *_, **__: pytest.fail("opened"))

    with pytest.raises(StartupError, match="device is 'cuda:1', but there is no GPU 1"):
        open_runtime(manifest, "cuda:1")


@pytest.mark.parametrize("error", [CudaError("cudaErrorECCUncorrectable: broken"), MemoryError("full")])
def test_a_gpu_that_does_not_work_is_a_startup_error(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """It was counted, and then fails at the first call."""

    def fail(_index: int) -> None:
        raise error

    monkeypatch.setattr(runtime, "CudaMemory", fail)
    monkeypatch.setattr(runtime, "load_cuda_libraries", lambda: None)

    with pytest.raises(StartupError, match=f"cuda:1 cannot be used: {error}; see what nvidia-smi says"):
        device_memory(Device("cuda", 1))


def test_a_graph_that_does_not_load_is_a_startup_error(manifest: Manifest, tmp_path: Path) -> None:
    """Whatever the runtime raises, the operator reads which bundle it was."""
    folder = tmp_path / "broken"
    shutil.copytree(BUNDLE, folder)
    (folder / bundle.DECODER).write_bytes(b"not a graph")

    with pytest.raises(StartupError, match=f"ONNX Runtime cannot load .*{bundle.DECODER} on cpu"):
        open_runtime(manifest, "cpu", folder)
