"""Where `--out` may lead, and what a user is told where it may not."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from dragoman.export import bundle
from dragoman.export.destination import require_destination, writing
from dragoman.export.errors import ExportError
from dragoman.export.staging import put_in_place, scratch_beside

TINY = Path(__file__).parents[2] / "data" / "tiny-v1"


def require(out: Path) -> None:
    require_destination(out, bundle.is_bundle, "a bundle")


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    shutil.copytree(TINY, tmp_path / "outer")
    return tmp_path / "outer"


def test_new_empty_and_old_folders_may_be_written(tmp_path: Path, whole: Path) -> None:
    """What would not be missed is replaced."""
    (tmp_path / "empty").mkdir()

    for out in (tmp_path / "new", tmp_path / "deep" / "new", tmp_path / "empty", whole):
        require(out)


def test_an_empty_folder_is_replaced(tmp_path: Path) -> None:
    """Somebody made it for the bundle."""
    (tmp_path / "empty").mkdir()
    with scratch_beside(tmp_path / "empty") as scratch:
        (scratch / "made").mkdir()
        (scratch / "made" / "file").touch()
        put_in_place(scratch / "made", tmp_path / "empty", scratch)

    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["file"]


@pytest.mark.parametrize("deeper", ["sub", "sub/sub"])
def test_nothing_is_written_into_a_bundle(whole: Path, deeper: str) -> None:
    """The outer one could never be replaced again without losing the inner one."""
    with pytest.raises(ExportError, match=r"outer is a bundle, which is replaced .* choose another --out, such as"):
        require(whole / deeper)


def test_nothing_is_written_into_other_folders_that_are_replaced_as_a_whole(tmp_path: Path) -> None:
    """Models of CTranslate2, and checkpoints, which training deletes; a run is no such folder."""
    saved = tmp_path / "run" / "checkpoint-00000300"
    other = tmp_path / "ct2"
    for folder, names in ((saved, ["config.json"]), (other, ["config.json", "model.bin"])):
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).touch()

    with pytest.raises(ExportError, match="is a checkpoint, which"):
        require(saved / "bundle")
    with pytest.raises(ExportError, match="is a model of CTranslate2, which"):
        require(other / "bundle")
    require(tmp_path / "run" / "bundle")


def test_a_bundle_with_more_in_it_is_not_replaced(whole: Path) -> None:
    """What would be lost is named."""
    for name in ("notes.txt", "a", "b", "c"):
        (whole / name).mkdir()

    with pytest.raises(ExportError, match=r"besides a bundle it holds a, b, c and 1 more, which would be lost"):
        require(whole)


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    """As the place itself, or as a folder above it."""
    (tmp_path / "file").touch()

    with pytest.raises(ExportError, match="there is a file of that name"):
        require(tmp_path / "file")
    for out in (tmp_path / "file" / "out", tmp_path / "file" / "deep" / "out"):
        with pytest.raises(ExportError, match=r"/file is not a folder; choose another --out"):
            require(out)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EACCES, "Permission denied for /disk/x; choose a folder that you may write to"),
        (errno.EROFS, "Read-only file system for /disk/x; choose a folder"),
        (errno.ENOSPC, "the disk is full; make room there"),
        (errno.ENAMETOOLONG, "choose a shorter --out"),
        (errno.EIO, r"Input/output error \(/disk/x\)"),
    ],
    ids=errno.errorcode.get,
)
def test_what_the_system_refuses_becomes_a_sentence(number: int, expected: str) -> None:
    """Without its number."""
    with (
        pytest.raises(ExportError, match=f"cannot write /disk/out: .*{expected}") as caught,
        writing(Path("/disk/out")),
    ):
        raise OSError(number, os.strerror(number), "/disk/x")

    assert "Errno" not in str(caught.value)
