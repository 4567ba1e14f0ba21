"""Bundles of precision fp16 in the engine: states, keys and values of 16 bits, on the host and in a device's memory.

They are meant for GPUs; ONNX Runtime computes them on the CPU too, if slowly, and that is enough to see the states.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dragoman.export.bundle import Manifest, load_manifest
from dragoman.export.decode import BundleSession
from dragoman.server.slot_types import SlotTypes
from tests.fakes.bundle_bench import BundleBench
from tests.fakes.bundles import converted, make_checkpoint, random_sources, without_eos, write_with_states
from tests.fakes.device import FakeMemory

LENGTHS = [1, 2, 3, 5, 8, 13, 17, 30, 40, 55, 70]
torch.set_num_threads(1)


@pytest.fixture(scope="module", params=["self-attention", "ssru"])
def fp32(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_with_states(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def fp16(fp32: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted(fp32, tmp_path_factory.mktemp("half") / "fp16", "fp16")


@pytest.fixture(scope="module")
def manifest(fp16: Path) -> Manifest:
    return replace(load_manifest(fp16), devices=("cpu",))


@pytest.fixture(scope="module")
def sources() -> list[list[int]]:
    return random_sources(make_checkpoint(), LENGTHS)


@pytest.fixture(scope="module")
def alone(fp16: Path, manifest: Manifest, sources: list[list[int]]) -> list[list[int]]:
    """Return each source's tokens without an engine."""
    session, limit = BundleSession(fp16), manifest.limits.max_target_tokens
    targets = [session.greedy([source], [limit])[0] for source in sources]
    return without_eos(targets, manifest)


@pytest.mark.parametrize("where", ["host", "device"])
def test_texts_are_those_of_the_graphs_alone(
    fp16: Path, manifest: Manifest, sources: list[list[int]], alone: list[list[int]], where: str
) -> None:
    """Slots are used again, rows move and share steps; the states have the graphs' 16 bits."""
    bench = BundleBench(fp16, manifest, rows=4, memory=FakeMemory() if where == "device" else None)

    assert bench.translate(sources) == alone
    assert bench.runtime.slot_types == SlotTypes(np.dtype(np.float16), np.dtype(np.float16))
    for view in (*bench.pool.states.views(), *bench.pool.cross_attention.views()):
        assert view.dtype == np.float16


def test_they_take_half_the_memory(fp32: Path, fp16: Path, manifest: Manifest) -> None:
    """As many slots in half the bytes."""
    whole = BundleBench(fp32, load_manifest(fp32), rows=4).pool
    half = BundleBench(fp16, manifest, rows=4).pool

    assert (half.rows, half.nbytes * 2) == (whole.rows, whole.nbytes)


def test_beams_go_on_from_their_parents(fp16: Path, manifest: Manifest, sources: list[list[int]]) -> None:
    """Beam search, where states are copied in every step, finds on the device what it finds on the host."""
    host, device = (BundleBench(fp16, manifest, rows=8, memory=memory) for memory in (None, FakeMemory()))

    assert host.translate(sources, beams=4) == device.translate(sources, beams=4)
