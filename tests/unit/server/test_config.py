import argparse
from collections.abc import Mapping
from dataclasses import fields

import pytest

from dragoman.server.config import DEFAULT_BUNDLE, ServerConfig, add_arguments, from_arguments
from dragoman.server.errors import StartupError

NO_ENVIRONMENT: Mapping[str, str] = {}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser


def configure(*flags: str, environment: Mapping[str, str] = NO_ENVIRONMENT) -> ServerConfig:
    return from_arguments(parser().parse_args(flags), environment)


def test_defaults_are_valid_and_stay_on_this_machine() -> None:
    """Without any setting the server listens on loopback only, with the bundle of the package."""
    config = configure()

    assert config == ServerConfig()
    assert (config.host, config.grpc_port, config.http_port) == ("127.0.0.1", 50051, 8080)
    assert config.model == str(DEFAULT_BUNDLE)


def test_a_flag_wins_over_its_variable_and_that_over_the_default() -> None:
    """Every setting has the same three places, in this order."""
    environment = {"DRAGOMAN_MAX_ROWS": "8", "DRAGOMAN_THREADS": "3"}

    config = configure("--max-rows", "4", environment=environment)

    assert (config.max_rows, config.threads, config.encode_tokens) == (4, 3, 2048)


@pytest.mark.parametrize("name", [option.name for option in fields(ServerConfig)])
def test_every_field_has_a_flag_a_variable_and_help(name: str) -> None:
    """One field is one flag is one variable, and the help names the variable."""
    text = parser().format_help()

    assert f"--{name.replace('_', '-')} " in text
    assert f"DRAGOMAN_{name.upper()}," in "".join(text.split())


def test_values_get_the_type_of_their_field() -> None:
    """Numbers are numbers, whole or not, wherever they come from."""
    config = configure(
        "--drain-delay-s", "2.5", environment={"DRAGOMAN_GRPC_PORT": "0", "DRAGOMAN_DRAIN_TIMEOUT_S": "7"}
    )

    assert (config.drain_delay_s, config.grpc_port, config.drain_timeout_s) == (2.5, 0, 7.0)


def test_every_unreadable_value_is_reported_with_the_name_that_was_used() -> None:
    """One start tells all that has to be corrected, and where."""
    environment = {"DRAGOMAN_MAX_ROWS": "many", "DRAGOMAN_HTTP_PORT": "x" * 5000, "DRAGOMAN_DRAIN_DELAY_S": "soon"}

    with pytest.raises(StartupError) as caught:
        configure("--grpc-port", "1e3", environment=environment)

    message = str(caught.value)
    assert "--grpc-port is '1e3'; it must be a whole number" in message
    assert "DRAGOMAN_MAX_ROWS is 'many'; it must be a whole number" in message
    assert "xxx…'; it must be a whole number" in message
    assert len(message) < 500
    assert "DRAGOMAN_DRAIN_DELAY_S is 'soon'; it must be a number" in message


def test_every_value_out_of_range_is_reported() -> None:
    """All ranges are checked, not only up to the first problem."""
    with pytest.raises(StartupError) as caught:
        ServerConfig(
            max_rows=0,
            encode_tokens=-1,
            max_message_bytes=0,
            threads=-2,
            drain_delay_s=-0.5,
            grpc_port=65536,
            http_port=-1,
            device="tpu",
            log_format="xml",
            log_level="loud",
        )

    message = str(caught.value)
    for problem in (
        "max_rows is 0; it must be at least 1",
        "encode_tokens is -1; it must be at least 1",
        "max_message_bytes is 0; it must be at least 1",
        "threads is -2; it must be at least 0",
        "drain_delay_s is -0.5; it must be at least 0",
        "grpc_port is 65536; ports are 0 to 65535",
        "http_port is -1; ports are 0 to 65535",
        "device is 'tpu'; it must be auto, cpu, cuda or cuda:N",
        "log_format is 'xml'; choose one of ['text', 'json']",
        "log_level is 'loud'; choose one of",
    ):
        assert problem in message


@pytest.mark.parametrize("name", ["drain_delay_s", "drain_timeout_s"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_times_have_to_be_finite(name: str, value: str) -> None:
    """A drain that never ends, or a time that is no number, is found at the start and not at SIGTERM."""
    with pytest.raises(StartupError, match=f"{name} is {value}; it must be a finite number"):
        configure(f"--{name.replace('_', '-')}", value)


def test_the_two_ports_have_to_differ() -> None:
    """Unless the system chooses them."""
    with pytest.raises(StartupError, match="grpc_port and http_port are both 7000; each needs a port of its own"):
        ServerConfig(grpc_port=7000, http_port=7000)
    ServerConfig(grpc_port=0, http_port=0)


def test_a_full_call_has_to_fit_into_the_queue() -> None:
    """A call of max_texts that could never be accepted is a mistake of the configuration."""
    with pytest.raises(StartupError, match="max_texts is 10 but max_queued_texts only 9"):
        ServerConfig(max_texts=10, max_queued_texts=9)


def test_the_limits_themselves_are_allowed() -> None:
    """Smallest and largest values are in range."""
    ServerConfig(
        grpc_port=0, http_port=65535, max_rows=1, encode_tokens=1, max_texts=1, max_queued_texts=1, max_message_bytes=1,
        threads=0, drain_delay_s=0.0, drain_timeout_s=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("threads", "100000", "at most 256"),
        ("threads", "2147483648", "at most 256"),
        ("max_message_bytes", "3000000000", "at most 2147483647"),
        ("max_rows", "9" * 400, "at most 2147483647"),
        ("cache_bytes", "9" * 400, "at most 1125899906842624"),
        ("gpu_mem_limit", str(2**63), "at most 1125899906842624"),
        ("drain_timeout_s", "1e+300", "at most 86400"),
        ("drain_delay_s", "1e+300", "at most 86400"),
    ],
)
def test_a_value_that_would_take_the_machine_down_is_refused(name: str, value: str, limit: str) -> None:
    """A mistyped number ends in one short sentence and not in a hundred thousand threads."""
    with pytest.raises(StartupError) as caught:
        configure(f"--{name.replace('_', '-')}", value)

    message = str(caught.value)
    assert f"{name} is {value[:40]}" in message
    assert message.count("it must be") == message.count(f"it must be {limit}") == 1
    assert len(message) < 150


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"max_rows": -5}, "max_rows is -5; it must be at least 1"),
        ({"max_queued_texts": 0}, "max_queued_texts is 0; it must be at least 1"),
        ({"max_texts": 2**31}, f"max_texts is {2**31}; it must be at most {2**31 - 1}"),
        ({"replicas": 2**31}, f"replicas is {2**31}; it must be at most {2**31 - 1}"),
        ({"grpc_port": -1, "http_port": -1}, "grpc_port is -1; ports are 0 to 65535; http_port is -1; ports are"),
    ],
    ids=str,
)
def test_a_wrong_value_is_reported_once(values: dict[str, int], problem: str) -> None:
    """That it does not go together with others follows from it and would only confuse."""
    with pytest.raises(StartupError) as caught:
        ServerConfig(**values)  # type: ignore[arg-type]  # numbers only

    message = str(caught.value)
    assert problem in message
    assert message.count("; ") == 2 * len(values) - 1


def test_a_variable_that_is_empty_is_not_set() -> None:
    """Templates of Kubernetes leave variables so when nobody gave a value; an empty flag is a mistake."""
    empty = {f"DRAGOMAN_{option.name.upper()}": "" for option in fields(ServerConfig)}

    assert configure(environment=empty) == ServerConfig()
    with pytest.raises(StartupError, match="--max-rows is ''; it must be a whole number"):
        configure("--max-rows", "")


@pytest.mark.parametrize("name", [option.name for option in fields(ServerConfig) if option.type == "str"])
def test_an_empty_text_is_refused(name: str) -> None:
    """As a folder it would be the current one, as an address all of them."""
    with pytest.raises(StartupError, match=f"{name} is ''; "):
        configure(f"--{name.replace('_', '-')}", "")
