"""Fetch text from Debian packages without installing anything.

All state (index lists, caches, downloads) lives in the work folder, and the
machine's own package status is ignored. So a fresh machine needs no prior
`apt-get update`, no privileges are needed, and the result does not depend on
what is installed. The configured package archives decide the versions.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.model.corpus.errors import FetchError, ToolMissingError

logger = logging.getLogger(__name__)

_TOOLS = ("apt-get", "apt-cache", "dpkg-deb")
_COPYRIGHT = re.compile(r"/doc/[^/]+/copyright$")
_ERROR_LINES = 8


@dataclass(frozen=True, slots=True)
class Package:
    """Describe an unpacked package: where its files are and its version."""

    name: str
    version: str
    root: Path


class Archive:
    """Give access to the configured package archives for one language."""

    def __init__(self, work: Path, locale: str) -> None:
        """Prepare access; nothing is downloaded yet.

        Args:
            work: Folder for downloads; several languages may use it in turn.
            locale: Language whose package descriptions are fetched beside English.

        Raises:
            ToolMissingError: A packaging tool is not installed.
        """
        missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
        if missing:
            raise ToolMissingError(
                f"{', '.join(missing)} not found; the corpus is read from Debian packages, "
                "so build it on Debian or in a Debian container"
            )
        self._work = work.resolve()
        self._locale = locale
        self._lists = self._work / "lists" / locale

    def update(self) -> None:
        """Download the index lists, unless an earlier run completed them.

        Raises:
            FetchError: The lists could not be downloaded completely.
        """
        if self._lists.is_dir():
            return
        partial = self._lists.with_name(self._locale + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        (partial / "partial").mkdir(parents=True)
        self._apt("apt-get", "update", lists=partial)
        for locale in ("en", self._locale):
            if not list(partial.glob(_description_files(locale))):
                raise FetchError(
                    f"apt-get update brought no package descriptions for {locale!r}; "
                    "check that a Debian `main` archive is configured for apt, then run again"
                )
        partial.rename(self._lists)

    def descriptions(self, locale: str) -> Iterator[str]:
        """Yield the contents of the description indexes of a language."""
        for path in sorted(self._lists.glob(_description_files(locale))):
            yield path.read_text("utf-8", "replace")

    def description_digests(self) -> dict[str, str]:
        """Return the SHA-256 of each description index, by archive and name.

        Indexes have no version number; the digest stands in for one.
        """
        return {
            # The file name starts with the host, which is not worth recording.
            path.name.partition("_dists_")[2]: hashlib.sha256(path.read_bytes()).hexdigest()
            for locale in ("en", self._locale)
            for path in sorted(self._lists.glob(_description_files(locale)))
        }

    def package_names(self) -> frozenset[str]:
        """Return the names of all packages in the archives."""
        return frozenset(self._apt("apt-cache", "pkgnames").split())

    def unpack(self, names: Sequence[str], wanted: re.Pattern[str]) -> Iterator[Package]:
        """Yield packages with their wanted files unpacked, downloading what is missing.

        Args:
            names: Package names.
            wanted: Matches the paths of files to unpack.

        Raises:
            FetchError: A package could not be downloaded or unpacked.
        """
        missing = [name for name in names if not self._is_unpacked(name, wanted)]
        downloads = self._work / "downloads"
        shutil.rmtree(downloads, ignore_errors=True)
        downloads.mkdir(parents=True)
        if missing:
            self._apt("apt-get", "download", *missing, folder=downloads)
        for name in names:
            if name in missing:
                self._unpack_one(name, downloads, wanted)
            folder = self._folder(name)
            version = json.loads((folder / "package.json").read_text("utf-8"))["version"]
            yield Package(name, version, folder / "root")
        shutil.rmtree(downloads, ignore_errors=True)

    def _folder(self, name: str) -> Path:
        return self._work / "packages" / name

    def _is_unpacked(self, name: str, wanted: re.Pattern[str]) -> bool:
        """Return whether a package is unpacked with the files wanted now."""
        try:
            note = json.loads((self._folder(name) / "package.json").read_text("utf-8"))
        except (OSError, ValueError):
            return False
        return bool(note.get("wanted") == wanted.pattern)

    def _unpack_one(self, name: str, downloads: Path, wanted: re.Pattern[str]) -> None:
        """Unpack into a temporary name, so that a folder is complete or absent."""
        found = list(downloads.glob(f"{name}_*.deb"))
        if len(found) != 1:
            raise FetchError(f"apt-get download {name} left {len(found)} files instead of one; run again")
        deb = found[0]
        partial = self._folder(name).with_name(name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        (partial / "root").mkdir(parents=True)
        _extract(deb, partial / "root", wanted)
        version = _run(["dpkg-deb", "--field", str(deb), "Version"], self._work).strip()
        note = {"name": name, "version": version, "wanted": wanted.pattern}
        (partial / "package.json").write_text(json.dumps(note), "utf-8")
        shutil.rmtree(self._folder(name), ignore_errors=True)
        partial.rename(self._folder(name))
        deb.unlink()

    def _apt(self, tool: str, *arguments: str, lists: Path | None = None, folder: Path | None = None) -> str:
        """Run an apt tool on the work folder's own state and return its output."""
        status = self._work / "apt" / "status"
        cache = self._work / "apt" / "cache"
        (cache / "archives" / "partial").mkdir(parents=True, exist_ok=True)
        status.touch()
        options = {
            "Dir::State::lists": lists or self._lists,
            "Dir::State::status": status,
            "Dir::Cache": cache,
            "Acquire::Languages": f"en,{self._locale}",
            "Acquire::GzipIndexes": "false",
            "Acquire::Retries": "3",
            # A list that failed must fail the run: a smaller corpus would
            # otherwise look like a complete one.
            "APT::Update::Error-Mode": "any",
            # The unprivileged user apt switches to cannot write to the work folder.
            "APT::Sandbox::User": "root",
        }
        command = [tool, "-q"] if tool == "apt-get" else [tool]
        for key, value in options.items():
            command += ["-o", f"{key}={value}"]
        try:
            return _run([*command, *arguments], folder or self._work)
        except FetchError as error:
            raise FetchError(
                f"`{tool} {' '.join(arguments)}` failed: {error}; check the network and the archives "
                f"configured for apt, then run again (to refresh the index lists, delete {self._lists})"
            ) from None


def _description_files(locale: str) -> str:
    return f"*_i18n_Translation-{locale.replace('_', '%5f')}"


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()][-_ERROR_LINES:]
        raise FetchError(" / ".join(lines) or f"exit status {done.returncode}")
    return done.stdout


def _extract(deb: Path, root: Path, wanted: re.Pattern[str]) -> None:
    """Write the wanted regular files of a package below a folder."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE) as process:
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as members:
                for member in members:
                    if member.isfile() and (wanted.search(member.name) or _COPYRIGHT.search(member.name)):
                        members.extract(member, root, filter="data")
        except (tarfile.TarError, OSError) as error:
            process.kill()
            raise FetchError(f"{deb.name} cannot be unpacked: {error}; run again to download it anew") from error
    if process.returncode:
        raise FetchError(f"{deb.name} is damaged (dpkg-deb exit status {process.returncode}); run again")
