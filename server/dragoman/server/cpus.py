"""How many CPUs this process may really use: affinity and cgroup quota, not the host's cores."""

from __future__ import annotations

import math
import os
from pathlib import Path

_V2 = Path("/sys/fs/cgroup/cpu.max")
_V1 = Path("/sys/fs/cgroup/cpu")


def available_cpus() -> int:
    """Return the usable CPUs, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota()
    return max(1, min(allowed, math.ceil(quota) if quota else allowed))


def cgroup_quota(v2: Path = _V2, v1: Path = _V1) -> float | None:
    """Return the container's CPU limit, or None if there is none."""
    try:
        quota, period = v2.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        micros = int((v1 / "cpu.cfs_quota_us").read_text())
        return None if micros <= 0 else micros / int((v1 / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
