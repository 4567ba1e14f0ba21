"""What `torch.onnx.export` gave, for models that were exported before.

It takes two seconds for each graph of even the smallest model, and most tests of export begin with it. Its result
depends on nothing but its arguments, so that a copy is as good. What this project does with a graph afterwards is
done anew each time: optimising, reductions, precisions, writing.
"""

from __future__ import annotations

import functools
import hashlib
import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import onnx
import pytest
import torch
from onnxscript import ir
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Program:
    """What callers read of `torch.onnx.ONNXProgram`."""

    model: ir.Model


class RememberedGraphs:
    """Stands in for the exporter.

    A call is known again by everything that can be reached from its arguments: classes and attributes of all modules,
    weights to the bit, example inputs. A test that exports while it replaces a function that these call must ask for
    `anew`.

    Attributes:
        made: How many calls the exporter itself answered.
        copied: How many got a copy.
    """

    def __init__(self, export: Callable[..., Any]) -> None:
        self.made = 0
        self.copied = 0
        self._export = export
        self._graphs: dict[bytes, bytes] = {}
        self._remembers = True

    def __call__(self, module: torch.nn.Module, example: tuple[Any, ...], **options: Any) -> Any:
        """Export, or return a copy that shares nothing with what was returned before."""
        key = fingerprint(module, example, options) if self._remembers else None
        if key is not None and key in self._graphs:
            self.copied += 1
            return Program(ir.serde.deserialize_model(onnx.ModelProto.FromString(self._graphs[key])))
        self.made += 1
        program = self._export(module, example, **options)
        if key is not None and program is not None:
            # Bytes: the graph's tensors are the model's own, which a test may change afterwards.
            self._graphs[key] = ir.serde.serialize_model(program.model).SerializeToString()
        return program

    @contextmanager
    def anew(self) -> Iterator[None]:
        """Let the exporter itself answer every call."""
        before, self._remembers = self._remembers, False
        try:
            yield
        finally:
            self._remembers = before


def fingerprint(module: torch.nn.Module, example: tuple[Any, ...], options: dict[str, Any]) -> bytes:
    """Return a hash of all that can be reached from the arguments of an export.

    Equal arguments may differ in it, if one has a text twice where the other has one object; they are then exported
    twice.
    """
    content = io.BytesIO()
    _Content(content).dump((module, example, options))
    return hashlib.sha256(content.getvalue()).digest()


class _Content(pickle.Pickler):
    """Writes tensors by their values: `pickle` alone would write addresses, too."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            numbers = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            return _read, (str(value.dtype), tuple(value.shape), numbers)
        if isinstance(value, torch.export.Dim | torch._ops.OpOverload):  # axes; keys of the table of translations
            return _read, (str(value),)
        if isinstance(value, FunctionType) and value is not _read:  # its values
            inner = [cell.cell_contents for cell in value.__closure__ or ()]
            code = value.__code__.co_code, value.__code__.co_names, repr(value.__code__.co_consts)
            return _read, (value.__module__, value.__qualname__, code, value.__defaults__, inner)
        return NotImplemented


def _read(*_content: object) -> None:
    raise AssertionError("it is written to be compared, never read")


@functools.cache
def remembered_graphs() -> RememberedGraphs:
    """Return the one of this process."""
    return RememberedGraphs(torch.onnx.export)


@contextmanager
def remembering() -> Iterator[RememberedGraphs]:
    """Put it in the exporter's place; another one within this changes nothing."""
    graphs = remembered_graphs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.onnx, "export", graphs)
        yield graphs
