"""Where to compute: what was asked for, what the bundle is meant for, what is there. Never something else silently."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragoman.server.errors import StartupError

if TYPE_CHECKING:
    from dragoman.export.bundle import Manifest

logger = logging.getLogger(__name__)

AUTO, CPU, CUDA = "auto", "cpu", "cuda"
# The fastest precision that the exporter writes for a device. All of them can run fp32.
_FASTEST = {CPU: "int8", CUDA: "fp16"}

# Why GPU number so-and-so cannot be used, with what to do about it; None if it can.
FindProblem = Callable[[int], str | None]


@dataclass(frozen=True, slots=True)
class Device:
    """What sessions run on.

    Attributes:
        kind: `CPU` or `CUDA`, as bundles and ONNX Runtime name it.
        index: Of the GPU.
    """

    kind: str
    index: int = 0

    def __str__(self) -> str:
        return CPU if self.kind == CPU else f"{self.kind}:{self.index}"


def parse_device(text: str) -> Device | None:
    """Return the device that a setting names, None for the automatic choice.

    Raises:
        ValueError: It names none; says which there are.
    """
    found = re.fullmatch(r"(cpu|auto)|cuda(?::(\d{1,4}))?", text)
    if found is None:
        raise ValueError(f"device is {text!r}; it must be auto, cpu, cuda or cuda:N with the number of a GPU")
    if found[1]:
        return Device(CPU) if found[1] == CPU else None
    return Device(CUDA, int(found[2] or 0))


def choose_device(requested: str, manifest: Manifest, find_problem: FindProblem) -> Device:
    """Return the device to use: the one that was asked for, or the fastest there is of those the bundle is meant for.

    Args:
        requested: "auto", "cpu", "cuda" or "cuda:N".
        manifest: Of the bundle.
        find_problem: Looks for a GPU; called if one is wanted.

    Raises:
        StartupError: It cannot run this bundle, or there is none; says why and what to do.
    """
    try:
        device = parse_device(requested)
    except ValueError as error:
        raise StartupError(str(error)) from error
    if device is None:
        return _choose(manifest, find_problem)
    if device.kind not in manifest.devices:
        raise StartupError(f"{_not_meant_for(manifest, device.kind)}; {_export_again(device.kind)}")
    if device.kind == CUDA and (problem := find_problem(device.index)):
        raise StartupError(f"device is {requested!r}, but {problem}")
    return device


def _choose(manifest: Manifest, find_problem: FindProblem) -> Device:
    problem = find_problem(0) if CUDA in manifest.devices else None
    if CUDA in manifest.devices and problem is None:
        return Device(CUDA)
    if CPU in manifest.devices:
        if problem is not None:
            logger.info("device=cpu, no GPU is used: %s", problem)
        return Device(CPU)
    why = f"{problem}. Or " if problem is not None else ""
    raise StartupError(f"{_not_meant_for(manifest, CPU)}; {why}{_export_again(CPU)}")


def _not_meant_for(manifest: Manifest, kind: str) -> str:
    what = "the CPU" if kind == CPU else "a GPU"
    return f"the bundle {manifest.name} ({manifest.precision}) is meant for {list(manifest.devices)}, not for {what}"


def _export_again(kind: str) -> str:
    """Return what to do; a manifest does not say where its checkpoint came from, so both commands are named."""
    return (
        f"write it again: `dragoman export ... --precision {_FASTEST[kind]} --device {kind}`, or `dragoman import ...` "
        "with the same options if the checkpoint is of another library; fp32 runs there, too"
    )
