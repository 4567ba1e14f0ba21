import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dragoman.export import bundle
from dragoman.export.bundle import Manifest
from dragoman.server import runtime
from dragoman.server.cuda_memory import CudaError
from dragoman.server.device import Device
from dragoman.server.errors import StartupError
from dragoman.server.runtime import OnnxRuntime, device_memory
from dragoman.server.slot_types import SlotTypes
from dragoman.server.step import Wanted
from tests.fakes.bundle_bench import BundleBench
from tests.fakes.device import FakeMemory, seen
from tests.fakes.memories import make_memory

DATA = Path(__file__).parents[2] / "data"
BUNDLE = DATA / "tiny-v1"
INT8 = np.dtype(np.int8)


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


@pytest.mark.parametrize(
    ("name", "types"), [("tiny-v1", SlotTypes()), ("tiny-v3", SlotTypes(INT8, INT8, cross_last=True))]
)
def test_a_decoder_says_what_its_slots_hold(name: str, types: SlotTypes) -> None:
    """Bundles from before know neither bytes nor last positions."""
    opened = open_runtime(bundle.load_manifest(DATA / name), "cpu", DATA / name)

    assert opened.slot_types == types
    encoded = opened.encode([[5, 6, 3]] * 2)
    assert {tensor.dtype for tensor in encoded.cross} == {types.cross}
    assert (encoded.last is not None) == types.cross_last


def test_numbers_of_an_unknown_type_are_a_startup_error(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle of a later version may have some; the message says what to do."""
    known = {name: kind for name, kind in runtime._NUMPY.items() if kind != np.float32}
    monkeypatch.setattr(runtime, "_NUMPY", known)

    with pytest.raises(StartupError, match=r"numbers of type tensor\(float\); this version knows .*export it again"):
        open_runtime(manifest, "cpu")


@pytest.mark.parametrize("where", ["host", "device"])
def test_bytes_and_last_positions_follow_their_texts(where: str) -> None:
    """Few slots, used again; rows that move and beams that are reordered become what they become alone."""
    folder = DATA / "tiny-v3"
    manifest = bundle.load_manifest(folder)
    generator = np.random.default_rng(3)
    sources = [[*generator.integers(7, 90, length).tolist(), 3] for length in (1, 30, 4, 17, 9, 2, 40)]
    alone = BundleBench(folder, manifest, rows=3)
    bench = BundleBench(folder, manifest, rows=7, memory=make_memory(where))

    for beams in (1, 3):
        expected = [alone.translate([source], beams=beams)[0] for source in sources]
        assert bench.translate(sources, beams=beams) == expected
        assert len({tuple(tokens) for tokens in expected}) > 3


def test_a_step_reads_the_last_positions_of_the_pool() -> None:
    """Without them the numbers are others."""
    folder = DATA / "tiny-v3"
    bench = BundleBench(folder, bundle.load_manifest(folder), rows=2, memory=FakeMemory())
    pool = bench.pool
    pool.admit(bench.runtime.encode([[8, 9, 3], [10, 11, 3]]), [3, 3], [1, 1], 2)
    pool.reserve()
    assert pool.cross_last is not None
    lasts = seen([pool.cross_last.tensor])[0]

    before = bench.runtime.step(pool, Wanted.LOGITS).logits
    assert before is not None
    kept = before.copy()
    lasts[0] = 0
    after = bench.runtime.step(pool, Wanted.LOGITS).logits

    assert after is not None
    assert not np.array_equal(after[0], kept[0])
    np.testing.assert_array_equal(after[1], kept[1])
