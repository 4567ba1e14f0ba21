"""Export and its gate: graphs agree with PyTorch, and planted faults do not get through."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest

from dragoman.export import bundle
from dragoman.export.bundle import load_manifest
from dragoman.export.decode import BundleSession
from dragoman.export.errors import ExportError, VerificationError
from dragoman.export.verify import verify
from dragoman.export.write import write_bundle
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.search import greedy
from tests.fakes.bundles import make_checkpoint, random_sources

NORMS: tuple[Literal["pre", "post"], ...] = ("pre", "post")


@pytest.fixture(scope="module", params=NORMS)
def checkpoint(request: pytest.FixtureRequest) -> Checkpoint:
    return make_checkpoint(norm_position=request.param)


@pytest.fixture(scope="module")
def fp32(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fp32") / "bundle"
    write_bundle(checkpoint, out, name="b", precision="fp32", verify=None)
    return out


@pytest.fixture(scope="module")
def int8(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("int8") / "bundle"
    write_bundle(checkpoint, out, name="b", precision="int8", verify=None)
    return out


def test_verification_passes(checkpoint: Checkpoint, fp32: Path) -> None:
    """Logits within the tolerance, 200 texts equal to PyTorch's, batched equals alone."""
    report = verify(fp32, checkpoint, None)

    assert report.problems == ()
    assert report.sentences == 200
    assert report.identical + report.ties == 200
    assert report.max_logit_difference < 1e-3


def test_texts_are_varied(checkpoint: Checkpoint, fp32: Path) -> None:
    """Equality of texts would prove nothing if they were all the same."""
    sources = random_sources(checkpoint, [3, 9, 20, 40])
    found = BundleSession(fp32).greedy(sources, [20] * 4)

    assert len({tuple(ids) for ids in found}) > 1
    assert max(len(set(ids)) for ids in found) > 1


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("length", [1, 2, 7, 63, 64, 65, 70])
def test_no_size_is_baked_in(checkpoint: Checkpoint, fp32: Path, batch: int, length: int) -> None:
    """Both graphs run at sizes other than the example's and give PyTorch's texts."""
    sources = random_sources(checkpoint, [length] * batch)
    limits = [8] * batch

    expected = greedy(checkpoint.model, sources, limits, checkpoint.tokenizer.special)
    assert BundleSession(fp32).greedy(sources, limits) == expected


def test_int8_rows_do_not_depend_on_the_batch(checkpoint: Checkpoint, int8: Path) -> None:
    """Each activation row has its own scale: logits of a batch equal those alone, to the bit."""
    session = BundleSession(int8)
    sources = random_sources(checkpoint, [12, 12, 12])
    tokens, lengths = np.array([[5, 6]] * 3), np.zeros(3, np.int64)
    encoded, states = session.encode(sources), session.initial_states(3, 4)
    _, together, _ = session.step(tokens, lengths, states, encoded)
    alone = session.encode(sources[:1])
    _, single, _ = session.step(tokens[:1], lengths[:1], session.initial_states(1, 4), alone)

    np.testing.assert_array_equal(together[:1], single)


def test_int8_is_close_and_smaller(checkpoint: Checkpoint, fp32: Path, int8: Path) -> None:
    """Cross-attention keys differ by a few percent of their spread; matrices are stored in 8 bits."""
    sources = random_sources(checkpoint, [12])
    exact, near = (BundleSession(folder).encode(sources)["cross_key.0"] for folder in (fp32, int8))

    assert 0 < np.abs(exact - near).max() < 0.2 * exact.std() * 4
    assert (int8 / bundle.DECODER).stat().st_size < 0.7 * (fp32 / bundle.DECODER).stat().st_size


def test_the_cache_is_written_by_standard_operators(fp32: Path) -> None:
    """One TensorScatter per cache tensor, one Attention per attention layer, with one output each."""
    nodes = onnx.load(fp32 / bundle.DECODER).graph.node
    attention = [node for node in nodes if node.op_type == "Attention"]

    assert sum(node.op_type == "TensorScatter" for node in nodes) == 4
    assert len(attention) == 4
    assert all(len(node.output) == 1 for node in attention)
    assert {node.domain for node in nodes} == {""}


def test_names_and_axes_are_those_of_the_contract(fp32: Path) -> None:
    """Inputs and outputs of both graphs are what the bundle module documents."""
    decoder = onnx.load(fp32 / bundle.DECODER).graph
    inputs = {i.name: [d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim] for i in decoder.input}

    assert inputs["input_ids"] == ["batch", "new"]
    assert inputs["cache_lengths"] == ["batch"]
    assert inputs["self_key.1"] == ["batch", 4, "cache", 8]
    assert inputs["cross_value.0"] == ["batch", 4, "source", 8]
    assert [o.name for o in decoder.output][:2] == ["next_ids", "logits"]


def test_refused_bundle_is_not_written(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """A bundle that fails its verification leaves nothing behind, and an older one stays."""

    def refuse(_: Path) -> dict[str, Any]:
        raise VerificationError("no")

    out = tmp_path / "bundle"
    with pytest.raises(VerificationError):
        write_bundle(checkpoint, out, name="b", precision="fp32", verify=refuse)

    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_no_bundle_is_not_replaced(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Someone's files are not deleted by a mistyped --out."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / bundle.MANIFEST).write_text("{}")
    (tmp_path / "photos" / "train.tsv").write_text("a\tb\n")
    with pytest.raises(ExportError, match="exists and is not a bundle"):
        write_bundle(checkpoint, tmp_path / "photos", name="b", precision="fp32", verify=None)


def test_manifest_describes_the_model(int8: Path) -> None:
    """Shape, limits and devices come from the checkpoint and the precision."""
    manifest = load_manifest(int8)

    assert (manifest.precision, manifest.devices) == ("int8", ("cpu",))
    assert (manifest.shape.num_heads, manifest.shape.head_dim, manifest.shape.num_decoder_layers) == (4, 8, 2)
    assert manifest.limits.max_target_tokens == 24
    assert manifest.model["d_ff"] == 64


def test_a_bundle_is_replaced(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Exporting again to the same folder is what people do all day, also through a symbolic link."""
    out, link = tmp_path / "bundle", tmp_path / "link"
    write_bundle(checkpoint, out, name="old", precision="fp32", verify=None)
    link.symlink_to(out)
    write_bundle(checkpoint, link, name="new", precision="fp32", verify=None)

    assert load_manifest(out).name == "new"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bundle", "link"]
