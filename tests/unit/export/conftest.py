"""Small models on one thread, because several would spend their time waiting for each other; bundles made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dragoman.export.write import write_bundle
from tests.fakes.bundles import quantized
from tests.fakes.remembered_graphs import RememberedGraphs, remembering
from tests.fakes.variants import SSRU, VARIANTS, Exported
from tests.fakes.verification import many_pairs, one_pair

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def graphs() -> Iterator[RememberedGraphs]:
    """The exporter answers once for each model."""
    with remembering() as graphs:
        yield graphs


@pytest.fixture
def exporting_anew(graphs: RememberedGraphs) -> Iterator[None]:
    """It answers every call, for tests of what it gives."""
    with graphs.anew():
        yield


@pytest.fixture(scope="session")
def fp32_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of `one_pair`."""
    out = tmp_path_factory.mktemp("fp32") / "bundle"
    write_bundle(one_pair(), out, name="b", precision="fp32", verify=None)
    return out


@pytest.fixture(scope="session")
def int8_bundle(fp32_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of `one_pair`."""
    return quantized(fp32_bundle, tmp_path_factory.mktemp("int8") / "bundle")


@pytest.fixture(scope="session")
def several_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of `many_pairs`."""
    out = tmp_path_factory.mktemp("several") / "bundle"
    write_bundle(many_pairs(), out, name="b", precision="fp32", verify=None)
    return out


@pytest.fixture(scope="session")
def ssru(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported(SSRU, tmp_path_factory.mktemp("ssru"))


@pytest.fixture(scope="session", params=VARIANTS)
def exported(
    request: pytest.FixtureRequest, ssru: Exported, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Exported]:
    """Each of the variants in turn."""
    if VARIANTS[request.param] is SSRU:
        yield ssru
    else:
        yield Exported(VARIANTS[request.param], tmp_path_factory.mktemp("variant"))
