"""Where a slot pool can lie in tests."""

from __future__ import annotations

from dragoman.server.device_memory import Memory
from tests.fakes.cuda import fake_cuda_memory
from tests.fakes.device import FakeMemory

# NumPy's arrays; memory reached through addresses only; the same through the calls of CUDA.
PLACES = ("host", "device", "cuda")


def make_memory(place: str) -> Memory | None:
    """Return fresh memory of one kind, None for the host's."""
    if place == "cuda":
        return fake_cuda_memory()
    return FakeMemory() if place == "device" else None
