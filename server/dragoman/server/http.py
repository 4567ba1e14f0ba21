"""The HTTP port: /metrics for Prometheus, /livez and /readyz for Kubernetes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder


class HttpServer:
    """Serves on threads of its own, so that a scrape never waits for a translation."""

    def __init__(
        self, host: str, port: int, registry: CollectorRegistry, *, live: Callable[[], bool], ready: Callable[[], bool]
    ) -> None:
        """Bind the port.

        Args:
            host: Address.
            port: 0 takes a free one.
            registry: What /metrics shows.
            live: Whether the process works; false asks for a restart.
            ready: Whether it wants new calls.

        Raises:
            OSError: The port is taken.
        """
        handler = type("Handler", (_Handler,), {"registry": registry, "checks": {"/livez": live, "/readyz": ready}})
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = type("Server", (ThreadingHTTPServer,), {"address_family": family, "daemon_threads": True})
        self._server: ThreadingHTTPServer = server((host, port), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    @property
    def port(self) -> int:
        """The port in use."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    registry: CollectorRegistry
    checks: dict[str, Callable[[], bool]]

    def do_GET(self) -> None:  # the base class's name
        """Answer one of the three paths."""
        path = self.path.split("?")[0]
        if path == "/metrics":
            encode, content_type = choose_encoder(self.headers.get("Accept", ""))
            self._send(HTTPStatus.OK, content_type, encode(self.registry))
        elif path in self.checks:
            passed = self.checks[path]()
            status = HTTPStatus.OK if passed else HTTPStatus.SERVICE_UNAVAILABLE
            self._send(status, "text/plain; charset=utf-8", b"ok\n" if passed else b"no\n")
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"try /metrics, /livez or /readyz\n")

    do_HEAD = do_GET  # noqa: N815  # the base class's name; the answer is the same, less its body

    def _send(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
        """Say nothing: probes and scrapes come every few seconds."""
