"""How both clients set up a gRPC channel, and what addresses they take."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence

import grpc

from dragoman.client.checks import check_instance, is_integer, wrong_type

DEFAULT_TARGET = "127.0.0.1:50051"
DEFAULT_MAX_MESSAGE_BYTES = 16 * 2**20

_SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "vsock:", "xds:")  # what gRPC resolves itself
_DEFAULT_PORT = DEFAULT_TARGET.rpartition(":")[2]
_LAST_PORT = 65535
_MOST_MESSAGE_BYTES = 2**31 - 1  # gRPC's own limit

_SERVICE_CONFIG = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})


def server_target(text: str) -> str:
    """Return what gRPC dials for an address: with Dragoman's port where there is none, for which gRPC takes 443.

    Args:
        text: HOST, HOST:PORT, an IPv6 address with or without brackets, or a target with one of gRPC's schemes, which
            stays as it is.

    Raises:
        TypeError: It is not a str.
        ValueError: It is none of these.
    """
    if not isinstance(text, str):
        raise wrong_type("target", text, f"str, for example {DEFAULT_TARGET!r}")
    if text.startswith(_SCHEMES) and text.partition(":")[2].strip("/"):
        return text
    if _is_ipv6(text):
        return f"[{text}]:{_DEFAULT_PORT}"
    if ":" not in text or (text.startswith("[") and text.endswith("]")):
        host, port = text, _DEFAULT_PORT
    else:
        host, _, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]") and _is_ipv6(host[1:-1])
    is_name = host.isprintable() and not set(host) & set(" /:[]") and host != ""
    if not ((is_bracketed or is_name) and _is_port(port)):
        raise ValueError(f"{text!r} is not HOST:PORT with a port from 1 to {_LAST_PORT}, for example {DEFAULT_TARGET}")
    return f"{host}:{port}"


def channel_options(
    max_message_bytes: int, secure: grpc.ChannelCredentials | None = None
) -> Sequence[tuple[str, int | str]]:
    """Return the channel arguments.

    Raises:
        TypeError: `max_message_bytes` is no int, or `secure` no credentials.
        ValueError: `max_message_bytes` is out of range.
    """
    allowed = f"from 1 to {_MOST_MESSAGE_BYTES}"
    if not is_integer(max_message_bytes):
        raise wrong_type("max_message_bytes", max_message_bytes, f"int, {allowed}")
    if not 1 <= max_message_bytes <= _MOST_MESSAGE_BYTES:
        raise ValueError(f"max_message_bytes is {max_message_bytes}; it must be {allowed}")
    if secure is not None:
        check_instance("secure", secure, grpc.ChannelCredentials)
    return (
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        # One name may stand for many replicas (a headless Kubernetes service). gRPC's default would
        # stay on the first address.
        ("grpc.service_config", _SERVICE_CONFIG),
        # Between attempts to connect gRPC fails calls with the last error and waits 1 s at first:
        # longer than most of our retries, which would then not reach a server that has come back.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 5000),
    )


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= len(str(_LAST_PORT)) and 1 <= int(text) <= _LAST_PORT
