"""Fetching packages, with stand-ins for the packaging tools."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path

import pytest

from dragoman.model.corpus.debian import Archive
from dragoman.model.corpus.errors import FetchError, FolderBusyError, ToolMissingError
from dragoman.model.corpus.fetch import fetch_debian, no_progress
from dragoman.model.corpus.languages import target_language
from dragoman.model.corpus.lock import locked
from dragoman.model.corpus.sources import select_sources

WANTED = re.compile(r"\.html$")

# Stand-ins: a ".deb" is a plain tar file that apt-get copies from $ARCHIVE.
APT_GET = """#!/bin/sh
echo "$@" >> "$ARCHIVE/calls"
while [ $# -gt 0 ]; do
  case "$1" in
    -q) ;;
    -o) case "$2" in Dir::State::lists=*) lists="${2#*=}";; esac; shift;;
    update)
      [ -e "$ARCHIVE/offline" ] && { echo "E: no network" >&2; exit 100; }
      for code in en de; do
        [ -e "$ARCHIVE/$code" ] && cp "$ARCHIVE/$code" "$lists/host_dists_stable_main_i18n_Translation-$code"
      done; exit 0;;
    download) ;;
    *) cp "$ARCHIVE/$1_1.0_all.deb" . || { echo "E: Unable to locate $1" >&2; exit 100; };;
  esac
  shift
done
"""
APT_CACHE = '#!/bin/sh\ncat "$ARCHIVE/names"\n'
DPKG_DEB = '#!/bin/sh\nif [ "$1" = --field ]; then echo 1.0; else cat "$2"; fi\n'


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the stand-ins first on PATH and return the folder they serve from."""
    tools, served = tmp_path / "bin", tmp_path / "archive"
    tools.mkdir()
    served.mkdir()
    for name, script in (("apt-get", APT_GET), ("apt-cache", APT_CACHE), ("dpkg-deb", DPKG_DEB)):
        (tools / name).write_text(script, "utf-8")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    monkeypatch.setenv("ARCHIVE", str(served))
    (served / "en").write_text("Description-md5: a\nDescription-en: tool\n", "utf-8")
    (served / "de").write_text("Description-md5: a\nDescription-de: Werkzeug\n", "utf-8")
    (served / "names").write_text("docs\n", "utf-8")
    _serve(served, "docs", {"./usr/a.html": "page", "./usr/b.png": "picture", "./usr/share/doc/docs/copyright": "free"})
    return served


def _serve(served: Path, name: str, files: dict[str, str]) -> None:
    with tarfile.open(served / f"{name}_1.0_all.deb", "w") as deb:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(text)
            deb.addfile(member, io.BytesIO(text.encode()))


def _calls(served: Path, word: str) -> int:
    return sum(word in line.split() for line in (served / "calls").read_text("utf-8").splitlines())


def test_only_wanted_files_are_unpacked(archive: Path, tmp_path: Path) -> None:
    """The wanted files and the copyright note arrive, with the version noted."""
    del archive
    (package,) = Archive(tmp_path / "archive-cache", "de").unpack(["docs"], WANTED)

    files = {path.relative_to(package.root).as_posix() for path in package.root.rglob("*") if path.is_file()}
    assert package.version == "1.0"
    assert files == {"usr/a.html", "usr/share/doc/docs/copyright"}


def test_second_run_downloads_nothing(archive: Path, tmp_path: Path) -> None:
    """Complete lists and packages in the work folder are used again."""
    for _ in range(2):
        client = Archive(tmp_path / "archive-cache", "de")
        client.update()
        list(client.unpack(["docs"], WANTED))

    assert _calls(archive, "update") == 1
    assert _calls(archive, "download") == 1


def test_half_unpacked_package_is_done_again(archive: Path, tmp_path: Path) -> None:
    """What an interrupted run left behind is replaced, not trusted."""
    left_over = tmp_path / "archive-cache/packages/docs.partial" / "root" / "usr/c.html"
    left_over.parent.mkdir(parents=True)
    left_over.write_text("half", "utf-8")

    (package,) = Archive(tmp_path / "archive-cache", "de").unpack(["docs"], WANTED)

    assert _calls(archive, "download") == 1
    assert (package.root / "usr/a.html").is_file()
    assert not (package.root / "usr/c.html").exists()


def test_damaged_package_leaves_no_folder(archive: Path, tmp_path: Path) -> None:
    """An unpacking error is reported and the package counts as missing."""
    (archive / "docs_1.0_all.deb").write_bytes(b"\x01" * 2000)

    with pytest.raises(FetchError, match=r"docs_1\.0_all\.deb"):
        list(Archive(tmp_path / "archive-cache", "de").unpack(["docs"], WANTED))

    assert not (tmp_path / "archive-cache/packages/docs").exists()


def test_descriptions_are_read_per_language(archive: Path, tmp_path: Path) -> None:
    """Index files are found by language, and their digests stand in for versions."""
    del archive
    client = Archive(tmp_path / "archive-cache", "de")
    client.update()

    assert list(client.descriptions("de")) == ["Description-md5: a\nDescription-de: Werkzeug\n"]
    assert list(client.description_digests()) == [
        "stable_main_i18n_Translation-en",
        "stable_main_i18n_Translation-de",
    ]


def test_failed_update_says_what_was_tried(archive: Path, tmp_path: Path) -> None:
    """The message has the command, apt's own words and advice; no lists count as complete."""
    (archive / "offline").touch()

    with pytest.raises(FetchError, match=r"apt-get update.*no network.*run again"):
        Archive(tmp_path / "archive-cache", "de").update()

    assert not (tmp_path / "archive-cache/lists/de").exists()


def test_update_without_translations_fails(archive: Path, tmp_path: Path) -> None:
    """Archives that lack the language are noticed at once."""
    (archive / "de").unlink()

    with pytest.raises(FetchError, match="'de'"):
        Archive(tmp_path / "archive-cache", "de").update()


def test_missing_tools_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the Debian tools gets a clear message."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ToolMissingError, match="apt-get, apt-cache, dpkg-deb"):
        Archive(tmp_path / "archive-cache", "de")


def test_fetch_reports_needed_packages_that_do_not_exist(archive: Path, tmp_path: Path) -> None:
    """A needed package missing from the archives is named with its source."""
    del archive
    german = target_language("en-de")

    with pytest.raises(FetchError, match="lohelp needs libreoffice-help-en-us, libreoffice-help-de"):
        fetch_debian(tmp_path / "archive-cache", german, select_sources(german, ["lohelp"]), no_progress)


def test_fetch_leaves_optional_packages_out(archive: Path, tmp_path: Path) -> None:
    """Missing originals of manual pages make the source smaller, which is recorded."""
    german = target_language("en-de")
    names = ("manpages-de", "manpages-de-dev", "manpages")
    (archive / "names").write_text("\n".join(names) + "\n", "utf-8")
    for name in names:
        _serve(archive, name, {"./usr/share/man/man1/x.1.gz": "x"})

    fetched = fetch_debian(tmp_path / "archive-cache", german, select_sources(german, ["ddtp", "man"]), no_progress)

    assert fetched.versions["man"] == dict.fromkeys(names, "1.0")
    assert "coreutils" in fetched.left_out["man"]
    assert len(fetched.versions["ddtp"]) == 2


def test_folder_is_held_by_one_run(tmp_path: Path) -> None:
    """A second run is refused while the first one holds the folder, and may follow it."""
    with locked(tmp_path), pytest.raises(FolderBusyError, match="in use by another corpus run"), locked(tmp_path):
        pass

    with locked(tmp_path):
        pass
