"""A CUDA runtime without a GPU: what `cuda.bindings.runtime` has of functions that we call, in the host's memory."""

from __future__ import annotations

import ctypes
import sys
import threading
from types import SimpleNamespace
from unittest import mock

from dragoman.server.cuda_memory import CudaMemory
from tests.fakes.device import FakeMemory

MODULE = "cuda.bindings.runtime"
STREAM = 4711
OK, OUT_OF_MEMORY, NO_DRIVER, BAD_VALUE = 0, 2, 35, 1
_TEXTS = {
    OK: ("cudaSuccess", "no error"),
    OUT_OF_MEMORY: ("cudaErrorMemoryAllocation", "out of memory"),
    NO_DRIVER: ("cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"),
    BAD_VALUE: ("cudaErrorInvalidValue", "invalid argument"),
}
_UP, _DOWN, _WITHIN = 1, 2, 3
_LARGEST_PITCH = 2**31 - 1


class FakeCuda:
    """Answers as the real one does: a status first, then values. Its memory is the host's.

    Attributes:
        cudaMemcpyKind: Directions.
        cudaError_t: Makes a status of a number.
        cudaStreamNonBlocking: A flag.
        devices: How many GPUs there are.
        capacity: Bytes that can be allocated.
        status: What every call answers; an error to see what becomes of it.
    """

    cudaMemcpyKind = SimpleNamespace(  # noqa: N815  # the real one's names
        cudaMemcpyHostToDevice=_UP, cudaMemcpyDeviceToHost=_DOWN, cudaMemcpyDeviceToDevice=_WITHIN
    )
    cudaError_t = int  # noqa: N815
    cudaStreamNonBlocking = 1  # noqa: N815

    def __init__(self, *, devices: int = 1, capacity: int = 1 << 30, status: int = OK) -> None:
        self.devices, self.capacity, self.status = devices, capacity, status
        self._memory = FakeMemory()
        self._chosen = threading.local()

    def _answer(self, *values: object) -> tuple[object, ...]:
        return (self.status, *(values if self.status == OK else [None] * len(values)))

    def _require_chosen(self) -> None:
        assert getattr(self._chosen, "index", None) is not None, "this thread works on the first GPU, not on ours"

    def cudaGetErrorName(self, status: int) -> tuple[int, bytes]:  # noqa: D102, N802
        return OK, _TEXTS[status][0].encode()

    def cudaGetErrorString(self, status: int) -> tuple[int, bytes]:  # noqa: D102, N802
        return OK, _TEXTS[status][1].encode()

    def cudaGetDeviceCount(self) -> tuple[object, ...]:  # noqa: D102, N802
        return self._answer(self.devices)

    def cudaSetDevice(self, index: int) -> tuple[object, ...]:  # noqa: D102, N802
        assert 0 <= index < self.devices
        self._chosen.index = index
        return self._answer()

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[object, ...]:  # noqa: D102, N802
        assert flags == self.cudaStreamNonBlocking
        self._require_chosen()
        return self._answer(STREAM)

    def cudaMemGetInfo(self) -> tuple[object, ...]:  # noqa: D102, N802
        self._require_chosen()
        return self._answer(self.capacity - self._memory.allocated, self.capacity)

    def cudaMalloc(self, nbytes: int) -> tuple[object, ...]:  # noqa: D102, N802
        self._require_chosen()
        if self._memory.allocated + nbytes > self.capacity:
            return OUT_OF_MEMORY, None
        return self._answer(self._memory.allocate(nbytes))

    def cudaMemcpyAsync(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> tuple[object, ...]:  # noqa: D102, N802
        self._require_ours(stream)
        if kind == _WITHIN:
            self._memory.copy(target, source, nbytes, 1, nbytes, nbytes)
        else:
            ctypes.memmove(target, source, nbytes)
        return self._answer()

    def cudaMemcpy2DAsync(  # noqa: D102, N802
        self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, rows: int, kind: int,
        stream: int,
    ) -> tuple[object, ...]:  # fmt: skip
        self._require_ours(stream)
        assert kind == _WITHIN
        if not width <= min(target_pitch, source_pitch) <= max(target_pitch, source_pitch) <= _LARGEST_PITCH:
            return BAD_VALUE, None
        self._memory.copy(target, source, width, rows, target_pitch, source_pitch)
        return self._answer()

    def cudaMemsetAsync(self, target: int, value: int, nbytes: int, stream: int) -> tuple[object, ...]:  # noqa: D102, N802
        self._require_ours(stream)
        assert value == 0
        self._memory.zero(target, nbytes, 1, nbytes)
        return self._answer()

    def cudaStreamSynchronize(self, stream: int) -> tuple[object, ...]:  # noqa: D102, N802
        self._require_ours(stream)
        return self._answer()

    def _require_ours(self, stream: int) -> None:
        self._require_chosen()
        assert stream == STREAM, "not in the order of the sessions' work"


def fake_cuda_memory(cuda: FakeCuda | None = None, index: int = 0) -> CudaMemory:
    """Return the memory of a GPU that is not there."""
    with mock.patch.dict(sys.modules, {MODULE: cuda or FakeCuda()}):
        return CudaMemory(index)
