"""Who makes a call: the name under which it gets its share of the engine."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import grpc

from dragoman.server.errors import InvalidArgument

METADATA_KEY = "dragoman-caller"
MOST_CHARACTERS = 128


def caller_name(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Return what the caller says of itself in the metadata, else its address without the port.

    Raises:
        InvalidArgument: The name is too long.
    """
    for key, value in context.invocation_metadata() or ():
        if key == METADATA_KEY and value:
            name = value if isinstance(value, str) else value.decode("utf-8", "replace")
            if len(name) > MOST_CHARACTERS:
                raise InvalidArgument(
                    METADATA_KEY, f"{len(name)} characters, the limit is {MOST_CHARACTERS}; shorten it"
                )
            return name
    return host(context.peer())


def host(peer: str) -> str:
    """Return the host of a gRPC peer, such as "ipv4:10.0.0.7:41234" or "ipv6:%5B::1%5D:41234"."""
    kind, _, address = unquote(peer).partition(":")
    return address.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else peer
