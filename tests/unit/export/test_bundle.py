"""The bundle contract: what a manifest promises is checked before anything is served. Torch-free."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.export import bundle
from dragoman.export.bundle import Limits, Shape, load_manifest
from dragoman.export.errors import BundleError
from dragoman.model.tokenizers import SentencePieceTokenizer

TINY = Path(__file__).parents[2] / "data" / "tiny-v1"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "bundle"))


def edit(folder: Path, **changes: object) -> None:
    manifest = json.loads((folder / bundle.MANIFEST).read_text())
    (folder / bundle.MANIFEST).write_text(json.dumps({**manifest, **changes}))


def test_format_1_loads() -> None:
    """The committed bundle of format version 1 is readable by this version."""
    manifest = load_manifest(TINY)

    assert (manifest.name, manifest.source_language, manifest.target_language) == ("tiny", "en", "de")
    assert (manifest.precision, manifest.devices) == ("fp32", ("cpu", "cuda"))
    assert manifest.limits.max_source_tokens == 128


def test_manifest_survives_writing(tmp_path: Path) -> None:
    """Reading what was written gives an equal manifest."""
    manifest = load_manifest(TINY)
    copy = Path(shutil.copytree(TINY, tmp_path / "copy"))
    manifest.write(copy)

    assert load_manifest(copy) == manifest


def test_version_follows_the_content(copy: Path) -> None:
    """Renaming the model keeps the version; other weights change it."""
    before = load_manifest(copy).version
    edit(copy, name="other")
    assert load_manifest(copy).version == before

    (copy / SentencePieceTokenizer.FILE).write_bytes(b"other")
    name = SentencePieceTokenizer.FILE
    edit(copy, sha256={**load_hashes(copy), name: bundle.file_sha256(copy / name)})
    assert load_manifest(copy).version != before


def load_hashes(folder: Path) -> dict[str, str]:
    hashes: dict[str, str] = json.loads((folder / bundle.MANIFEST).read_text())["sha256"]
    return hashes


@pytest.mark.parametrize("name", [*bundle.GRAPHS, SentencePieceTokenizer.FILE])
def test_damaged_file_is_named(copy: Path, name: str) -> None:
    """One flipped byte is enough."""
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(BundleError, match=f"{name} does not have the sha256"):
        load_manifest(copy)


def test_all_missing_files_are_named(copy: Path) -> None:
    """One message for all problems."""
    (copy / bundle.ENCODER).unlink()
    (copy / bundle.DECODER).unlink()
    with pytest.raises(BundleError, match=r"encoder\.onnx is missing; decoder\.onnx is missing"):
        load_manifest(copy)


def test_other_format_version_is_refused(copy: Path) -> None:
    """The message says which version is read and what to do."""
    edit(copy, format_version=99)
    with pytest.raises(BundleError, match="has bundle format 99; this version reads 1"):
        load_manifest(copy)


@pytest.mark.parametrize("content", ["", "[]", "{}", "not json"])
def test_manifest_that_is_none_is_refused(copy: Path, content: str) -> None:
    """Whatever stands in the file, the error is ours."""
    (copy / bundle.MANIFEST).write_text(content)
    with pytest.raises(BundleError):
        load_manifest(copy)


def test_manifest_without_a_field_is_refused(copy: Path) -> None:
    """The missing field is named."""
    manifest = json.loads((copy / bundle.MANIFEST).read_text())
    del manifest["limits"]
    (copy / bundle.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="limits"):
        load_manifest(copy)


def test_a_manifest_from_before_there_were_cells_means_self_attention(copy: Path) -> None:
    """The fields that came later are absent from it, and stay absent: older servers refuse what they do not know."""
    before = json.loads((copy / bundle.MANIFEST).read_text())["shape"]
    manifest = load_manifest(copy)
    manifest.write(copy)

    assert (manifest.shape.decoder_layer, manifest.shape.cell_width) == (bundle.SELF_ATTENTION, 0)
    assert json.loads((copy / bundle.MANIFEST).read_text())["shape"] == before


def test_a_manifest_with_cells_survives_writing(copy: Path) -> None:
    """Kind and width of the state are in it."""
    shape = Shape(100, 2, 8, 3, decoder_layer=bundle.SSRU, cell_width=16)
    replace(load_manifest(copy), shape=shape).write(copy)

    assert load_manifest(copy).shape == shape


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_layer": "lstm"}, "shape.decoder_layer is .lstm.; this version knows self-attention, ssru"),
        ({"decoder_layer": "ssru"}, "shape.cell_width is 0; an ssru layer needs 1 or more"),
    ],
)
def test_a_state_that_nobody_knows_is_refused(copy: Path, changes: dict[str, object], message: str) -> None:
    """The message has the value and what there is."""
    shape = json.loads((copy / bundle.MANIFEST).read_text())["shape"]
    edit(copy, shape={**shape, **changes})
    with pytest.raises(BundleError, match=message):
        load_manifest(copy)


def test_state_tensors_of_both_kinds() -> None:
    """Names and sizes of a layer's state, in and out."""
    caches, cells = Shape(100, 2, 8, 3), Shape(100, 2, 8, 3, decoder_layer=bundle.SSRU, cell_width=16)

    assert caches.state_names(1) == ("self_key.1", "self_value.1")
    assert caches.updated_state_names(1) == ("updated_self_key.1", "updated_self_value.1")
    assert caches.state_size(5, 40) == (5, 2, 40, 8)
    assert cells.state_names(1) == ("cell.1",)
    assert cells.updated_state_names(1) == ("updated_cell.1",)
    assert cells.state_size(5, 40) == (5, 16)


def test_default_limit_grows_with_the_source() -> None:
    """Short texts get a margin, long ones end at the model's limit."""
    limits = Limits(max_source_tokens=128, max_target_tokens=100)

    assert [limits.default_max_new_tokens(n) for n in (1, 10, 128)] == [18, 36, 100]
