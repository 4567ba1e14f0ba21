import os
from pathlib import Path

import pytest

from dragoman.server import cpus
from dragoman.server.cpus import available_cpus, cgroup_quota


def write_v1(folder: Path, quota: str, period: str) -> Path:
    (folder / "cpu.cfs_quota_us").write_text(quota)
    (folder / "cpu.cfs_period_us").write_text(period)
    return folder


@pytest.mark.parametrize(
    ("content", "quota"), [("150000 100000\n", 1.5), ("50000 100000\n", 0.5), ("max 100000\n", None)]
)
def test_quota_of_cgroup_v2(tmp_path: Path, content: str, quota: float | None) -> None:
    """cpu.max holds quota and period; "max" means no limit."""
    file = tmp_path / "cpu.max"
    file.write_text(content)

    assert cgroup_quota(v2=file, v1=tmp_path) == quota


@pytest.mark.parametrize(("quota", "expected"), [("200000\n", 2.0), ("-1\n", None)])
def test_quota_of_cgroup_v1(tmp_path: Path, quota: str, expected: float | None) -> None:
    """Quota and period are two files; -1 means no limit."""
    folder = write_v1(tmp_path, quota, "100000\n")

    assert cgroup_quota(v2=tmp_path / "none", v1=folder) == expected


def test_v2_wins_over_v1(tmp_path: Path) -> None:
    """On a host with both, the unified hierarchy has the limit."""
    file = tmp_path / "cpu.max"
    file.write_text("300000 100000\n")

    assert cgroup_quota(v2=file, v1=write_v1(tmp_path, "100000", "100000")) == 3.0


def test_no_cgroup_is_no_quota(tmp_path: Path) -> None:
    """Outside a container neither file exists."""
    assert cgroup_quota(v2=tmp_path / "cpu.max", v1=tmp_path / "cpu") is None


@pytest.mark.parametrize("content", ["", "many 100000\n", "1 2 3\n"])
def test_an_unreadable_quota_is_no_quota(tmp_path: Path, content: str) -> None:
    """A format we do not know must not stop the server."""
    file = tmp_path / "cpu.max"
    file.write_text(content)

    assert cgroup_quota(v2=file, v1=tmp_path) is None


@pytest.mark.parametrize(("quota", "expected"), [(None, 4), (2.0, 2), (1.2, 2), (0.1, 1), (64.0, 4)])
def test_cpus_are_the_smaller_of_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, expected: int
) -> None:
    """A part of a CPU counts as one, and there is always at least one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(cpus, "cgroup_quota", lambda: quota)

    assert available_cpus() == expected
