"""Where training computes, in which precision, and beside which other processes."""

from __future__ import annotations

import ctypes
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import distributed

from dragoman.model.errors import ConfigError

# Parameters of mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def keep_freed_memory() -> None:
    """Let the C library keep freed memory instead of returning it to the system at once.

    Tensors of a training step are large enough to be mapped and unmapped each time, and the kernel
    clears every page anew: 15 % of a step of the default model. Only glibc has these settings.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and hasattr(library, "gnu_get_libc_version"):
        library.mallopt(_M_MMAP_MAX, 0)
        library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def choose_device(name: str) -> torch.device:
    """Return the device called `name`: "auto", "cpu", "cuda" or "cuda:<n>".

    "auto" is the GPU of this process where there is one.

    Raises:
        ConfigError: There is no such device.
    """
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    kind, _, number = name.partition(":")
    if (name != "auto" and kind != "cuda") or (number and not number.isdecimal()):
        raise ConfigError(f"device is {name!r}; choose auto, cpu, cuda or cuda:<number>")
    if not torch.cuda.is_available():
        raise ConfigError(f"device is {name!r}, but torch {torch.__version__} sees no CUDA device; use cpu or auto")
    index, count = int(number or local), torch.cuda.device_count()
    if index >= count:
        raise ConfigError(f"process {local} needs cuda:{index}, but there are only {count} CUDA devices")
    return torch.device("cuda", index)


@dataclass(frozen=True, slots=True)
class Precision:
    """Autocast of matrix products.

    Attributes:
        device_type: "cpu" or "cuda".
        dtype: float32 means no autocast.
    """

    device_type: str
    dtype: torch.dtype

    @classmethod
    def choose(cls, name: str, device: torch.device) -> Precision:
        """Return the precision called `name`, see `TrainConfig.precision`.

        Raises:
            ConfigError: The device does not compute in it.
        """
        if name == "auto":
            name = "bf16" if _computes_bf16(device) else "fp32"
        if name == "fp16" and device.type == "cpu":
            raise ConfigError("precision fp16 needs a CUDA device; on the CPU use fp32, bf16 or auto")
        return cls(device.type, _DTYPES[name])

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context for a forward pass."""
        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self.device_type, self.dtype)

    @property
    def needs_loss_scaling(self) -> bool:
        """Whether small gradients would underflow."""
        return self.dtype is torch.float16


def _computes_bf16(device: torch.device) -> bool:
    """Return whether bf16 products are faster than fp32 ones: without the instructions they are emulated."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of one training run, as started by `torchrun`.

    Attributes:
        rank: Number of this one; 0 alone writes logs and checkpoints.
        count: How many there are.
        device: Where tensors have to lie for the group to exchange them.
    """

    rank: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def join(cls, device: torch.device) -> Processes:
        """Join the group that torchrun's environment variables describe; without them, train alone."""
        if "WORLD_SIZE" not in os.environ:
            return cls()
        if not distributed.is_initialized():
            distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        return cls(distributed.get_rank(), distributed.get_world_size(), device)

    @staticmethod
    def leave() -> None:
        """Leave the group, if any."""
        if distributed.is_initialized():
            distributed.destroy_process_group()

    @property
    def leads(self) -> bool:
        """Whether this process writes logs and checkpoints."""
        return self.rank == 0

    def wait(self) -> None:
        """Wait until every process is here."""
        self.sum(0.0)

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true in any process: all of them end after the same update."""
        return bool(self._reduce(float(flag), distributed.ReduceOp.MAX))

    def sum(self, value: float) -> float:
        """Return the sum over all processes."""
        return self._reduce(value, distributed.ReduceOp.SUM)

    def first(self, value: float) -> float:
        """Return rank 0's value in every process."""
        return self._reduce(value if self.leads else 0.0, distributed.ReduceOp.SUM)

    def _reduce(self, value: float, operation: distributed.ReduceOp.RedOpType) -> float:
        if self.count == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        distributed.all_reduce(tensor, operation)
        return float(tensor)
