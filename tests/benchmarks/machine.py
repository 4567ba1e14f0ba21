"""What a table of numbers has to say about where and how it was measured."""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

_PACKAGES = ("dragoman", "onnxruntime", "ctranslate2", "torch", "transformers", "numpy", "grpcio")
_IDLE = 0.5  # load average; a machine that has only just become idle has a little


def describe(threads: int) -> dict[str, Any]:
    """Return machine, versions, date and load, JSON-ready."""
    return {
        "processor": processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "threads": threads,
        "system": f"{platform.system()}, Python {platform.python_version()}",
        "versions": {package: version(package) for package in _PACKAGES},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def processor() -> str:
    """Return the processor's name and the vector instructions that matter here."""
    found: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    flags = found.get("flags", "").split()
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "amx_bf16")
    return f"{found.get('model name', platform.machine())} ({', '.join(flag for flag in wanted if flag in flags)})"


def sentence(machine: dict[str, Any]) -> str:
    """Return the description as a line of Markdown."""
    idle = "" if machine["load_before"] < _IDLE else ". **The machine was not idle**: the numbers say little"
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return (
        f"{machine['processor']}, {machine['cpus']} CPUs, {machine['memory_gib']} GiB; {machine['threads']} threads; "
        f"{machine['system']}; {versions}; {machine['date']}; load when it began: {machine['load_before']}{idle}"
    )
