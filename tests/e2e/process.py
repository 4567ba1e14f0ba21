"""A server in a process of its own, and what a test wants to know about it."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import grpc
from prometheus_client.parser import text_string_to_metric_families

from dragoman.v1.translation_pb2_grpc import TranslationServiceStub

BUNDLE = Path(__file__).parents[1] / "data" / "tiny-v1"
WAIT_S = 30.0  # a test that needs this long has failed
_POLL_S = 0.01
_COMMAND = (sys.executable, "-m", "dragoman.cli.main")
# Loopback must not go through a proxy that the environment names.
_CHANNEL_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1))
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    """Poll until something holds."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(_POLL_S)


def serve_command(
    *flags: str, model: Path = BUNDLE, port: int = 0, http_port: int = 0, command: Sequence[str] = _COMMAND
) -> list[str]:
    """Return the command line of a server on loopback."""
    ports = ["--grpc-port", str(port), "--http-port", str(http_port)]
    return [*command, "serve", "--model", str(model), *ports, "--threads", "1", *flags]


def clean_environment(**changes: str) -> dict[str, str]:
    """Return this process's environment without anything that would configure a server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DRAGOMAN_", "ORT_"))}
    return {**kept, **changes}


class ServerProcess:
    """A running server.

    Attributes:
        process: The process.
        address: gRPC host and port.
        http_address: HTTP host and port.
        channel: To `address`.
        stub: On `channel`.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path | None = None) -> None:
        """Start it and wait until it accepts calls."""
        # Not a pipe: one that nobody reads would block the server.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by kill()
        self._written = ""
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._errors, env=dict(environment), cwd=folder
        )
        try:
            ready = dict(part.split("=") for part in self._first_line().split()[1:])
            self.address, self.http_address = ready["grpc"], ready["http"]
        except BaseException:
            self.kill()
            raise
        self.channel = grpc.insecure_channel(self.address, _CHANNEL_OPTIONS)
        self.stub = TranslationServiceStub(self.channel)

    def __enter__(self) -> ServerProcess:
        """Use as a context: leaving stops the server."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the server; it must have gone the clean way, whatever was done to it."""
        code = self.stop()
        if error is None:
            assert code == 0, self.errors
            assert "Traceback" not in self.errors, self.errors
            assert "Warning" not in self.errors, self.errors

    @property
    def errors(self) -> str:
        """What it has written to stderr so far."""
        if not self._errors.closed:
            self._errors.seek(0)
            self._written = self._errors.read().decode()
        return self._written

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.terminate()

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """Return the exit code."""
        return self.process.wait(timeout_s)

    def stop(self) -> int:
        """Stop it if it still runs and return its exit code."""
        self.channel.close()
        self.terminate()
        try:
            return self.wait()
        finally:
            self.kill()

    def kill(self) -> None:
        """End the process whatever it does."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._written = self.errors
        self._errors.close()

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body of a page of the HTTP port."""
        try:
            with _OPENER.open(f"http://{self.http_address}{path}", timeout=WAIT_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metrics(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Return every sample by name and labels, without the model's."""
        _, text = self.get("/metrics")
        return {
            (sample.name, frozenset((k, v) for k, v in sample.labels.items() if k != "model")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def metric(self, name: str, **labels: str) -> float:
        """Return one sample; 0 if it does not exist yet."""
        return self.metrics().get((f"dragoman_{name}", frozenset(labels.items())), 0.0)

    def rows_in_engine(self) -> float:
        """Return how many rows wait or run, from one scrape."""
        metrics = self.metrics()
        return sum(metrics[f"dragoman_texts_{state}", frozenset()] for state in ("waiting", "running"))

    def _first_line(self) -> str:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(WAIT_S):
                raise AssertionError(f"the server is not ready after {WAIT_S} s: {self.errors}")
        line = self.process.stdout.readline().decode()
        if not line.startswith("ready "):
            raise AssertionError(f"the server did not start, its first line is {line!r}: {self.errors}")
        return line


def start_server(*flags: str, model: Path = BUNDLE) -> ServerProcess:
    """Start a server on free loopback ports."""
    return ServerProcess(serve_command(*flags, model=model), clean_environment())
