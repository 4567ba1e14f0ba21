"""Modules that a package imports but does not use for what a test asks of it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Collection
from typing import Any


class _Absent(types.ModuleType):
    """Has an empty class under every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        """Claim the modules and all below them."""
        if fullname.split(".")[0] not in self._names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return an empty one."""
        return _Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave it empty."""


def pretend(names: Collection[str]) -> None:
    """Let these modules be imported although they are not there."""
    sys.meta_path.insert(0, _Finder(names))
