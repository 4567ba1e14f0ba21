"""A device whose memory is apart from everything else and reached through addresses only, so that a missing copy shows.

It is the host's memory after all, so ONNX Runtime's CPU provider can work in it: `kind` is "cpu".
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dragoman.server.device_memory import Array, DeviceArray, Memory, Tensor

_ALIGNMENT = 256
_GARBAGE = 0xFF  # no number, read as float16 or float32


class FakeMemory:
    """Checks that what is copied has been allocated, and that no copy overlaps itself.

    Attributes:
        allocated: Bytes.
        copies: How many copies within the device there have been.
    """

    kind = "cpu"
    index = 0
    stream = 0

    def __init__(self) -> None:
        self.allocated = 0
        self.copies = 0
        self._blocks: dict[int, int] = {}
        self._kept: list[Array] = []

    def available(self) -> int:
        """Return any number."""
        return 1 << 30

    def allocate(self, nbytes: int) -> int:
        """Return an address whose memory holds no numbers."""
        block = np.full(nbytes + _ALIGNMENT, _GARBAGE, np.uint8)
        self._kept.append(block)
        address = -(-block.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        self._blocks[address] = nbytes
        self.allocated += nbytes
        return address

    def upload(self, target: int, source: Array) -> None:
        """Copy from the host."""
        assert source.flags.c_contiguous
        self._require(target, source.nbytes)
        ctypes.memmove(target, source.ctypes.data, source.nbytes)

    def download(self, target: Array, source: int) -> None:
        """Copy to the host."""
        assert target.flags.c_contiguous
        self._require(source, target.nbytes)
        ctypes.memmove(target.ctypes.data, source, target.nbytes)

    def copy(self, target: int, source: int, width: int, rows: int, target_pitch: int, source_pitch: int) -> None:
        """Copy within the device."""
        assert rows > 0
        assert rows == 1 or width <= min(target_pitch, source_pitch)
        targets = [target + row * target_pitch for row in range(rows)]
        sources = [source + row * source_pitch for row in range(rows)]
        for address in (*targets, *sources):
            self._require(address, width)
        _require_apart(targets, sources, width)
        for to, origin in zip(targets, sources, strict=True):
            ctypes.memmove(to, origin, width)
        self.copies += 1

    def zero(self, target: int, width: int, rows: int, pitch: int) -> None:
        """Write zeros."""
        for row in range(rows):
            self._require(target + row * pitch, width)
            ctypes.memset(target + row * pitch, 0, width)

    def _require(self, address: int, nbytes: int) -> None:
        if not any(start <= address and address + nbytes <= start + size for start, size in self._blocks.items()):
            raise AssertionError(f"{nbytes} bytes at {address} have not been allocated")


def _require_apart(targets: Sequence[int], sources: Sequence[int], width: int) -> None:
    ordered = sorted([(address, "target") for address in targets] + [(address, "source") for address in sources])
    for (first, kind), (second, other) in itertools.pairwise(ordered):
        assert kind == other or first + width <= second, "a copy reads what it writes"


def seen(tensors: Iterable[Tensor]) -> list[Array]:
    """Return tensors as a graph sees them: arrays over the same memory."""
    return [_array(tensor) if isinstance(tensor, DeviceArray) else tensor for tensor in tensors]


def _array(tensor: DeviceArray) -> Array:
    memory: Any = (ctypes.c_uint8 * tensor.nbytes).from_address(tensor.pointer)
    return np.frombuffer(memory, tensor.dtype).reshape(tensor.shape)


def placed(arrays: Sequence[Array], memory: Memory | None) -> list[Tensor]:
    """Return arrays where a graph writes its outputs: copies in the device's memory, if there is one."""
    if memory is None:
        return list(arrays)
    tensors = [DeviceArray(memory, memory.allocate(array.nbytes), array.shape, array.dtype) for array in arrays]
    for tensor, array in zip(tensors, arrays, strict=True):
        memory.upload(tensor.pointer, np.ascontiguousarray(array))
    return tensors
