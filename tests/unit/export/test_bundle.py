"""The bundle contract: what a manifest promises is checked before anything is served. Torch-free."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dragoman.export import bundle
from dragoman.export.bundle import Limits, load_manifest
from dragoman.export.errors import BundleError

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

    (copy / bundle.TOKENIZER).write_bytes(b"other")
    edit(copy, sha256={**load_hashes(copy), bundle.TOKENIZER: bundle.file_sha256(copy / bundle.TOKENIZER)})
    assert load_manifest(copy).version != before


def load_hashes(folder: Path) -> dict[str, str]:
    hashes: dict[str, str] = json.loads((folder / bundle.MANIFEST).read_text())["sha256"]
    return hashes


@pytest.mark.parametrize("name", bundle.FILES)
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


def test_default_limit_grows_with_the_source() -> None:
    """Short texts get a margin, long ones end at the model's limit."""
    limits = Limits(max_source_tokens=128, max_target_tokens=100)

    assert [limits.default_max_new_tokens(n) for n in (1, 10, 128)] == [18, 36, 100]
