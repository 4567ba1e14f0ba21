"""How CPUs, slots and memory are shared among engines."""

import pytest

from dragoman.server.config import ServerConfig
from dragoman.server.loading import share_cpus


@pytest.mark.parametrize(
    ("replicas", "threads", "cpus", "expected"),
    [
        (0, 0, 1, (1, 1)),
        (0, 0, 2, (1, 2)),
        (0, 0, 4, (1, 4)),
        (0, 0, 16, (4, 4)),
        (0, 0, 7, (1, 7)),
        (0, 1, 3, (3, 1)),
        (2, 0, 2, (2, 1)),
        (3, 0, 2, (3, 1)),
        (2, 5, 2, (2, 5)),
    ],
)
def test_cpus_are_shared_among_engines(replicas: int, threads: int, cpus: int, expected: tuple[int, int]) -> None:
    """What is given is kept; the rest fills the machine."""
    assert share_cpus(ServerConfig(replicas=replicas, threads=threads), cpus, 512) == expected


@pytest.mark.parametrize(
    ("replicas", "threads", "cpus", "expected"),
    [
        (0, 0, 1, (1, 1)),
        (0, 0, 2, (2, 1)),
        (0, 0, 16, (2, 1)),
        (0, 4, 8, (2, 4)),
        (0, 4, 2, (1, 4)),
        (3, 0, 8, (3, 1)),
        (1, 2, 2, (1, 2)),
    ],
)
def test_narrow_models_get_engines_of_one_thread(
    replicas: int, threads: int, cpus: int, expected: tuple[int, int]
) -> None:
    """A second thread does not make their steps faster, a second engine translates more texts."""
    assert share_cpus(ServerConfig(replicas=replicas, threads=threads), cpus, 256) == expected


@pytest.mark.parametrize(("max_rows", "width", "expected"), [(1, 256, 1), (31, 256, 1), (32, 256, 2), (32, 512, 2)])
def test_engines_keep_enough_slots_for_beams(max_rows: int, width: int, expected: int) -> None:
    """A text's beams have to be in one engine, so few slots are not dealt out among several."""
    assert share_cpus(ServerConfig(max_rows=max_rows), 16, width)[0] == expected
