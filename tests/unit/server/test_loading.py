"""How CPUs, slots and memory are shared among engines."""

import pytest

from dragoman.server.loading import share_cpus


@pytest.mark.parametrize(
    ("replicas", "threads", "cpus", "expected"),
    [
        (0, 0, 1, (1, 1)),
        (0, 0, 2, (1, 2)),
        (0, 0, 4, (1, 4)),
        (0, 0, 16, (4, 4)),
        (0, 0, 7, (1, 7)),
        (0, 1, 8, (8, 1)),
        (2, 0, 2, (2, 1)),
        (3, 0, 2, (3, 1)),
        (2, 5, 2, (2, 5)),
    ],
)
def test_cpus_are_shared_among_engines(replicas: int, threads: int, cpus: int, expected: tuple[int, int]) -> None:
    """What is given is kept; the rest fills the machine."""
    assert share_cpus(replicas, threads, cpus) == expected
