"""The whole build on a tiny handmade archive, and the command around it."""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from dragoman.model.commands import corpus as command
from dragoman.model.corpus import build as build_module
from dragoman.model.corpus.build import build_corpus
from dragoman.model.corpus.errors import CorpusError, FolderBusyError, UnknownPairError, UnknownSourceError
from dragoman.model.corpus.fetch import Fetched, Progress
from dragoman.model.corpus.languages import Language
from dragoman.model.corpus.lock import locked
from dragoman.model.corpus.manifest import file_digest
from dragoman.model.corpus.sources import Source, Unpacked

_P = ParamSpec("_P")
_T = TypeVar("_T")

GNOME_PAGE = "<page><title>{}</title><p>{}</p></page>"
DICTIONARY_LINE = (
    "Er geht heute nach Hause. | Hand {f} | Hilfe suchen :: He is going home today. | hand | look for help\n"
)
OUTPUTS = {"train.tsv", "valid.tsv", "test.gnomehelp.tsv", "test.ding.tsv", "manifest.json"}


class FakeFetch:
    """Write tiny packages instead of downloading, and count the calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, work: Path, language: Language, sources: Sequence[Source], progress: Progress) -> Fetched:
        """Return packages with a pair or two of each source."""
        del progress
        self.calls += 1
        files = {
            "libreoffice-help-en-us/usr/share/libreoffice/help/en-US/a.html": '<p id="p">Open the file.</p>',
            "libreoffice-help-de/usr/share/libreoffice/help/de/a.html": '<p id="p">Öffnen Sie die Datei.</p>',
            "gnome-user-docs/usr/share/help/C/a.page": GNOME_PAGE.format("Open the file", "Look for help."),
            "gnome-user-docs/usr/share/help/de/a.page": GNOME_PAGE.format("Die Datei öffnen", "Suchen Sie Hilfe."),
            "trans-de-en/usr/share/trans/de-en": DICTIONARY_LINE,
            "coreutils/usr/share/man/man1/ls.1.gz": ".SH NAME\nls \\- list files\n",
            "manpages-de/usr/share/man/de/man1/ls.1.gz": ".SH BEZEICHNUNG\nls \\- Dateien auflisten\n",
        }
        for name, text in files.items():
            path = work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        roots = {name.partition("/")[0]: work / name.partition("/")[0] for name in files}
        return Fetched(
            Unpacked(roots, lambda locale: iter([_descriptions(locale)])),
            {source.name: dict.fromkeys(source.packages(language), "1.0") for source in sources},
            {source.name: [] for source in sources},
        )


def _descriptions(locale: str) -> str:
    words = {"en": "simple tool number", "de": "einfaches Werkzeug Nummer"}[locale]
    return "\n\n".join(f"Description-md5: m{i}\nDescription-{locale}: {words} {i}" for i in range(200))


def _rows(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text("utf-8").split("\n")[:-1]]


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")}


def test_build_writes_a_split_by_origin(tmp_path: Path) -> None:
    """Test sources stay out of training, and training sources out of the tests."""
    build_corpus("en-de", tmp_path, fetch=FakeFetch())

    assert _names(tmp_path) == OUTPUTS
    assert {row[2] for row in _rows(tmp_path / "train.tsv")} == {"ddtp", "lohelp", "man", "dict"}
    assert len(_rows(tmp_path / "valid.tsv")) > 0
    assert _rows(tmp_path / "test.ding.tsv") == [["He is going home today.", "Er geht heute nach Hause.", "ding"]]


def test_leaked_test_pairs_are_removed_and_counted(tmp_path: Path) -> None:
    """`Open the file` is trained on as `Open the file.`, so it leaves the test set."""
    result = build_corpus("en-de", tmp_path, fetch=FakeFetch())

    assert [row[0] for row in _rows(tmp_path / "test.gnomehelp.tsv")] == ["Look for help."]
    assert result.manifest.files["test.gnomehelp.tsv"].leaked == 1


def test_words_change_neither_validation_nor_tests(tmp_path: Path) -> None:
    """A dictionary word may be spelled as its source; one held out is dropped and counted."""
    result = build_corpus("en-de", tmp_path / "with", fetch=FakeFetch())
    names = ["ddtp", "lohelp", "man", "gnomehelp", "ding"]
    build_corpus("en-de", tmp_path / "without", source_names=names, fetch=FakeFetch())

    for name in OUTPUTS - {"manifest.json", "train.tsv"}:
        assert _rows(tmp_path / "with" / name) == _rows(tmp_path / "without" / name)
    added = [row for row in _rows(tmp_path / "with" / "train.tsv") if row[2] == "dict"]
    assert added == [["hand", "Hand", "dict"]]
    assert result.manifest.files["train.tsv"].leaked == 1
    assert result.manifest.sources["dict"].role == "supplement"


def test_manifest_describes_the_files(tmp_path: Path) -> None:
    """Counts, digests, versions and licences are recorded."""
    build_corpus("en-de", tmp_path, fetch=FakeFetch())
    manifest = json.loads((tmp_path / "manifest.json").read_text("utf-8"))

    assert manifest["pair"] == "en-de"
    assert manifest["format_version"] == 1
    assert manifest["sources"]["gnomehelp"]["packages"] == {"gnome-user-docs": "1.0"}
    assert manifest["sources"]["gnomehelp"]["licence"] == "CC-BY-SA-3.0"
    for name in OUTPUTS - {"manifest.json"}:
        entry = manifest["files"][name]
        rows = _rows(tmp_path / name)
        assert entry["pairs"] == len(rows)
        assert entry["sha256"] == file_digest(tmp_path / name)


def test_two_builds_give_the_same_bytes(tmp_path: Path) -> None:
    """The same packages give the same corpus."""
    first = build_corpus("en-de", tmp_path / "a", fetch=FakeFetch())
    second = build_corpus("en-de", tmp_path / "b", fetch=FakeFetch())

    assert first.manifest == second.manifest


def test_second_run_does_nothing(tmp_path: Path) -> None:
    """A complete corpus is recognised and left alone."""
    fetch = FakeFetch()

    results = [build_corpus("en-de", tmp_path, fetch=fetch) for _ in range(2)]

    assert [result.is_new for result in results] == [True, False]
    assert results[0].manifest == results[1].manifest
    assert fetch.calls == 1


@pytest.mark.parametrize("name", ["train.tsv", "manifest.json"])
def test_damaged_output_is_built_anew(tmp_path: Path, name: str) -> None:
    """A changed file is not taken for a complete corpus."""
    result = build_corpus("en-de", tmp_path, fetch=FakeFetch())
    (tmp_path / name).write_text("{}", "utf-8")

    again = build_corpus("en-de", tmp_path, fetch=FakeFetch())

    assert again.is_new
    assert again.manifest == result.manifest


def test_other_sources_replace_the_corpus(tmp_path: Path) -> None:
    """With fewer sources the files of the left-out ones disappear."""
    build_corpus("en-de", tmp_path, fetch=FakeFetch())

    build_corpus("en-de", tmp_path, source_names=["gnomehelp", "ddtp"], fetch=FakeFetch())

    assert _names(tmp_path) == OUTPUTS - {"test.ding.tsv"}


@pytest.mark.parametrize(("step", "passes"), [("rejection", 5), ("split", 0), ("_write_file", 1)])
def test_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, passes: int) -> None:
    """An exception in mid-build leaves neither corpus files nor a manifest."""
    monkeypatch.setattr(build_module, step, _failing(getattr(build_module, step), passes))

    with pytest.raises(RuntimeError, match="power cut"):
        build_corpus("en-de", tmp_path, fetch=FakeFetch())

    assert _names(tmp_path) == set()
    assert not (tmp_path / ".staging").exists()


def test_failed_rebuild_keeps_the_earlier_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old files stay complete until the new ones are."""
    old = build_corpus("en-de", tmp_path, fetch=FakeFetch())
    monkeypatch.setattr(build_module, "_write_file", _failing(build_module._write_file, 1))

    with pytest.raises(RuntimeError, match="power cut"):
        build_corpus("en-de", tmp_path, source_names=["ddtp", "ding"], fetch=FakeFetch())

    assert build_corpus("en-de", tmp_path, fetch=FakeFetch()).is_new is False
    assert file_digest(tmp_path / "train.tsv") == old.manifest.files["train.tsv"].sha256


def _failing(function: Callable[_P, _T], passes: int) -> Callable[_P, _T]:
    """Let some calls pass and fail the next."""
    calls = iter([False] * passes)

    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if next(calls, True):
            raise RuntimeError("power cut")
        return function(*args, **kwargs)

    return wrapped


def test_source_without_pairs_is_an_error(tmp_path: Path) -> None:
    """A package layout that no reader understands does not pass as a smaller corpus."""

    def fetch_nothing(work: Path, language: Language, sources: Sequence[Source], progress: Progress) -> Fetched:
        fetched = FakeFetch()(work, language, sources, progress)
        return Fetched(Unpacked(fetched.unpacked.packages, _no_text), fetched.versions, fetched.left_out)

    with pytest.raises(CorpusError, match="source ddtp gave no pairs"):
        build_corpus("en-de", tmp_path, fetch=fetch_nothing)


def _no_text(_locale: str) -> Iterator[str]:
    return iter(())


def test_unknown_pair_is_refused(tmp_path: Path) -> None:
    """The pair is checked before anything is written."""
    with pytest.raises(UnknownPairError, match="en-pt-BR"):
        build_corpus("de-en", tmp_path / "out", fetch=FakeFetch())

    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("pair", "names", "message"),
    [
        ("en-fr", ["ddtp", "ding"], "'ding' cannot be used for en-fr"),
        ("en-de", ["wikipedia"], "choose from ddtp, lohelp, man, dict, gnomehelp, ding"),
        ("en-de", [], "no source"),
        ("en-de", ["ding"], "add one of ddtp, lohelp, man"),
        ("en-de", ["dict", "ding"], "add one of ddtp, lohelp, man"),
    ],
)
def test_wrong_sources_are_refused(tmp_path: Path, pair: str, names: list[str], message: str) -> None:
    """Unknown sources, sources of other pairs and test-only choices are named."""
    with pytest.raises(UnknownSourceError, match=message):
        build_corpus(pair, tmp_path, source_names=names, fetch=FakeFetch())


def test_work_folder_in_use_is_refused(tmp_path: Path) -> None:
    """Two builds must not share downloads at once."""
    with locked(tmp_path / "shared"), pytest.raises(FolderBusyError, match="shared is in use"):
        build_corpus("en-de", tmp_path / "out", work=tmp_path / "shared", fetch=FakeFetch())


def test_command_reports_files_and_says_when_nothing_was_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command prints the counts of each file, and a second run says it did nothing."""
    monkeypatch.setattr(command, "build_corpus", partial(build_corpus, fetch=FakeFetch()))
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(["build", "--pair", "en-de", "--out", str(tmp_path), "--sources", "ddtp, ding"])

    statuses = [command.run(args), command.run(args)]
    printed = capsys.readouterr()

    assert statuses == [0, 0]
    assert f"en-de corpus built: {tmp_path}" in printed.out
    assert f"already complete, nothing to do: {tmp_path}" in printed.out
    assert "test.ding.tsv: 1 pairs" in printed.out
    assert "read ddtp" in printed.err
