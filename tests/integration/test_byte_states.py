"""Bundles of precision int8-static in the engine: keys and values of 8 bits, the last source positions as floats."""

from __future__ import annotations

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
INT8, FLOAT32 = np.dtype(np.int8), np.dtype(np.float32)
torch.set_num_threads(1)


@pytest.fixture(scope="module", params=["self-attention", "ssru"])
def fp32(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_with_states(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def static(fp32: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted(fp32, tmp_path_factory.mktemp("bytes") / "int8-static", "int8-static")


@pytest.fixture(scope="module")
def manifest(static: Path) -> Manifest:
    return load_manifest(static)


@pytest.fixture(scope="module")
def sources() -> list[list[int]]:
    return random_sources(make_checkpoint(), LENGTHS)


@pytest.mark.parametrize("where", ["host", "device"])
def test_texts_are_those_of_the_graphs_alone(
    static: Path, manifest: Manifest, sources: list[list[int]], where: str
) -> None:
    """Slots are used again, rows move and share steps; cells stay floats."""
    session, limit = BundleSession(static), manifest.limits.max_target_tokens
    alone = [session.greedy([source], [limit])[0] for source in sources]
    bench = BundleBench(static, manifest, rows=4, memory=FakeMemory() if where == "device" else None)

    assert bench.translate(sources) == without_eos(alone, manifest)
    states = INT8 if manifest.shape.decoder_layer == "self-attention" else FLOAT32
    assert bench.runtime.slot_types == SlotTypes(INT8, states, cross_last=True)
    assert {view.dtype for view in bench.pool.cross_attention.views()} == {INT8}
    assert {view.dtype for view in bench.pool.states.views()} == {states}


def test_beams_are_the_same_in_any_company(static: Path, manifest: Manifest, sources: list[list[int]]) -> None:
    """What rows have in common is not copied when they are reordered, and nothing is missing."""
    alone = BundleBench(static, manifest, rows=4)
    expected = [alone.translate([source], beams=4)[0] for source in sources]

    for memory in (None, FakeMemory()):
        assert BundleBench(static, manifest, rows=12, memory=memory).translate(sources, beams=4) == expected
