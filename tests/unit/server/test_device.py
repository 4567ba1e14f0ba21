"""Which device is chosen, and what is said when none can be."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.export import bundle
from dragoman.export.bundle import Manifest
from dragoman.server.device import Device, choose_device, parse_device
from dragoman.server.errors import StartupError

BUNDLE = Path(__file__).parents[2] / "data" / "tiny-v1"
NO_GPU = "no GPU can be reached: the reason; see what nvidia-smi says"


@pytest.fixture(scope="module")
def both() -> Manifest:
    """Return a manifest of a bundle for both kinds of device."""
    return replace(bundle.load_manifest(BUNDLE), devices=("cpu", "cuda"))


@pytest.fixture
def half(both: Manifest) -> Manifest:
    return replace(both, precision="fp16", devices=("cuda",))


@pytest.fixture
def int8(both: Manifest) -> Manifest:
    return replace(both, precision="int8", devices=("cpu",))


def there(_index: int) -> str | None:
    return None


def absent(_index: int) -> str | None:
    return NO_GPU


def not_asked(_index: int) -> str | None:
    raise AssertionError("nobody wants a GPU here")


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("auto", None),
        ("cpu", Device("cpu")),
        ("cuda", Device("cuda", 0)),
        ("cuda:0", Device("cuda", 0)),
        ("cuda:12", Device("cuda", 12)),
    ],
)
def test_settings_name_devices(text: str, device: Device | None) -> None:
    """By kind and number; the first GPU needs none."""
    assert parse_device(text) == device


@pytest.mark.parametrize(
    "text", ["", "tpu", "CPU", "cuda:", "cuda:-1", "cuda:x", "cuda:1 ", "cpu:0", "gpu", "cuda:99999"]
)
def test_everything_else_is_refused(text: str) -> None:
    """With what was given and what there is."""
    with pytest.raises(ValueError, match=r"device is .*; it must be auto, cpu, cuda or cuda:N"):
        parse_device(text)


def test_a_device_says_its_name_as_settings_do() -> None:
    """`GetModel` and the metrics show it."""
    assert [str(Device("cpu")), str(Device("cuda")), str(Device("cuda", 3))] == ["cpu", "cuda:0", "cuda:3"]


def test_what_is_named_is_used(both: Manifest) -> None:
    """Also the CPU where there is a GPU."""
    assert choose_device("cuda:1", both, there) == Device("cuda", 1)
    assert choose_device("cpu", both, not_asked) == Device("cpu")


def test_the_automatic_choice_takes_a_gpu_that_is_there(both: Manifest, half: Manifest) -> None:
    """If the bundle is meant for it."""
    assert choose_device("auto", both, there) == Device("cuda", 0)
    assert choose_device("auto", half, there) == Device("cuda", 0)


def test_the_automatic_choice_looks_for_no_gpu_in_vain(int8: Manifest) -> None:
    """Nothing of CUDA is touched for a bundle that is meant for the CPU."""
    assert choose_device("auto", int8, not_asked) == Device("cpu")


def test_the_automatic_choice_of_the_cpu_is_logged(both: Manifest, caplog: pytest.LogCaptureFixture) -> None:
    """With the reason: a driver that is too old should not go unnoticed."""
    with caplog.at_level(logging.INFO):
        assert choose_device("auto", both, absent) == Device("cpu")

    assert NO_GPU in caplog.text


def test_a_gpu_that_cannot_be_used_is_refused_with_the_reason(both: Manifest) -> None:
    """Never the CPU instead."""
    with pytest.raises(StartupError, match=f"device is 'cuda', but {NO_GPU}"):
        choose_device("cuda", both, absent)


def test_the_number_of_the_gpu_is_looked_at(both: Manifest) -> None:
    """Another GPU would not do."""
    with pytest.raises(StartupError, match="device is 'cuda:3', but number 3"):
        choose_device("cuda:3", both, lambda index: f"number {index}")


def test_a_bundle_for_the_cpu_is_refused_on_a_gpu(int8: Manifest) -> None:
    """The message says which precision is meant for what, and what to do."""
    with pytest.raises(
        StartupError,
        match=r"tiny \(int8\) is meant for \['cpu'\], not for a GPU; write it again: `dragoman export \.\.\. "
        r"--precision fp16 --device cuda`, or `dragoman import \.\.\.` with the same options",
    ):
        choose_device("cuda", int8, not_asked)


@pytest.mark.parametrize("requested", ["cpu", "auto"])
def test_a_bundle_for_gpus_is_refused_on_the_cpu(half: Manifest, requested: str) -> None:
    """The automatic choice says why there is no GPU, too."""
    with pytest.raises(StartupError) as caught:
        choose_device(requested, half, absent)

    assert "tiny (fp16) is meant for ['cuda'], not for the CPU" in str(caught.value)
    assert "--precision int8 --device cpu`" in str(caught.value)
    assert (NO_GPU in str(caught.value)) == (requested == "auto")
