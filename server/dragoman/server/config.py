"""Server settings: one field = one flag = one environment variable. Standard library only."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from dragoman.server.device import parse_device
from dragoman.server.errors import StartupError

ENVIRONMENT_PREFIX = "DRAGOMAN_"
_LAST_PORT = 65535
_MOST_THREADS = 256  # each is created at start, twice; far more than that takes the machine down
_LARGEST = 2**31 - 1  # gRPC's options are 32 bits wide
_BYTES = ("cache_bytes", "gpu_mem_limit")  # of a machine's memory, which may be larger
DEFAULT_BUNDLE = Path(__file__).parent / "models" / "en-de"


def _option(default: Any, text: str, choices: Sequence[str] = ()) -> Any:
    return field(default=default, metadata={"help": text, "choices": tuple(choices)})


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Everything `dragoman serve` can be told. The help texts say when to change a value."""

    model: str = _option(
        str(DEFAULT_BUNDLE),
        "bundle folder to serve; the default is the English-German model that comes with the package",
    )
    host: str = _option("127.0.0.1", "address of both ports; 0.0.0.0 in a container")
    grpc_port: int = _option(50051, "gRPC port; 0 takes a free one")
    http_port: int = _option(8080, "port of /metrics, /livez and /readyz; 0 takes a free one")
    device: str = _option(
        "auto",
        "where to compute: auto, cpu, cuda, or cuda:N for GPU number N; auto takes a GPU if there is one and the "
        "bundle is meant for it, else the CPU; what is named is used, or the server does not start",
    )
    gpu_mem_limit: int = _option(
        0, "bytes of the GPU that each of the two graphs may take, besides the slot pool; 0 means any number"
    )
    threads: int = _option(
        0,
        "threads of each engine; 0 shares the CPUs that the container may use among the engines, and gives those of a "
        "model narrower than 512 one each",
    )
    replicas: int = _option(
        0,
        "engines, each with its own sessions, threads and share of the slots; more of them with fewer threads give "
        "throughput, fewer give latency; 0 means one per four CPUs, or, of a model narrower than "
        "512, one per CPU, at most two; on a GPU one",
    )
    max_rows: int = _option(
        64,
        "rows that decode together in all engines, one per text or one per beam; raise it for throughput if memory "
        "allows, lower it for latency",
    )
    cache_bytes: int = _option(
        0, "memory of the slot pool; 0 means what max_rows of the longest texts take, at most a quarter of the memory"
    )
    encode_tokens: int = _option(
        2048,
        "padded source tokens of an encode batch, a quarter of them while others are translated; lower it if long "
        "sources make running translations stutter",
    )
    max_texts: int = _option(256, "texts in one call")
    max_queued_texts: int = _option(2048, "texts that may wait; beyond it calls get RESOURCE_EXHAUSTED")
    max_message_bytes: int = _option(4 * 1024 * 1024, "size of one gRPC message, in both directions")
    drain_delay_s: float = _option(
        0.0, "seconds to go on accepting calls after SIGTERM, while routing notices; about 5 in Kubernetes"
    )
    drain_timeout_s: float = _option(30.0, "seconds that accepted calls get to finish after that")
    log_format: str = _option("text", "json for log collectors", ("text", "json"))
    log_level: str = _option("info", "least severe level to log", ("debug", "info", "warning", "error"))

    def __post_init__(self) -> None:
        """Check all values.

        Raises:
            StartupError: Names every wrong setting.
        """
        at_least = {
            1: ("max_rows", "encode_tokens", "max_texts", "max_queued_texts", "max_message_bytes"),
            0: ("threads", "replicas", "cache_bytes", "gpu_mem_limit", "drain_delay_s", "drain_timeout_s"),
        }
        problems = [
            f"{name} is {getattr(self, name)}; it must be at least {least}"
            for least, names in at_least.items()
            for name in names
            if getattr(self, name) < least
        ]
        problems += [
            f"{option.name} is {getattr(self, option.name)}; it must be at most {_LARGEST}"
            for option in fields(self)
            if option.type == "int" and option.name not in _BYTES and getattr(self, option.name) > _LARGEST
        ]
        if self.threads > _MOST_THREADS:
            problems.append(f"threads is {self.threads}; it must be at most {_MOST_THREADS}, and 0 fits the container")
        if self.replicas > self.max_rows:
            problems.append(f"replicas is {self.replicas} but max_rows only {self.max_rows}; each engine needs a slot")
        problems += [
            f"{name} is {getattr(self, name)}; it must be a finite number"
            for name in ("drain_delay_s", "drain_timeout_s")
            if not math.isfinite(getattr(self, name))
        ]
        problems += [
            f"{name} is {getattr(self, name)}; ports are 0 to {_LAST_PORT}"
            for name in ("grpc_port", "http_port")
            if not 0 <= getattr(self, name) <= _LAST_PORT
        ]
        if self.grpc_port == self.http_port != 0:
            problems.append(f"grpc_port and http_port are both {self.grpc_port}; each needs a port of its own")
        problems += [
            f"{option.name} is {getattr(self, option.name)!r}; choose one of {list(option.metadata['choices'])}"
            for option in fields(self)
            if option.metadata["choices"] and getattr(self, option.name) not in option.metadata["choices"]
        ]
        try:
            parse_device(self.device)
        except ValueError as error:
            problems.append(str(error))
        if self.max_texts > self.max_queued_texts:
            problems.append(
                f"max_texts is {self.max_texts} but max_queued_texts only {self.max_queued_texts}; "
                "a full call could never be accepted"
            )
        if problems:
            raise StartupError("server configuration: " + "; ".join(problems))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare one flag per field."""
    for option in fields(ServerConfig):
        parser.add_argument(
            _flag(option.name),
            default=None,
            metavar="{" + ",".join(option.metadata["choices"]) + "}"
            if option.metadata["choices"]
            else option.type.upper(),
            help=f"{option.metadata['help']} [{_variable(option.name)}, default: {_shown(option)}]".replace("%", "%%"),
        )


def from_arguments(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> ServerConfig:
    """Return the configuration: a flag wins over its environment variable, that over the default.

    Raises:
        StartupError: A value cannot be read or is out of range.
    """
    values: dict[str, Any] = {}
    problems = []
    for option in fields(ServerConfig):
        given = getattr(arguments, option.name)
        name = _flag(option.name)
        if given is None:
            given, name = environment.get(_variable(option.name)), _variable(option.name)
        if given is None:
            continue
        kind = {"int": int, "float": float, "str": str}[str(option.type)]
        try:
            values[option.name] = kind(given)
        except ValueError:
            problems.append(f"{name} is {given!r}; it must be {'a whole number' if kind is int else 'a number'}")
    if problems:
        raise StartupError("server configuration: " + "; ".join(problems))
    return ServerConfig(**values)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def _shown(option: Any) -> str:
    if option.default is MISSING or option.name == "model":
        return "built in"
    return str(option.default)
