"""How both clients set up a gRPC channel."""

from __future__ import annotations

import json
from collections.abc import Sequence

DEFAULT_TARGET = "127.0.0.1:50051"
DEFAULT_MAX_MESSAGE_BYTES = 16 * 2**20

_SERVICE_CONFIG = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})


def channel_options(max_message_bytes: int) -> Sequence[tuple[str, int | str]]:
    """Return the channel arguments.

    Raises:
        ValueError: `max_message_bytes` is below 1.
    """
    if max_message_bytes < 1:
        raise ValueError(f"max_message_bytes is {max_message_bytes}; it must be at least 1")
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
