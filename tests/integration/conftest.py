"""The exporter answers once for each model, where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest


@pytest.fixture(scope="session", autouse=True)
def graphs() -> Iterator[None]:
    """As in `unit/export`; without torch there is nothing to export."""
    if find_spec("torch") is None:
        yield
        return
    from tests.fakes.remembered_graphs import remembering

    with remembering():
        yield
