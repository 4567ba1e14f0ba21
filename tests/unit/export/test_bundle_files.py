"""Files of a bundle: each kind of damage is refused at load in a sentence that says what to do. Torch-free."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from dragoman.export import bundle
from dragoman.export.bundle import load_manifest, require_unchanged
from dragoman.export.errors import BundleError

DATA = Path(__file__).parents[2] / "data"
TINY = [DATA / f"tiny-v{version}" for version in bundle.FORMAT_VERSIONS]
FILES = [*bundle.GRAPHS, "tokenizer.model"]
WHAT_TO_DO = "Copy the bundle again from where it is whole, or export it again"


@pytest.fixture(params=TINY, ids=lambda folder: folder.name)
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(request.param, tmp_path / "bundle"))


def edit(folder: Path, **changes: Any) -> None:
    manifest = json.loads((folder / bundle.MANIFEST).read_text())
    (folder / bundle.MANIFEST).write_text(json.dumps({**manifest, **changes}))


def refusal(folder: Path) -> str:
    with pytest.raises(BundleError) as caught:
        load_manifest(folder)
    return str(caught.value)


def test_the_undamaged_copy_loads(copy: Path) -> None:
    """What the other tests break was whole."""
    assert load_manifest(copy).name == "tiny"


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_corrupted_byte_is_refused(copy: Path, name: str, where: str) -> None:
    """Wherever it is."""
    data = bytearray((copy / name).read_bytes())
    data[{"first": 0, "middle": len(data) // 2, "last": -1}[where]] ^= 1
    (copy / name).write_bytes(data)

    assert f"{name} does not have the sha256 that the manifest names; the file is damaged" in refusal(copy)
    assert WHAT_TO_DO in refusal(copy)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("left", [0, 0.5, -1])
def test_a_truncated_file_is_refused(copy: Path, name: str, left: float) -> None:
    """An interrupted copy leaves nothing, a part, or all but one byte."""
    size = (copy / name).stat().st_size
    os.truncate(copy / name, int(left * size) if left >= 0 else size - 1)

    assert f"{name} does not have the sha256" in refusal(copy)
    assert WHAT_TO_DO in refusal(copy)


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_hash_is_refused(copy: Path, name: str) -> None:
    """The file is whole, the manifest is not its own."""
    hashes = json.loads((copy / bundle.MANIFEST).read_text())["sha256"]
    edit(copy, sha256={**hashes, name: "0" * 64})

    assert f"{name} does not have the sha256" in refusal(copy)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_refused(copy: Path, name: str) -> None:
    """It is named."""
    (copy / name).unlink()

    assert f"{name} is missing" in refusal(copy)
    assert WHAT_TO_DO in refusal(copy)


def test_a_missing_file_that_only_the_hashes_name_is_refused(copy: Path) -> None:
    """Weights beside a graph are part of the bundle, too."""
    hashes = json.loads((copy / bundle.MANIFEST).read_text())["sha256"]
    edit(copy, sha256={**hashes, "decoder.onnx.data": "0" * 64})

    assert "decoder.onnx.data is missing" in refusal(copy)


@pytest.mark.parametrize("version", [0, 4, 99, "1", None, True, 1.0, [1]])
def test_another_format_version_is_refused(copy: Path, version: Any) -> None:
    """The message says which are read and what to do, also about what is no version at all."""
    edit(copy, format_version=version)

    assert f"has bundle format {version}; this version reads 1, 2, 3" in refusal(copy)
    assert "Use the version of Dragoman that wrote it or a newer one, or export it again" in refusal(copy)


def test_an_additional_file_is_ignored(copy: Path) -> None:
    """A README, a licence or what a file browser leaves behind does no harm."""
    before = load_manifest(copy)
    (copy / "README.md").write_text("about")
    (copy / ".DS_Store").write_bytes(b"\0")
    (copy / "folder").mkdir()

    assert load_manifest(copy) == before


@pytest.mark.parametrize("name", [*FILES, bundle.MANIFEST])
def test_a_link_out_of_the_folder_is_refused(copy: Path, tmp_path: Path, name: str) -> None:
    """A bundle is self-contained: a copy or an archive of this one would lack the file."""
    shutil.move(copy / name, tmp_path / "elsewhere")
    (copy / name).symlink_to(tmp_path / "elsewhere")

    message = refusal(copy)
    assert f"{name} is a link to {(tmp_path / 'elsewhere').resolve()}, outside the bundle" in message
    assert "put the file itself there (cp -L)" in message


def test_links_inside_the_folder_and_to_it_are_followed(copy: Path, tmp_path: Path) -> None:
    """Kubernetes mounts files that way, and a link to a folder is how people switch versions."""
    (copy / "..data").mkdir()
    for name in (*FILES, bundle.MANIFEST):
        shutil.move(copy / name, copy / "..data" / name)
        (copy / name).symlink_to(Path("..data") / name)
    (tmp_path / "current").symlink_to(copy)

    assert load_manifest(tmp_path / "current").name == "tiny"


def test_a_link_in_a_circle_is_refused(copy: Path) -> None:
    """It is as good as missing."""
    (copy / bundle.ENCODER).unlink()
    (copy / bundle.ENCODER).symlink_to(bundle.ENCODER)

    assert "encoder.onnx is missing" in refusal(copy)


def test_what_is_no_file_is_refused(copy: Path) -> None:
    """Reading a pipe would wait for ever."""
    (copy / bundle.ENCODER).unlink()
    os.mkfifo(copy / bundle.ENCODER)
    (copy / bundle.DECODER).unlink()
    (copy / bundle.DECODER).mkdir()

    assert "encoder.onnx is no file; decoder.onnx is no file" in refusal(copy)


def test_a_file_that_cannot_be_read_is_refused(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad disk or missing rights are told like every other problem."""

    def fail(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(bundle, "file_sha256", fail)

    assert "encoder.onnx cannot be read: Permission denied" in refusal(copy)


def test_an_archive_is_a_bundle_again_when_it_is_unpacked(copy: Path, tmp_path: Path) -> None:
    """A folder or a tar of it: nothing depends on owners, times or links."""
    with tarfile.open(tmp_path / "bundle.tar", "w") as archive:
        archive.add(copy, "other")
    with tarfile.open(tmp_path / "bundle.tar") as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")

    assert load_manifest(tmp_path / "unpacked" / "other") == load_manifest(copy)


def test_a_folder_that_was_replaced_while_it_was_loaded_is_noticed(copy: Path) -> None:
    """Else a graph of the new bundle might run with the tokenizer of the old one."""
    manifest = load_manifest(copy)
    require_unchanged(copy, manifest)
    other = next(folder for folder in TINY if bundle._read_manifest(folder) != manifest)
    shutil.rmtree(copy)
    shutil.copytree(other, copy)

    with pytest.raises(BundleError, match="was replaced while it was being loaded; load it again"):
        require_unchanged(copy, manifest)
