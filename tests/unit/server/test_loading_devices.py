"""What loading makes of a device: engines, the budget of the slots, and graphs that turn out not to run."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.export import bundle
from dragoman.export.bundle import Manifest
from dragoman.server import loading
from dragoman.server.config import ServerConfig
from dragoman.server.device import Device
from dragoman.server.errors import StartupError
from dragoman.server.loading import load_model, make_pool, warm_up
from dragoman.server.metrics import Metrics
from dragoman.server.runtime import OnnxRuntime
from dragoman.server.slot_types import SlotTypes
from dragoman.server.step import Wanted
from tests.fakes.device import FakeMemory

BUNDLE = Path(__file__).parents[2] / "data" / "tiny-v1"


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return bundle.load_manifest(BUNDLE)


def stand_in(manifest: Manifest, memory: FakeMemory | None) -> Any:
    """Return what a pool needs to know of a runtime."""
    return SimpleNamespace(manifest=manifest, memory=memory, slot_types=SlotTypes())


def test_the_slots_of_a_gpu_come_from_its_memory(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of what it has, whatever the host has; and all that is allocated counts."""
    monkeypatch.setattr(loading, "available_memory", lambda: pytest.fail("of the host"))
    memory = FakeMemory()
    monkeypatch.setattr(memory, "available", lambda: 8 << 20)

    pool = make_pool(ServerConfig(model=str(BUNDLE), max_rows=64), stand_in(manifest, memory))

    assert pool.memory is memory
    assert 0.9 * (2 << 20) < pool.nbytes <= 2 << 20


def test_one_engine_has_a_gpu_unless_more_are_wanted(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many CPUs there are."""
    made: list[int] = []

    def make(*_: Any, replicas: int, **__: Any) -> Any:
        made.append(replicas)
        raise StartupError("enough seen")

    monkeypatch.setattr(loading, "choose_device", lambda *_: Device("cuda"))
    monkeypatch.setattr(loading, "available_cpus", lambda: 32)
    monkeypatch.setattr(loading, "_load_engine", make)
    for replicas in (0, 3):
        with pytest.raises(StartupError, match="enough seen"):
            load_model(ServerConfig(model=str(BUNDLE), replicas=replicas), manifest, Metrics("tiny"), lambda _: None)

    assert made == [1, 3]


def test_graphs_that_do_not_run_are_a_startup_error(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library of CUDA may be missed only by the operator that needs it; better now than by the first caller."""
    runtime = OnnxRuntime(BUNDLE, manifest, device="cpu", threads=1, encode_tokens=64, memory=FakeMemory())
    original = runtime.step

    def step(pool: Any, wanted: Wanted = Wanted.NOTHING) -> Any:
        if wanted is Wanted.LOGITS:
            raise RuntimeError("cuDNN is unavailable")
        return original(pool, wanted)

    monkeypatch.setattr(runtime, "step", step)
    pool = make_pool(ServerConfig(model=str(BUNDLE)), runtime)

    with pytest.raises(StartupError, match=r"tiny do not run on cpu: cuDNN is unavailable.*onnxruntime-gpu\[cuda"):
        warm_up(runtime, pool, replace(manifest, name="tiny"))
