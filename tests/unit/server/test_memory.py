"""The memory limit of a container, from files as cgroups write them."""

from pathlib import Path

import pytest

from dragoman.server.memory import available_memory, cgroup_limit


@pytest.mark.parametrize(("content", "expected"), [("max\n", None), ("1073741824\n", 1 << 30), ("what\n", None)])
def test_version_2(tmp_path: Path, content: str, expected: int | None) -> None:
    """`max` means no limit; nonsense is as good as no file."""
    path = tmp_path / "memory.max"
    path.write_text(content)

    assert cgroup_limit(path, tmp_path / "absent") == expected


def test_version_1_is_asked_if_there_is_no_version_2(tmp_path: Path) -> None:
    """Older machines have another file."""
    path = tmp_path / "memory.limit_in_bytes"
    path.write_text("4096\n")

    assert cgroup_limit(tmp_path / "absent", path) == 4096


def test_a_limit_beyond_the_machine_is_the_machine(tmp_path: Path) -> None:
    """Version 1 writes a huge number where nothing is limited."""
    path = tmp_path / "memory.max"
    path.write_text(str(1 << 62))
    machine = available_memory(tmp_path / "absent", tmp_path / "absent")

    assert available_memory(path, path) == machine
    path.write_text("4096")
    assert available_memory(path, path) == 4096
