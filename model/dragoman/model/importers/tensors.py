"""Named tensors of somebody else's checkpoint: read safely, used completely or refused by name."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from dragoman.model.errors import ImportFailed
from dragoman.model.transformer import Transformer

_SHOWN = 20


class Tensors:
    """Takes tensors out by name; what is missing or left over is reported at the end, all at once."""

    def __init__(self, tensors: Mapping[str, Tensor], origin: Path) -> None:
        """Begin.

        Args:
            tensors: By name.
            origin: For messages.
        """
        self._left = dict(tensors)
        self._missing: list[str] = []
        self._origin = origin

    def __contains__(self, name: str) -> bool:
        """Whether a tensor of this name is there and not taken yet."""
        return name in self._left

    def names(self) -> list[str]:
        """Return what is not taken yet."""
        return list(self._left)

    def take(self, name: str, change: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> Tensor:
        """Return a tensor as float32, changed; an empty one if it is missing, which `finish` reports."""
        tensor = self._left.pop(name, None)
        if tensor is None:
            self._missing.append(name)
            return torch.zeros(0)
        return change(tensor.float()).contiguous()

    def ignore(self, *patterns: str) -> None:
        """Leave tensors out on purpose: their names match one of these shell patterns."""
        for name in [n for n in self._left if any(fnmatch(n, pattern) for pattern in patterns)]:
            del self._left[name]

    def finish(self) -> None:
        """Check that every tensor was used.

        Raises:
            ImportFailed: Names all that are missing, and all that are left over with their shapes.
        """
        problems = []
        if self._missing:
            problems.append(f"missing tensors: {_listing(self._missing)}")
        if self._left:
            problems.append(
                f"tensors that this model has no place for: "
                f"{_listing([f'{name} {list(t.shape)}' for name, t in self._left.items()])}"
            )
        if problems:
            raise ImportFailed(f"{self._origin}: {'; '.join(problems)}")


def load_weights(model: Transformer, weights: Mapping[str, Tensor], origin: Path) -> Transformer:
    """Load weights by our own names and return the model in evaluation mode.

    Raises:
        ImportFailed: Names every tensor that is missing, surplus or of another shape.
    """
    wanted = model.state_dict()
    problems = [f"{name} is missing" for name in wanted if name not in weights]
    problems += [f"{name} is surplus" for name in weights if name not in wanted]
    problems += [
        f"{name} is {list(weights[name].shape)}, the configuration says {list(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    if problems:
        raise ImportFailed(f"{origin}: {_listing(problems, '; ')}")
    model.load_state_dict(dict(weights))
    return model.eval()


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read a .safetensors file.

    Raises:
        ImportFailed: It is none.
    """
    try:
        return safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise ImportFailed(f"{path}: cannot be read as safetensors: {error}") from error


def read_torch(path: Path) -> Any:
    """Read what `torch.save` wrote, as far as it is data: an object that could run code is refused.

    Raises:
        ImportFailed: It is no such file, or it holds more than tensors and plain values.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise ImportFailed(
            f"{path}: holds objects that could run code when they are loaded, so it is not: {reason} Save the plain "
            "state dict where you trust the file: torch.save(model.state_dict(), path), or as safetensors"
        ) from error
    except (OSError, EOFError, RuntimeError, ValueError, KeyError) as error:
        raise ImportFailed(f"{path}: cannot be read as a PyTorch file: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ImportFailed: It is missing or is none.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ImportFailed(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ImportFailed(f"{path}: holds no JSON object")
    return content


def _listing(items: list[str], separator: str = ", ") -> str:
    more = len(items) - _SHOWN
    return separator.join(items[:_SHOWN]) + (f"{separator}and {more} more" if more > 0 else "")
