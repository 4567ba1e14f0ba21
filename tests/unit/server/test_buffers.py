"""Keys and values in the host's memory: where it begins, when it is taken, how it is laid out anew."""

import resource
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.export.bundle import Shape
from dragoman.server import buffers as module
from dragoman.server.buffers import Buffers, LastPositions, aligned
from dragoman.server.row_copies import SPARE, RowCopy

SHAPE = Shape(vocab_size=100, num_heads=2, head_dim=3, num_decoder_layers=2)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
@pytest.mark.parametrize("size", [1, 63, 4096])
def test_memory_begins_at_a_cache_line(dtype: Any, size: int) -> None:
    """Kernels read whole vectors of it."""
    array = aligned((3, size), dtype)

    assert array.ctypes.data % 64 == 0
    assert (array.shape, array.dtype) == ((3, size), dtype)
    assert array.flags.c_contiguous
    array.fill(1)


def test_all_of_a_pool_begins_at_a_cache_line() -> None:
    """Each buffer of usual heads, and the last positions."""
    shape = Shape(vocab_size=100, num_heads=8, head_dim=64, num_decoder_layers=2)
    views = Buffers(4, shape, positions=70, longest=70, dtype=np.int8).views()

    for array in (*views, LastPositions(3, shape).tensor):
        assert array.ctypes.data % 64 == 0


def test_memory_is_committed_at_the_start() -> None:
    """Buffers are resident when they have been made, not when the first long texts arrive."""
    shape = Shape(vocab_size=100, num_heads=8, head_dim=64, num_decoder_layers=1)
    before = resident_bytes()

    # 40 MiB: too large for malloc to take from memory freed before.
    buffers = Buffers(1, shape, positions=32 * 640, longest=640)

    assert resident_bytes() - before > 0.9 * buffers.nbytes


def test_laying_out_anew_takes_no_second_pool() -> None:
    """A view grows and shrinks within its memory; the copy in between is of one buffer at most."""
    buffers = Buffers(
        8,
        Shape(vocab_size=100, num_heads=4, head_dim=16, num_decoder_layers=4),
        positions=16 * 128,
        longest=128,
    )
    buffers.fit(64, live=16)
    tracemalloc.start()
    try:
        buffers.fit(128, live=16)
        buffers.fit(64, live=16)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1.5 * buffers.nbytes / 8


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@given(live=st.integers(0, 12), sizes=st.lists(st.integers(1, 90), min_size=1, max_size=4))
def test_rows_keep_their_content_when_views_change(live: int, sizes: list[int]) -> None:
    """However much the view grows or shrinks, within the same memory."""
    buffers = Buffers(2, SHAPE, positions=12 * 90, longest=90)
    kept = buffers.size
    for view in buffers.views():
        view[:live] = np.arange(view[:live].size).reshape(view[:live].shape)
    written = [view[:live].copy() for view in buffers.views()]

    for size in sizes:
        buffers.fit(size, live)
        kept = min(kept, buffers.size)

    for view, content in zip(buffers.views(), written, strict=True):
        np.testing.assert_array_equal(view[:live, :, :kept], content[:, :, :kept])


@pytest.mark.parametrize("at_once", [0, 1 << 30], ids=["layer by layer", "all layers at once"])
def test_rows_are_copied_one_after_the_other(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """From where they differ to their end, also by way of the spare place; nothing else is touched."""
    monkeypatch.setattr(module, "_AT_ONCE", at_once)
    buffers = Buffers(2, SHAPE, positions=4 * 16, longest=16)
    for view in buffers.views():
        view[:] = np.arange(view.size).reshape(view.shape)
    before = [view.copy() for view in buffers.views()]

    buffers.copy_rows([RowCopy(SPARE, 1, 3, 9), RowCopy(1, 2, 2, 5), RowCopy(2, SPARE, 3, 9)])

    for view, old in zip(buffers.views(), before, strict=True):
        expected = old.copy()
        expected[1, :, 2:5] = old[2, :, 2:5]
        expected[2, :, 3:9] = old[1, :, 3:9]
        np.testing.assert_array_equal(view, expected)
