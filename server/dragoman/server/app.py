"""Composition root: builds the parts, starts them in order, drains and stops them.

ports open, health NOT_SERVING -> load -> warm up -> SERVING
SIGTERM, SIGINT or SIGHUP -> NOT_SERVING -> drain_delay_s -> refuse new calls -> finish accepted ones -> exit 0
SIGTERM or SIGINT once more -> wait no longer: accepted calls get UNAVAILABLE
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from dragoman.export import bundle
from dragoman.export.bundle import Manifest
from dragoman.export.errors import BundleError
from dragoman.server import ports
from dragoman.server.config import ServerConfig
from dragoman.server.engine import Event
from dragoman.server.errors import StartupError
from dragoman.server.http import HttpServer
from dragoman.server.loading import load_model
from dragoman.server.metrics import Metrics
from dragoman.server.registrar import Registrar
from dragoman.server.replicas import Replicas
from dragoman.server.service import CallLimits, Phase, TranslationService
from dragoman.v1 import translation_pb2, translation_pb2_grpc

logger = logging.getLogger(__name__)

SERVICE = translation_pb2.DESCRIPTOR.services_by_name["TranslationService"].full_name
_HEALTH_NAMES = ("", SERVICE)
_RUNTIMES = ("onnxruntime", "onnxruntime-gpu")
# A stopping server waits until so long no new call has come, and for all that still come at most so long.
_QUIET_S, _LATECOMERS_S = 0.1, 1.0
# Once no call is open, its last bytes may still be on their way to the caller.
_FLUSH_S = 0.5


async def serve(config: ServerConfig) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP, then drain; one of the first two once more ends the drain.

    Raises:
        StartupError: The bundle, a port or the runtime cannot be used.
    """
    told, told_again = _watch_signals()
    check_one_runtime()
    try:
        manifest = bundle.load_manifest(Path(config.model))
    except BundleError as error:
        raise StartupError(str(error)) from error
    server = Server(config, manifest)
    await server.start()
    await told.wait()
    await _drain(server, told_again)


def _watch_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Return what is set once the process is told to stop, and once it is told again."""
    told, again = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (again if told.is_set() else told).set())
    # A terminal that is closed may send several, which is no hurry; with nohup the server goes on without it.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, told.set)
    return told, again


async def _drain(server: Server, told_again: asyncio.Event) -> None:
    stopping = asyncio.create_task(server.stop())
    hurry = asyncio.create_task(told_again.wait())
    await asyncio.wait((stopping, hurry), return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    if not stopping.done():
        logger.warning("told to stop again: open calls end now")
        await server.end_calls()
    await stopping


class Server:
    """One process's server: a bundle, an engine, a gRPC port and an HTTP port."""

    def __init__(self, config: ServerConfig, manifest: Manifest) -> None:
        """Build the parts that need no model."""
        self._config = config
        self._manifest = manifest
        self.metrics = Metrics(manifest.name)
        self._tokenizers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenizer")
        limits = CallLimits(config.max_texts, config.max_message_bytes, config.max_queued_texts)
        self.service = TranslationService(self.metrics, limits, self._tokenizers)
        self._health = health.aio.HealthServicer()
        self._grpc = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", config.max_message_bytes),
                ("grpc.max_send_message_length", config.max_message_bytes),
                ("grpc.so_reuseport", 0),  # two servers on one port are a mistake here, not a feature
            ]
        )
        self._http: HttpServer | None = None
        self._engine: Replicas | None = None
        self._stopping = False
        self._hurried = asyncio.Event()
        self.port = 0

    @property
    def http_port(self) -> int:
        """The HTTP port in use."""
        return self._http.port if self._http else 0

    async def start(self) -> None:
        """Open the ports, load, warm up, accept calls.

        Raises:
            StartupError: Something cannot be used.
        """
        await self._open_ports()
        started = time.monotonic()
        loop = asyncio.get_running_loop()

        def deliver(events: Sequence[Event]) -> None:
            loop.call_soon_threadsafe(_run_all, events)

        model = await loop.run_in_executor(None, load_model, self._config, self._manifest, self.metrics, deliver)
        self._engine = model.engine
        self._engine.start()
        self.service.serve(model)
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        logger.info("ready after=%.2fs", time.monotonic() - started)
        # One line on stdout for scripts: with port 0 it is how they learn the ports.
        addresses = (ports.address(self._config.host, port) for port in (self.port, self.http_port))
        print("ready grpc={} http={}".format(*addresses), flush=True)

    async def stop(self) -> None:
        """Drain and stop; returns when the last accepted call has its answer."""
        logger.info("draining delay=%.1fs timeout=%.1fs", self._config.drain_delay_s, self._config.drain_timeout_s)
        self._stopping = True
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain_delay_s):
                await self._hurried.wait()
        self.service.drain()
        await self._refuse_latecomers()
        await self._stop_grpc()
        if self._engine is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._engine.close)
        if self._http is not None:
            self._http.stop()
        self._tokenizers.shutdown()
        logger.info("stopped")

    async def end_calls(self) -> None:
        """End all calls with UNAVAILABLE; `stop` has then nothing more to wait for."""
        self._hurried.set()
        await self._grpc.stop(0)

    async def _refuse_latecomers(self) -> None:
        """Go on refusing calls until none has come for a moment.

        A stopped gRPC server cancels calls that it has read and no handler has begun, dozens if the loop was busy. A
        caller is not told by that to send the call elsewhere.
        """
        end = time.monotonic() + _LATECOMERS_S
        refused = -1
        while refused != self.service.begun and time.monotonic() < end:
            refused = self.service.begun
            await asyncio.sleep(_QUIET_S)

    async def _stop_grpc(self) -> None:
        """Return when no translation is open any more, at the latest after the drain timeout.

        Health watches never end by themselves, so waiting for all calls would always take the timeout.
        """
        stopped = asyncio.ensure_future(self._grpc.stop(self._config.drain_timeout_s))
        idle = asyncio.ensure_future(self.service.idle())
        await asyncio.wait((stopped, idle), return_when=asyncio.FIRST_COMPLETED)
        await self._grpc.stop(_FLUSH_S)  # the shorter grace wins
        await stopped
        idle.cancel()

    async def _open_ports(self) -> None:
        registrar = Registrar(self._grpc, self._refused)
        translation_pb2_grpc.add_TranslationServiceServicer_to_server(
            self.service,
            registrar,  # type: ignore[arg-type]  # has what is called
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, registrar)
        names = [SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflection.aio.ReflectionServicer(names), registrar)
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        config = self._config
        try:
            ports.check_free(config.host, config.grpc_port)
            self.port = self._grpc.add_insecure_port(ports.address(config.host, config.grpc_port))
        except (OSError, RuntimeError) as error:
            raise ports.cannot_listen("gRPC", config.host, config.grpc_port, "--grpc-port", error) from error
        try:
            self._http = HttpServer(
                config.host, config.http_port, self.metrics.registry, live=self._live, ready=self._ready
            )
        except OSError as error:
            raise ports.cannot_listen("HTTP", config.host, config.http_port, "--http-port", error) from error
        self._http.start()
        await self._grpc.start()

    def _refused(self, service: str, method: str) -> None:
        if service == SERVICE:  # the metrics are about its calls
            self.metrics.request_ended(method, grpc.StatusCode.INVALID_ARGUMENT.name, 0.0)

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in _HEALTH_NAMES:
            await self._health.set(name, status)

    def _live(self) -> bool:
        return self._engine is None or self._engine.alive

    def _ready(self) -> bool:
        return self.service.phase is Phase.SERVING and not self._stopping and self._live()


def check_one_runtime() -> None:
    """Refuse to run with both runtime packages installed: they overwrite each other's files."""
    names = {(d.metadata["Name"] or "").lower() for d in distributions()}
    found = [name for name in _RUNTIMES if name in names]
    if len(found) > 1:
        raise StartupError(
            f"both {found[0]} and {found[1]} are installed and overwrite each other; "
            "uninstall both, then install one of the extras: dragoman[server] or dragoman[server-gpu]"
        )


def _run_all(events: Sequence[Event]) -> None:
    for event in events:
        try:
            event()
        except Exception:  # the other events belong to other callers
            logger.exception("an event of the engine failed")
