"""Memory of an NVIDIA GPU through cuda-bindings, which is imported when a GPU is wanted and not before."""

from __future__ import annotations

import importlib
import threading
from typing import Any

from dragoman.server.device import CUDA
from dragoman.server.device_memory import Array

INSTALL = "uninstall onnxruntime and install the extra dragoman[server-gpu] in place of dragoman[server]"
_RUNTIME = "cuda.bindings.runtime"
_SUCCESS, _OUT_OF_MEMORY = 0, 2
# Copies in two dimensions take no larger step from row to row.
_LARGEST_PITCH = 2**31 - 1


class CudaError(RuntimeError):
    """A call of the CUDA runtime failed; says which and how."""


def find_problem(index: int) -> str | None:
    """Return why GPU `index` cannot be reached and what to do about it, or None."""
    try:
        cuda = importlib.import_module(_RUNTIME)
    except ImportError as error:
        return f"cuda-bindings cannot be imported ({error}); {INSTALL}"
    try:
        count = int(_checked(cuda, cuda.cudaGetDeviceCount()))
    except CudaError as error:
        return (
            f"no GPU can be reached: {error}; see what nvidia-smi says: the driver has to be as new as the CUDA of "
            "onnxruntime-gpu, and a container has to be started with its GPUs (docker run --gpus all)"
        )
    if index >= count:
        return f"GPU {index} is not there: {count} can be seen, numbered from 0; CUDA_VISIBLE_DEVICES may hide others"
    return None


class CudaMemory:
    """Memory of one GPU, with a stream of its own that the sessions are given too.

    Attributes:
        kind: "cuda".
        index: Number of the GPU.
        stream: Handle of the stream.
    """

    kind = CUDA

    def __init__(self, index: int) -> None:
        """Make the stream.

        Raises:
            CudaError: The GPU cannot be used.
            ImportError: cuda-bindings is missing.
        """
        self.index = index
        self._cuda: Any = importlib.import_module(_RUNTIME)
        self._entered = threading.local()
        kinds = self._cuda.cudaMemcpyKind
        self._up, self._down = kinds.cudaMemcpyHostToDevice, kinds.cudaMemcpyDeviceToHost
        self._within = kinds.cudaMemcpyDeviceToDevice
        self._enter()
        self.stream = int(self._call(self._cuda.cudaStreamCreateWithFlags(self._cuda.cudaStreamNonBlocking)))

    def available(self) -> int:
        """Return how many bytes nobody has, of this process or another."""
        self._enter()
        free, _ = self._call(self._cuda.cudaMemGetInfo())
        return int(free)

    def allocate(self, nbytes: int) -> int:
        """Return the address of so many bytes."""
        self._enter()
        return int(self._call(self._cuda.cudaMalloc(max(1, nbytes)), nbytes))

    def upload(self, target: int, source: Array) -> None:
        """Copy from the host: its memory is not pinned, so the call returns when it has been read."""
        self._enter()
        address = source.ctypes.data
        self._call(self._cuda.cudaMemcpyAsync(target, address, source.nbytes, self._up, self.stream))

    def download(self, target: Array, source: int) -> None:
        """Copy to the host and wait."""
        self._enter()
        address = target.ctypes.data
        self._call(self._cuda.cudaMemcpyAsync(address, source, target.nbytes, self._down, self.stream))
        self._call(self._cuda.cudaStreamSynchronize(self.stream))

    def copy(self, target: int, source: int, width: int, rows: int, target_pitch: int, source_pitch: int) -> None:
        """Copy within the GPU."""
        self._enter()
        cuda, kind, stream = self._cuda, self._within, self.stream
        if rows > 1 and max(target_pitch, source_pitch) > _LARGEST_PITCH:
            for row in range(rows):
                addresses = target + row * target_pitch, source + row * source_pitch
                self._call(cuda.cudaMemcpyAsync(*addresses, width, kind, stream))
        elif rows == 1:
            self._call(cuda.cudaMemcpyAsync(target, source, width, kind, stream))
        else:
            self._call(cuda.cudaMemcpy2DAsync(target, target_pitch, source, source_pitch, width, rows, kind, stream))

    def zero(self, target: int, width: int, rows: int, pitch: int) -> None:
        """Write zeros."""
        self._enter()
        for row in range(rows):  # rare: a new row's cells, a row with numbers that are none, a failed step
            self._call(self._cuda.cudaMemsetAsync(target + row * pitch, 0, width, self.stream))

    def _enter(self) -> None:
        """Choose the GPU, which CUDA does for each thread; the engine's is not the one that loads."""
        if not getattr(self._entered, "done", False):
            self._call(self._cuda.cudaSetDevice(self.index))
            self._entered.done = True

    def _call(self, answer: tuple[Any, ...], nbytes: int = 0) -> Any:
        return _checked(self._cuda, answer, nbytes)


def _checked(cuda: Any, answer: tuple[Any, ...], nbytes: int = 0) -> Any:
    """Return what a call answered besides its status: nothing, one value or several."""
    status, *values = answer
    if int(status) == _SUCCESS:
        return values[0] if len(values) == 1 else values
    name, text = (_text(cuda, function, status) for function in (cuda.cudaGetErrorName, cuda.cudaGetErrorString))
    if int(status) == _OUT_OF_MEMORY:
        raise MemoryError(f"the GPU has no {nbytes} bytes left ({name})" if nbytes else f"{name}: {text}")
    raise CudaError(f"{name}: {text}")


def _text(cuda: Any, function: Any, status: Any) -> str:
    return bytes(function(cuda.cudaError_t(int(status)))[1]).decode()
