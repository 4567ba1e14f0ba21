"""An export that is killed leaves the old bundle, the new one or none: never a part of one.

Two proofs. One kills at every file operation in turn, with graphs that were exported before. The other kills
real runs of the command at the moments when a run is likely to be killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dragoman.export import bundle, staging, write
from dragoman.export.errors import ExportError
from dragoman.export.precision import Written
from dragoman.model.checkpoint import load_checkpoint, save_checkpoint
from tests.fakes.bundles import make_checkpoint

OLD = Path(__file__).parents[1] / "data" / "tiny-v1"
ROOT = Path(__file__).parents[2]
MOST_OPERATIONS = 400
KILLING_S = 30.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder, as `dragoman train` leaves it."""
    folder = tmp_path_factory.mktemp("run")
    small = make_checkpoint(num_encoder_layers=1, num_decoder_layers=1)
    save_checkpoint(folder, small.model, small.tokenizer, languages=("en", "de"), step=1)
    return folder


@pytest.fixture(scope="module")
def new(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of that checkpoint."""
    out = tmp_path_factory.mktemp("new") / "bundle"
    write.write_bundle(load_checkpoint(run), out, name="new", precision="fp32", verify=None)
    return out


def leftovers(out: Path) -> list[str]:
    return [path.name for path in out.parent.iterdir() if path.name != out.name]


def use_ready_graphs(ready: Path) -> None:
    """Make exports take the graphs of a bundle that was exported before."""

    def copy_graphs(_model: object, _special: object, folder: Path, *_: object) -> Written:
        for name in bundle.GRAPHS:
            shutil.copyfile(ready / name, folder / name)
        return Written(list(bundle.GRAPHS), cross_last=False)

    vars(write)["write_graphs"] = copy_graphs


def kill_at_each_operation(run: Path, ready: Path, parent: Path, replaces: bool) -> None:
    """Export once for each file operation of an export, and die just before it. Runs in a process of its own."""
    use_ready_graphs(ready)
    checkpoint = load_checkpoint(run)
    new = bundle.load_manifest(ready).version
    old = bundle.load_manifest(OLD).version
    ends = set()

    def export(out: Path) -> None:
        write.write_bundle(checkpoint, out, name="new", precision="fp32", verify=None)

    for operation in range(MOST_OPERATIONS):
        out = parent / str(operation) / "bundle"
        out.parent.mkdir()
        if replaces:
            shutil.copytree(OLD, out)
        child = os.fork()
        if child == 0:
            die_before(operation)
            export(out)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        finished = os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
        assert finished or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL), status
        found = bundle.load_manifest(out).version if out.exists() else None
        assert found in ((old, new) if replaces else (None, new)), f"operation {operation} left {found}"
        ends.add(found)
        export(out)  # whatever lies around, the next run succeeds and clears it away
        assert bundle.load_manifest(out).version == new
        assert leftovers(out) == [], f"operation {operation}"
        shutil.rmtree(out.parent)
        if finished:
            print(f"operations={operation} ends={len(ends)}")
            return
    raise AssertionError(f"an export still runs after {MOST_OPERATIONS} operations")


def die_before(operation: int) -> None:
    """Kill this process when it is about to do its file operation of that number."""
    left = operation
    names = ("open", "mkdir", "rename", "remove", "rmdir", "rmtree", "copyfile", "listdir", "scandir", "flock", "utime")

    def watch(event: str, _arguments: object) -> None:
        nonlocal left
        if event.rpartition(".")[2] in names or event.startswith("ctypes"):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


@pytest.mark.parametrize("replaces", [False, True], ids=["first export", "replaces another"])
def test_a_kill_at_any_file_operation_leaves_a_whole_bundle(
    run: Path, new: Path, tmp_path: Path, replaces: bool
) -> None:
    """Every operation of an export is tried; before one of them the old state turns into the new one."""
    code = (
        "import sys; from pathlib import Path; import tests.integration.test_export_atomic as t; "
        "t.kill_at_each_operation(*map(Path, sys.argv[1:4]), sys.argv[4] == 'True')"
    )
    command = [sys.executable, "-c", code, str(run), str(new), str(tmp_path), str(replaces)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)

    assert done.returncode == 0, done.stderr
    operations, ends = (int(part.split("=")[1]) for part in done.stdout.split())
    assert operations > 30
    assert ends == 2


@pytest.fixture
def command(run: Path, tmp_path: Path) -> list[str]:
    out = tmp_path / "goal" / "bundle"
    shutil.copytree(OLD, out)
    return [
        sys.executable, "-m", "dragoman.cli.main", "export", "--checkpoint", str(run), "--out", str(out), "--name",
        "new", "--no-verify",
    ]  # fmt: skip


def scratch(out: Path) -> Iterator[Path]:
    return (path for path in out.parent.iterdir() if path.name.startswith(f".{out.name}.partial-"))


def written(name: str) -> Callable[[Path], bool]:
    return lambda out: any((folder / out.name / name).exists() for folder in scratch(out))


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "it begins to write": lambda out: any(scratch(out)),
    "a graph is there": written(bundle.ENCODER),
    "the manifest is there": written(bundle.MANIFEST),
}


def test_killed_commands_leave_a_whole_bundle(command: list[str], tmp_path: Path) -> None:
    """The command replaces a bundle and is killed again and again; then it is left alone and succeeds."""
    out = tmp_path / "goal" / "bundle"
    old = bundle.load_manifest(OLD).version
    started = time.monotonic()
    kills = 0
    for moment, has_come in MOMENTS.items():
        if time.monotonic() - started > KILLING_S and kills:  # a busy machine
            break
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not has_come(out):
            time.sleep(0.001)
        process.kill()
        was_killed = process.wait() == -signal.SIGKILL
        found = bundle.load_manifest(out)  # whole, by the hash of every file
        if found.version != old:  # a fast machine: the exchange came before the kill
            assert found.name == "new", moment
            break
        kills += was_killed
    assert kills

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert bundle.load_manifest(out).name == "new"
    assert leftovers(out) == []


def test_without_an_exchange_the_old_bundle_comes_back(
    run: Path, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the file system cannot exchange two folders, a process may end between two renames."""

    def rename_and_die(one: Path, other: Path) -> None:
        rename(one, other)
        if Path(other).name == "replaced":
            raise KeyboardInterrupt

    out = tmp_path / "bundle"
    shutil.copytree(OLD, out)
    monkeypatch.setitem(vars(write), "write_graphs", None)  # it is put back afterwards
    use_ready_graphs(new)
    monkeypatch.setattr(staging, "_exchange", lambda _one, _other: False)
    checkpoint, rename = load_checkpoint(run), os.rename
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename_and_die)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # who is killed does not clear up
        with pytest.raises(KeyboardInterrupt):
            write.write_bundle(checkpoint, out, name="new", precision="fp32", verify=None)
    assert not out.exists()

    def refuse(_folder: Path) -> dict[str, object]:
        raise ExportError("not good enough")

    with pytest.raises(ExportError, match="not good enough"):
        write.write_bundle(checkpoint, out, name="new", precision="fp32", verify=refuse)
    assert bundle.load_manifest(out) == bundle.load_manifest(OLD)

    write.write_bundle(checkpoint, out, name="new", precision="fp32", verify=None)
    assert bundle.load_manifest(out).name == "new"
    assert leftovers(out) == []


def test_an_export_leaves_the_scratch_folder_of_a_living_one_alone(tmp_path: Path) -> None:
    """Two at a time into one place: the last to finish wins, and none takes the other's files away."""
    goal = tmp_path / "bundle"
    with staging.scratch_beside(goal) as first:
        (first / "mine").write_text("x")
        with staging.scratch_beside(goal) as second:
            assert second != first
            assert (first / "mine").exists()
        assert (first / "mine").exists()
        for scratch_folder, text in ((first, "first"), (first, "second")):
            folder = scratch_folder / text
            folder.mkdir()
            (folder / "content").write_text(text)
            staging.put_in_place(folder, goal, scratch_folder)

    assert (goal / "content").read_text() == "second"
    assert leftovers(goal) == []
