"""Whose call it is."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dragoman.server.callers import MOST_CHARACTERS, caller_name, host
from dragoman.server.errors import InvalidArgument


class Context:
    """What is read of a call."""

    def __init__(self, *metadata: tuple[str, str | bytes], peer: str = "ipv4:10.0.0.7:41234") -> None:
        self._metadata = metadata
        self._peer = peer

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Return what the caller sent."""
        return self._metadata

    def peer(self) -> str:
        """Return where the caller is."""
        return self._peer


def name_of(context: Context) -> str:
    return caller_name(cast(Any, context))


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("ipv4:10.0.0.7:41234", "10.0.0.7"),
        ("ipv6:%5B::1%5D:41234", "::1"),
        ("ipv6:[2001:db8::7]:41234", "2001:db8::7"),
        ("unix:/run/dragoman.sock", "unix:/run/dragoman.sock"),
        ("unix:", "unix:"),
        ("", ""),
    ],
)
def test_an_address_without_its_port_is_a_caller(peer: str, expected: str) -> None:
    """Each connection has another port, and one caller may open many."""
    assert host(peer) == expected
    assert name_of(Context(peer=peer)) == expected


def test_a_name_in_the_metadata_goes_before_the_address() -> None:
    """Behind a proxy all callers have one address."""
    assert name_of(Context(("user-agent", "x"), ("dragoman-caller", "team-a"))) == "team-a"
    assert name_of(Context(("dragoman-caller", ""))) == "10.0.0.7"


def test_a_long_name_is_refused() -> None:
    """Names are kept per caller, so they are bounded; two long ones must not become one by being cut."""
    assert name_of(Context(("dragoman-caller", "x" * MOST_CHARACTERS))) == "x" * MOST_CHARACTERS
    with pytest.raises(InvalidArgument, match="dragoman-caller: 129 characters, the limit is 128"):
        name_of(Context(("dragoman-caller", "x" * 129)))
