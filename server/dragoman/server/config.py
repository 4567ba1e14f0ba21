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
_PORTS = ("grpc_port", "http_port")
_LAST_PORT = 65535
_MOST_THREADS = 256  # each is created at start, twice; far more than that takes the machine down
_LARGEST = 2**31 - 1  # gRPC's options are 32 bits wide
_MOST_BYTES = 2**50  # of a machine's memory
_LONGEST_S = 86_400  # a day; nobody waits for a server's end so long
_SHOWN = 40
DEFAULT_BUNDLE = Path(__file__).parent / "models" / "en-de"


def _option(
    default: Any, text: str, choices: Sequence[str] = (), *, least: int = 0, most: int = _LARGEST, hint: str = ""
) -> Any:
    """Return a field: of a number `least` and `most` are its range, and `hint` says more about it."""
    return field(
        default=default,
        metadata={"help": text, "choices": tuple(choices), "least": least, "most": most, "hint": hint},
    )


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Everything `dragoman serve` can be told. The help texts say when to change a value."""

    model: str = _option(
        str(DEFAULT_BUNDLE),
        "bundle folder to serve; the default is the English-German model that comes with the package",
    )
    host: str = _option("127.0.0.1", "address of both ports; 0.0.0.0 in a container")
    grpc_port: int = _option(50051, "gRPC port; 0 takes a free one", most=_LAST_PORT)
    http_port: int = _option(8080, "port of /metrics, /livez and /readyz; 0 takes a free one", most=_LAST_PORT)
    device: str = _option(
        "auto",
        "where to compute: auto, cpu, cuda, or cuda:N for GPU number N; auto takes a GPU if there is one and the "
        "bundle is meant for it, else the CPU; what is named is used, or the server does not start",
    )
    gpu_mem_limit: int = _option(
        0,
        "bytes of the GPU that each of the two graphs may take, besides the slot pool; 0 means any number",
        most=_MOST_BYTES,
    )
    threads: int = _option(
        0,
        "threads of each engine; 0 shares the CPUs that the container may use among the engines, and gives those of a "
        "model narrower than 512 one each",
        most=_MOST_THREADS,
        hint=", and 0 fits the container",
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
        least=1,
    )
    cache_bytes: int = _option(
        0,
        "memory of the slot pool; 0 means what max_rows of the longest texts take, at most a quarter of the memory",
        most=_MOST_BYTES,
    )
    encode_tokens: int = _option(
        2048,
        "padded source tokens of an encode batch, a quarter of them while others are translated; lower it if long "
        "sources make running translations stutter",
        least=1,
    )
    max_texts: int = _option(256, "texts in one call", least=1)
    max_queued_texts: int = _option(
        2048,
        "texts that may wait; beyond it calls get RESOURCE_EXHAUSTED, and so does a caller who has some waiting and "
        "sends more than would then be left for others: alone, one gets half",
        least=1,
    )
    max_message_bytes: int = _option(4 * 1024 * 1024, "size of one gRPC message, in both directions", least=1)
    drain_delay_s: float = _option(
        0.0,
        "seconds to go on accepting calls after SIGTERM, while routing notices; about 5 in Kubernetes",
        most=_LONGEST_S,
    )
    drain_timeout_s: float = _option(30.0, "seconds that accepted calls get to finish after that", most=_LONGEST_S)
    log_format: str = _option("text", "json for log collectors", ("text", "json"))
    log_level: str = _option("info", "least severe level to log", ("debug", "info", "warning", "error"))

    def __post_init__(self) -> None:
        """Check all values.

        Raises:
            StartupError: Names every wrong setting.
        """
        problems = {option.name: problem for option in fields(self) if (problem := _problem(option, self))}
        try:
            parse_device(self.device)
        except ValueError as error:
            problems["device"] = str(error)
        # Of values that are wrong themselves it would confuse to say that they do not go together.
        if self.replicas > self.max_rows and problems.keys().isdisjoint(("replicas", "max_rows")):
            problems["replicas"] = (
                f"replicas is {self.replicas} but max_rows only {self.max_rows}; each engine needs a slot"
            )
        if self.grpc_port == self.http_port != 0 and problems.keys().isdisjoint(("grpc_port", "http_port")):
            problems["grpc_port"] = f"grpc_port and http_port are both {self.grpc_port}; each needs a port of its own"
        if self.max_texts > self.max_queued_texts and problems.keys().isdisjoint(("max_texts", "max_queued_texts")):
            problems["max_texts"] = (
                f"max_texts is {self.max_texts} but max_queued_texts only {self.max_queued_texts}; "
                "a full call could never be accepted"
            )
        if problems:
            raise StartupError("server configuration: " + "; ".join(problems.values()))


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

    A variable that is set but empty, as templates leave it, counts as not set; an empty flag does not.

    Raises:
        StartupError: A value cannot be read or is out of range.
    """
    values: dict[str, Any] = {}
    problems = []
    for option in fields(ServerConfig):
        given = getattr(arguments, option.name)
        name = _flag(option.name)
        if given is None:
            given, name = environment.get(_variable(option.name)) or None, _variable(option.name)
        if given is None:
            continue
        kind = {"int": int, "float": float, "str": str}[str(option.type)]
        try:
            values[option.name] = kind(given)
        except ValueError:
            number = "a whole number" if kind is int else "a number"
            problems.append(f"{name} is {_show(given)}; it must be {number}")
    if problems:
        raise StartupError("server configuration: " + "; ".join(problems))
    return ServerConfig(**values)


def _problem(option: Any, config: ServerConfig) -> str:
    """Return what is wrong with a value, looked at alone; empty if nothing is."""
    value, rules = getattr(config, option.name), option.metadata
    start = f"{option.name} is {_show(value)}; "
    if option.type == "str":
        if rules["choices"] and value not in rules["choices"]:
            return f"{start}choose one of {list(rules['choices'])}"
        return "" if value else f"{start}give one, or leave it out for the default, {_shown(option)}"
    if option.type == "float" and not math.isfinite(value):
        return f"{start}it must be a finite number"
    if option.name in _PORTS and not 0 <= value <= rules["most"]:
        return f"{start}ports are 0 to {rules['most']}"
    if value < rules["least"]:
        return f"{start}it must be at least {rules['least']}"
    return f"{start}it must be at most {rules['most']}{rules['hint']}" if value > rules["most"] else ""


def _show(value: Any) -> str:
    """Return a value as a message shows it: as it was given, but not by the hundred digits."""
    text = str(value)
    text = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return repr(text) if isinstance(value, str) else text


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def _shown(option: Any) -> str:
    if option.default is MISSING or option.name == "model":
        return "built in"
    return str(option.default)
