"""Memory where the graphs compute, if that is not the host's: allocated once, reached through addresses only.

On the CPU there is none of it: everything is a NumPy array. Elsewhere a `DeviceArray` takes the array's place, `Memory`
copies, and a `Mirror` is what both sides see.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# An `Array` if the graphs compute on the CPU, else a `DeviceArray`. Whoever takes its elements knows which.
Tensor: TypeAlias = Any


class Memory(Protocol):
    """A device's memory. What is asked of it happens in order, and in order with what the sessions compute.

    Attributes:
        kind: As ONNX Runtime's bindings name the device.
        index: Number of the device.
        stream: Handle of the queue that keeps the order, for the sessions; 0 if there is none.
    """

    kind: str
    index: int
    stream: int

    def available(self) -> int:
        """Return how many bytes nobody has."""

    def allocate(self, nbytes: int) -> int:
        """Return the address of so many bytes of any content, which are never given back.

        Raises:
            MemoryError: There is not so much.
        """

    def upload(self, target: int, source: Array) -> None:
        """Copy a contiguous array of the host; it may change at once."""

    def download(self, target: Array, source: int) -> None:
        """Copy into a contiguous array of the host, when all before it has happened."""

    def copy(self, target: int, source: int, width: int, rows: int, target_pitch: int, source_pitch: int) -> None:
        """Copy `rows` times `width` bytes, each so many bytes behind the last. The two do not overlap."""

    def zero(self, target: int, width: int, rows: int, pitch: int) -> None:
        """Write zeros to `rows` times `width` bytes, each `pitch` bytes behind the last."""


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """A contiguous array in a device's memory; nothing but its address and its size.

    Attributes:
        memory: Whose address it is.
        pointer: Address of the first element.
        shape: Size of each axis.
        dtype: Of the elements.
    """

    memory: Memory
    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    def __getitem__(self, rows: slice) -> DeviceArray:
        """Return the first rows: other slices are not contiguous with the first element."""
        if rows.start or rows.step:
            raise AssertionError(f"{rows} asked of an array that gives its first rows only")
        return replace(self, shape=(len(range(self.shape[0])[rows]), *self.shape[1:]))

    def reshape(self, *shape: int) -> DeviceArray:
        """Return the same elements in other sizes."""
        if math.prod(shape) != self.size:
            raise AssertionError(f"{self.shape} has other elements than {shape}")
        return replace(self, shape=shape)


def empty(memory: Memory | None, shape: tuple[int, ...], dtype: Any) -> Tensor:
    """Allocate: zeros in the host's memory if `memory` is None, else any content."""
    if memory is None:
        return np.zeros(shape, dtype)
    kind = np.dtype(dtype)
    return DeviceArray(memory, memory.allocate(math.prod(shape) * kind.itemsize), shape, kind)


class Mirror:
    """An array of the host and its counterpart where the graphs compute; on the CPU both are the same.

    Attributes:
        host: For us.
        tensor: For the graphs.
    """

    def __init__(self, memory: Memory | None, shape: tuple[int, ...], dtype: Any) -> None:
        """Allocate both, the host's with zeros."""
        self._memory = memory
        self.host = np.zeros(shape, dtype)
        self.tensor: Tensor = self.host if memory is None else empty(memory, shape, dtype)

    def part(self, row: int) -> Tensor:
        """Return a row of the graphs' array."""
        if self._memory is None:
            return self.host[row]
        row_size = self.tensor.size // self.tensor.shape[0]
        pointer = self.tensor.pointer + row * row_size * self.tensor.dtype.itemsize
        return replace(self.tensor, pointer=pointer, shape=self.tensor.shape[1:])

    def push(self, count: int) -> None:
        """Let the graphs see the first `count` elements."""
        if self._memory is not None:
            self._memory.upload(self.tensor.pointer, self.host.reshape(-1)[:count])

    def pull(self, count: int) -> None:
        """Let us see the first `count` elements."""
        if self._memory is not None:
            self._memory.download(self.host.reshape(-1)[:count], self.tensor.pointer)
