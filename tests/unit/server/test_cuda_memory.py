"""A GPU's memory through a CUDA runtime that is none, and what is said when the real one cannot be used."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from dragoman.server import cuda_memory
from dragoman.server.cuda_memory import CudaError, find_problem
from tests.fakes.cuda import MODULE, NO_DRIVER, STREAM, FakeCuda, fake_cuda_memory

BUNDLE = Path(__file__).parents[2] / "data" / "tiny-v1"


def put_in_place(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda) -> None:
    monkeypatch.setitem(sys.modules, MODULE, cuda)


def test_what_goes_up_comes_down() -> None:
    """Also after a copy from one place to another in rows of different distance."""
    memory = fake_cuda_memory()
    sent = np.arange(12, dtype=np.float32).reshape(3, 4)
    first, second = memory.allocate(sent.nbytes), memory.allocate(100)
    memory.zero(second, 100, 1, 100)
    memory.upload(first, sent)
    memory.copy(second, first, width=8, rows=3, target_pitch=24, source_pitch=16)

    received = np.empty((3, 6), np.float32)
    memory.download(received, second)

    np.testing.assert_array_equal(received[:, :2], sent[:, :2])
    assert not received[:, 2:].any()
    assert memory.stream == STREAM


def test_rows_are_zeroed_and_nothing_between_them() -> None:
    """A slot is a row of each buffer."""
    memory = fake_cuda_memory()
    address = memory.allocate(48)
    memory.upload(address, np.ones(12, np.float32))
    memory.zero(address + 4, width=8, rows=3, pitch=16)

    received = np.empty((3, 4), np.float32)
    memory.download(received, address)

    assert received.tolist() == [[1, 0, 0, 1]] * 3


def test_steps_too_large_for_copies_in_two_dimensions_are_copied_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA takes steps below 2 GiB; buffers of a large GPU may be farther apart."""
    memory = fake_cuda_memory()
    source, target = memory.allocate(32), memory.allocate(32)
    memory.upload(source, np.arange(8, dtype=np.float32))
    monkeypatch.setattr(cuda_memory, "_LARGEST_PITCH", 8)
    monkeypatch.setattr(FakeCuda, "cudaMemcpy2DAsync", lambda *_: pytest.fail("in two dimensions"))
    memory.copy(target, source, width=8, rows=2, target_pitch=16, source_pitch=16)

    received = np.empty(8, np.float32)
    memory.download(received, target)

    assert received[[0, 1, 4, 5]].tolist() == [0, 1, 4, 5]


def test_every_thread_works_on_the_right_gpu() -> None:
    """CUDA chooses a GPU for each thread, and the engine's thread is not the one that loads."""
    memory = fake_cuda_memory(FakeCuda(devices=3), index=2)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            memory.upload(memory.allocate(8), np.zeros(2, np.float32))
        except AssertionError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert not failed
    assert memory.index == 2


def test_memory_that_is_not_there_is_a_memory_error() -> None:
    """As with NumPy, with the number of bytes."""
    memory = fake_cuda_memory(FakeCuda(capacity=1000))
    memory.allocate(600)

    assert memory.available() == 400
    with pytest.raises(MemoryError, match=r"the GPU has no 500 bytes left \(cudaErrorMemoryAllocation\)"):
        memory.allocate(500)


def test_a_call_that_fails_says_how() -> None:
    """With CUDA's name of the error and its text."""
    cuda = FakeCuda()
    memory = fake_cuda_memory(cuda)
    cuda.status = NO_DRIVER

    with pytest.raises(CudaError, match="cudaErrorInsufficientDriver: CUDA driver version is insufficient"):
        memory.upload(0, np.zeros(0))


def test_a_gpu_that_is_there_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of two, for instance."""
    put_in_place(monkeypatch, FakeCuda(devices=2))

    assert find_problem(1) is None


@pytest.mark.parametrize(
    ("cuda", "message"),
    [
        (FakeCuda(status=NO_DRIVER), "no GPU can be reached: cudaErrorInsufficientDriver: .*nvidia-smi.*--gpus all"),
        (FakeCuda(devices=2), "GPU 2 is not there: 2 can be seen, numbered from 0; CUDA_VISIBLE_DEVICES"),
        (FakeCuda(devices=0), "GPU 2 is not there: 0 can be seen"),
    ],
)
def test_a_gpu_that_is_not_there_is_a_problem(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda, message: str) -> None:
    """No driver, no GPU, or fewer than was thought: the reason and what to look at."""
    put_in_place(monkeypatch, cuda)

    assert re.search(message, find_problem(2) or "")


def test_missing_bindings_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra brings them; the message names it."""
    monkeypatch.setitem(sys.modules, MODULE, None)

    assert re.search(
        r"cuda-bindings cannot be imported .*install the extra dragoman\[server-gpu\]", find_problem(0) or ""
    )


def test_without_a_gpu_nothing_of_cuda_is_imported() -> None:
    """Neither by looking at the code nor by running a bundle on the CPU."""
    script = (
        "import sys; from pathlib import Path; from dragoman.export import bundle; from dragoman.server.runtime import "
        f"OnnxRuntime; folder = Path({str(BUNDLE)!r}); OnnxRuntime(folder, bundle.load_manifest(folder), device='cpu', "
        "threads=1, encode_tokens=64); sys.exit(any(name.split('.')[0] == 'cuda' for name in sys.modules))"
    )

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
