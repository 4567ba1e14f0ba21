import contextlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from dragoman.server.http import HttpServer

WAIT_S = 10  # a test that needs this long has failed


class State:
    """What the two checks answer."""

    live = True
    ready = True


STATE = State()


@pytest.fixture
def state() -> Iterator[State]:
    yield STATE
    STATE.live = STATE.ready = True


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    registry = CollectorRegistry()
    Counter("things", "Things.", registry=registry).inc(3)
    server = HttpServer("127.0.0.1", 0, registry, live=lambda: STATE.live, ready=lambda: STATE.ready)
    server.start()
    yield server
    server.stop()


def get(server: HttpServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=WAIT_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_checks_answer_what_they_are_told(server: HttpServer, state: State) -> None:
    """200 when they pass, 503 when not, each on its own."""
    assert (get(server, "/livez"), get(server, "/readyz")) == ((200, "ok\n"), (200, "ok\n"))

    state.ready = False
    assert (get(server, "/livez")[0], get(server, "/readyz")) == (200, (503, "no\n"))

    state.live, state.ready = False, True
    assert (get(server, "/livez")[0], get(server, "/readyz")[0]) == (503, 200)


def test_metrics_are_shown(server: HttpServer) -> None:
    """Prometheus reads the registry of this server."""
    status, text = get(server, "/metrics")

    assert status == 200
    assert "things_total 3.0" in text


def test_a_query_does_not_change_the_path(server: HttpServer) -> None:
    """Some probes append one."""
    assert get(server, "/livez?verbose")[0] == 200


def test_another_path_is_not_found_and_says_what_is_there(server: HttpServer) -> None:
    """Whoever opens the port in a browser sees where to go."""
    status, text = get(server, "/")

    assert status == 404
    assert "/metrics" in text


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/"])
def test_head_is_get_without_a_body(server: HttpServer, state: State, path: str) -> None:
    """Some load balancers probe with it."""
    for state.ready in (True, False):
        expected = get(server, path)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
        with contextlib.closing(connection):
            connection.request("HEAD", path)
            response = connection.getresponse()

            assert (response.status, response.read()) == (expected[0], b"")
            if path != "/metrics":  # other numbers by now
                assert int(response.headers["Content-Length"]) == len(expected[1])


def test_a_taken_port_is_an_error(server: HttpServer) -> None:
    """Two servers on one port would each see half of the scrapes."""
    with pytest.raises(OSError, match="in use"):
        HttpServer("127.0.0.1", server.port, CollectorRegistry(), live=lambda: True, ready=lambda: True)
