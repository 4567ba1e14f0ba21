import errno
import socket
from collections.abc import Iterator

import pytest

from dragoman.server import ports

ANYWHERE = "0.0.0.0"  # noqa: S104  # what containers are given


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_addresses_of_both_families() -> None:
    """What gRPC and the ready line want."""
    assert (ports.address("127.0.0.1", 1), ports.address("::1", 2)) == ("127.0.0.1:1", "[::1]:2")


@pytest.mark.parametrize("host", ["127.0.0.1", ANYWHERE, "localhost", ""])
def test_a_free_port_is_free_and_stays_so(host: str, taken_port: int) -> None:
    """Looking does not take it."""
    ports.check_free(host, 0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

    ports.check_free(host, port)
    ports.check_free(host, port)

    assert port != taken_port


@pytest.mark.parametrize("host", ["127.0.0.1", ANYWHERE, "localhost"])
def test_a_taken_port_is_refused(host: str, taken_port: int) -> None:
    """Also for all addresses, or those of a name, if it is taken on one of them."""
    with pytest.raises(OSError, match="in use") as caught:
        ports.check_free(host, taken_port)

    message = str(ports.cannot_listen("gRPC", host, taken_port, "--grpc-port", caught.value))
    assert message == (
        f"cannot listen on {host}, gRPC port {taken_port}: Address already in use. "
        "Stop what listens there, or choose another port with --grpc-port; 0 takes a free one"
    )


@pytest.mark.parametrize(
    ("host", "reason"), [("192.0.2.1", "Cannot assign requested address"), ("nowhere.invalid", "[Nn]ame")]
)
def test_an_address_of_another_machine_is_refused(host: str, reason: str) -> None:
    """Another port would not help; the message speaks of --host."""
    with pytest.raises(OSError, match=reason) as caught:
        ports.check_free(host, 0)

    message = str(ports.cannot_listen("gRPC", host, 0, "--grpc-port", caught.value))
    assert message.startswith(f"cannot listen on {host}, gRPC port 0: ")
    assert "--host has to be an address of this machine" in message
    assert "--grpc-port" not in message


def test_a_port_without_the_right_to_it() -> None:
    """Ports below 1024 belong to root on most machines."""
    error = PermissionError(errno.EACCES, "Permission denied")

    message = str(ports.cannot_listen("HTTP", "127.0.0.1", 80, "--http-port", error))

    assert "HTTP port 80: Permission denied. Choose a port that you may open with --http-port" in message


def test_a_reason_of_grpc_alone_is_passed_on() -> None:
    """A port may be taken between our look and gRPC's."""
    message = str(ports.cannot_listen("gRPC", "127.0.0.1", 7, "--grpc-port", RuntimeError("Failed to bind")))

    assert "Failed to bind. Is it taken, or" in message
    assert message.endswith("Choose another port with --grpc-port")
