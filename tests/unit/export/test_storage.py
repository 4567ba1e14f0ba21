"""Large graphs have their weights beside them, and the bundle knows the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from dragoman.export import bundle, storage
from dragoman.export.bundle import load_manifest
from dragoman.export.decode import BundleSession
from dragoman.export.errors import BundleError
from dragoman.export.precision import Precision
from dragoman.export.write import write_bundle
from dragoman.model.checkpoint import Checkpoint
from tests.fakes.bundles import make_checkpoint, random_sources

WEIGHTS = [f"{name}.weights" for name in bundle.GRAPHS]


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return make_checkpoint()


@pytest.fixture(scope="module")
def bundles(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same model with weights inside of its graphs and outside of them."""
    folder = tmp_path_factory.mktemp("bundles")
    write_bundle(checkpoint, folder / "inside", name="b", precision="fp32", verify=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "LARGEST_FILE", 100_000)
        write_bundle(checkpoint, folder / "outside", name="b", precision="fp32", verify=None)
    return {name: folder / name for name in ("inside", "outside")}


def test_weights_lie_outside_above_the_limit(bundles: dict[str, Path]) -> None:
    """The graphs become small, the sum of the files does not grow, and below the limit there is one file each."""
    inside, outside = bundles["inside"], bundles["outside"]

    assert not any((inside / name).exists() for name in WEIGHTS)
    for name in bundle.GRAPHS:
        small, weights = (outside / name).stat().st_size, (outside / f"{name}.weights").stat().st_size
        assert small < 0.3 * (inside / name).stat().st_size
        assert small + weights < 1.2 * (inside / name).stat().st_size
        external = [t for t in onnx.load(outside / name, load_external_data=False).graph.initializer if t.external_data]
        assert {entry.value for t in external for entry in t.external_data if entry.key == "location"} == {
            f"{name}.weights"
        }


def test_texts_are_the_same(bundles: dict[str, Path], checkpoint: Checkpoint) -> None:
    """Where the weights lie is nothing that a translation can tell."""
    sources = random_sources(checkpoint, [4, 9, 30])
    sessions = [BundleSession(bundles[name]) for name in ("inside", "outside")]
    greedy = [session.greedy(sources, [12] * 3) for session in sessions]
    beams = [session.beam(sources, [12] * 3) for session in sessions]  # what branches read lies outside, too

    assert greedy[0] == greedy[1]
    assert len({tuple(ids) for ids in greedy[0]}) > 1
    assert beams[0] == beams[1]


@pytest.mark.parametrize("precision", ["fp16", "int8", "int8-weights", "int4"])
def test_every_precision_can_lie_outside(
    checkpoint: Checkpoint, precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Integers and packed blocks, too: the same logits, bit for bit."""
    tokens = np.array([[2, 7, 8], [2, 20, 21]])
    found = []
    for limit in (1 << 30, 10_000):
        monkeypatch.setattr(storage, "LARGEST_FILE", limit)
        folder = tmp_path / str(limit)
        write_bundle(checkpoint, folder, name="b", precision=precision, verify=None)
        session = BundleSession(folder)
        encoded, states = session.encode(random_sources(checkpoint, [4, 9])), session.initial_states(2, 3)
        found.append(session.normalized_step(tokens, np.zeros(2, np.int64), states, encoded)[:2])
        assert all((folder / name).exists() == (limit == 10_000) for name in WEIGHTS)

    for inside, outside in zip(*found, strict=True):
        np.testing.assert_array_equal(inside, outside)


def test_the_manifest_knows_the_files(bundles: dict[str, Path], tmp_path: Path) -> None:
    """Their hashes are checked as those of the graphs, and they may be replaced with the bundle."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in bundles["outside"].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())

    assert set(WEIGHTS) <= set(load_manifest(folder).sha256)
    assert bundle.is_bundle(folder)
    content = bytearray((folder / WEIGHTS[1]).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / WEIGHTS[1]).write_bytes(content)
    with pytest.raises(BundleError, match=r"decoder\.onnx\.weights does not have the sha256"):
        load_manifest(folder)
    (folder / WEIGHTS[1]).unlink()
    with pytest.raises(BundleError, match=r"decoder\.onnx\.weights is missing"):
        load_manifest(folder)


def test_weights_are_found_beside_the_graph(
    bundles: dict[str, Path], checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the working directory, from where the bundle may be named."""
    monkeypatch.chdir(bundles["outside"].parent)
    encoded = BundleSession(Path("outside")).encode(random_sources(checkpoint, [5]))

    assert np.isfinite(encoded["cross_key.0"]).all()
