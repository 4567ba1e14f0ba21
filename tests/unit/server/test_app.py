from types import SimpleNamespace

import pytest

from dragoman.server import app
from dragoman.server.errors import StartupError


def install(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    found = [SimpleNamespace(metadata={"Name": name}) for name in names]
    monkeypatch.setattr(app, "distributions", lambda: found)


def test_both_runtime_packages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """They own the same import name and overwrite each other; the message says what to do."""
    install(monkeypatch, "numpy", "onnxruntime", "onnxruntime-gpu")

    with pytest.raises(StartupError, match=r"both onnxruntime and onnxruntime-gpu are installed.*uninstall both"):
        app.check_one_runtime()


@pytest.mark.parametrize("name", ["onnxruntime", "onnxruntime-gpu"])
def test_one_runtime_package_is_fine(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Either of them will do."""
    install(monkeypatch, "numpy", name)

    app.check_one_runtime()


def test_an_event_that_fails_does_not_take_the_others_along(caplog: pytest.LogCaptureFixture) -> None:
    """Events of one iteration belong to different callers; the failure is logged."""
    seen: list[str] = []

    def fail() -> None:
        raise RuntimeError("scripted")

    app._run_all([lambda: seen.append("before"), fail, lambda: seen.append("after")])

    assert seen == ["before", "after"]
    assert "an event of the engine failed" in caplog.text
