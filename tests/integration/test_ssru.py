"""A model with recurrent decoder layers, from PyTorch through the export to the engine: the same tokens everywhere."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from dragoman.export.bundle import Manifest, load_manifest
from dragoman.export.decode import BundleSession
from dragoman.export.write import write_bundle
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.search import greedy
from dragoman.server import runtime
from dragoman.server.layer_states import Cells
from dragoman.server.request import Request, RequestStatus
from tests.fakes.bundle_bench import BundleBench
from tests.fakes.bundles import make_checkpoint, quantized, random_sources

SEED = 5
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return make_checkpoint(decoder_layer="ssru")


@pytest.fixture(scope="module")
def fp32(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ssru") / "fp32"
    write_bundle(checkpoint, out, name="ssru", precision="fp32", verify=None)
    return out


@pytest.fixture(scope="module", params=["fp32", "int8"])
def folder(request: pytest.FixtureRequest, fp32: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fp32 if request.param == "fp32" else quantized(fp32, tmp_path_factory.mktemp("ssru") / "int8")


@pytest.fixture(scope="module")
def manifest(folder: Path) -> Manifest:
    return load_manifest(folder)


@pytest.fixture(scope="module")
def sources(checkpoint: Checkpoint) -> list[list[int]]:
    return random_sources(checkpoint, [1, 2, 3, 5, 8, 13, 16, 17, 21, 30, 34, 40, 55, 64, 65, 70])


@pytest.fixture(scope="module")
def alone(folder: Path, manifest: Manifest, sources: list[list[int]]) -> list[list[int]]:
    """Return the tokens of each source when nothing else is translated, without an engine."""
    session = BundleSession(folder)
    limit = manifest.limits.max_target_tokens
    return [session.greedy([source], [limit])[0] for source in sources]


def texts(manifest: Manifest, targets: list[list[int]]) -> list[list[int]]:
    """Return what the engine gives of these tokens: EOS is not part of a text."""
    return [[token for token in target if token != manifest.special.eos] for target in targets]


def test_the_bundle_finds_pytorchs_tokens(checkpoint: Checkpoint, fp32: Path, sources: list[list[int]]) -> None:
    """Cell by cell in the graph is the whole prefix at once in PyTorch; the texts differ from each other."""
    limits = [24] * len(sources)
    expected = greedy(checkpoint.model, sources, limits, checkpoint.tokenizer.special)

    assert BundleSession(fp32).greedy(sources, limits) == expected
    assert len({tuple(target) for target in expected}) > len(sources) // 2


def test_batched_equals_alone(
    folder: Path, manifest: Manifest, sources: list[list[int]], alone: list[list[int]]
) -> None:
    """All sources in one batch of the engine have the tokens they have alone."""
    bench = BundleBench(folder, manifest, rows=len(sources), encode_tokens=4096)

    assert bench.translate(sources) == texts(manifest, alone)


@pytest.mark.parametrize("seed", range(4))
def test_arrivals_and_cancels_at_random_do_not_matter(
    folder: Path, manifest: Manifest, sources: list[list[int]], alone: list[list[int]], seed: int
) -> None:
    """Slots are used again and rows move between them; whoever stays has the tokens it has alone."""
    generator = random.Random(seed)
    bench = BundleBench(folder, manifest, rows=4, encode_tokens=128)
    order = [*range(len(sources))] * 2
    generator.shuffle(order)
    rows: list[tuple[int, Request]] = []
    for index in order:
        rows.append((index, bench.start([sources[index]])[0]))
        for _ in range(generator.randrange(6)):
            bench.engine.iterate()
        if generator.random() < 0.3:
            bench.engine.cancel([generator.choice(rows)[1]])
    bench.finish([row for _, row in rows])

    expected = texts(manifest, alone)
    assert {row.status for _, row in rows} >= {RequestStatus.CANCELLED, RequestStatus.LENGTH}
    for index, row in rows:
        assert row.output == expected[index][: len(row.output)]
        assert row.status is RequestStatus.CANCELLED or row.output == expected[index]


def test_a_slot_that_is_not_zeroed_would_be_noticed(
    fp32: Path, sources: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests above can fail: a row that begins with its predecessor's cells has other tokens."""
    monkeypatch.setattr(Cells, "begin", lambda *_: None)
    manifest = load_manifest(fp32)
    bench = BundleBench(fp32, manifest, rows=1)
    first, second = bench.translate(sources[8:10])
    again = BundleBench(fp32, manifest, rows=1).translate(sources[9:10])[0]

    assert first
    assert second != again


def test_bindings_may_be_forgotten(fp32: Path, sources: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept bindings are a cache of bounded size and nothing else."""
    manifest = load_manifest(fp32)
    expected = BundleBench(fp32, manifest, rows=5).translate(sources)
    monkeypatch.setattr(runtime, "_MAX_STEPS", 2)

    assert BundleBench(fp32, manifest, rows=5).translate(sources) == expected


def test_a_step_touches_the_cells_of_live_rows_only(fp32: Path, sources: list[list[int]]) -> None:
    """It writes to the second memory; what it read, the dead slots and the source stay as they are."""
    bench = BundleBench(fp32, load_manifest(fp32), rows=4)
    bench.start(sources[:3])
    bench.engine.iterate()
    pool = bench.pool
    for view in pool.states.updated_views():
        view.fill(7)
    untouched = [*pool.states.views(), *pool.cross_attention.views()]
    before = [view.copy() for view in untouched]
    pool.reserve()
    bench.runtime.step(pool)

    for old, new in zip(before, untouched, strict=True):
        np.testing.assert_array_equal(old, new)
    for view in pool.states.updated_views():
        assert (view[: pool.live] != 7).any(axis=1).all()
        assert (view[pool.live :] == 7).all()
