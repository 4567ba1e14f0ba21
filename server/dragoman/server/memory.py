"""How much memory this process may really use: the cgroup's limit, not the host's."""

from __future__ import annotations

import os
from pathlib import Path

_V2 = Path("/sys/fs/cgroup/memory.max")
_V1 = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")


def available_memory(v2: Path = _V2, v1: Path = _V1) -> int:
    """Return usable bytes: those of the machine, or fewer if a container has a limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(machine, cgroup_limit(v2, v1) or machine)


def cgroup_limit(v2: Path = _V2, v1: Path = _V1) -> int | None:
    """Return the container's memory limit in bytes, or None if there is none."""
    for path in (v2, v1):
        try:
            limit = path.read_text().strip()
            return None if limit == "max" else int(limit)
        except (OSError, ValueError):
            continue
    return None
