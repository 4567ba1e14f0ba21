"""Whether a port can be opened, found out before gRPC tries, and what to do if it cannot.

gRPC's own attempt puts a line of its C++ log on stderr, and its error does not say why. A socket of ours, opened and
closed again, has the system's reason.
"""

from __future__ import annotations

import contextlib
import errno
import socket

from dragoman.server.errors import StartupError

_BACKLOG = 1


def address(host: str, port: int) -> str:
    """Return host and port as one text; IPv6 addresses get their brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_free(host: str, port: int) -> None:
    """Open a port for a moment, as a server would.

    Args:
        host: Address or name of this machine. Of a name's addresses one has to be usable, and on none may the port be
            taken: a server that has some of them would get some of the calls.
        port: 0 takes a free one.

    Raises:
        OSError: The system's reason against it.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    reasons: list[OSError] = []
    for family, kind, protocol, _, where in found:
        try:
            _open(family, kind, protocol, where)
        except OSError as error:
            reasons.append(error)
    taken = [reason for reason in reasons if reason.errno == errno.EADDRINUSE]
    if taken or len(reasons) == len(found):
        raise (taken or reasons)[0]


def cannot_listen(what: str, host: str, port: int, flag: str, error: Exception) -> StartupError:
    """Return the error for a port that cannot be opened; the caller raises it `from error`.

    Args:
        what: Who wants to listen there: "gRPC" or "HTTP".
        host: As it was given.
        port: As it was given.
        flag: Chooses another port.
        error: The reason.
    """
    number = error.errno if isinstance(error, OSError) else None
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if isinstance(error, socket.gaierror) or number == errno.EADDRNOTAVAIL:
        advice = "--host has to be an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them"
    elif number == errno.EADDRINUSE:
        advice = f"Stop what listens there, or choose another port with {flag}; 0 takes a free one"
    elif number == errno.EACCES:
        advice = f"Choose a port that you may open with {flag}, usually one from 1024 on"
    else:
        advice = f"Is it taken, or is --host not an address of this machine? Choose another port with {flag}"
    return StartupError(f"cannot listen on {host}, {what} port {port}: {reason}. {advice}")


def _open(family: int, kind: int, protocol: int, where: object) -> None:
    with contextlib.closing(socket.socket(family, kind, protocol)) as listener:
        # As gRPC does it: connections of a server that was stopped just now do not keep its port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)  # type: ignore[arg-type]  # its type depends on the family
        listener.listen(_BACKLOG)  # two sockets may be bound to one port, but not listen
