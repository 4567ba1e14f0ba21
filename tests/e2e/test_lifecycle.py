"""From start to exit: readiness, drain, and the starts that must fail."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dragoman.export import bundle
from dragoman.export.bundle import Manifest
from dragoman.model.generated import number_example
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1.translation_pb2_grpc import TranslationServiceStub
from tests.e2e.process import BUNDLE, WAIT_S, ServerProcess, clean_environment, serve_command, start_server, wait_for

SERVICE = "dragoman.v1.TranslationService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
ENDLESS = "and " * 30  # not a sentence: the model repeats itself up to the limit
NUM_CALLS, NUM_STREAMS = 32, 4
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
GOOD = number_example(42)
_FILES = (*bundle.GRAPHS, "tokenizer.model")
ONE_TEXT = pb.TranslateRequest(texts=[GOOD.source])


def check(server: ServerProcess, service: str) -> health_pb2.HealthCheckResponse.ServingStatus:
    stub = health_pb2_grpc.HealthStub(server.channel)
    response = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=WAIT_S)
    status: health_pb2.HealthCheckResponse.ServingStatus = response.status
    return status


def watch(server: ServerProcess, service: str) -> Iterator[health_pb2.HealthCheckResponse]:
    """Watch a service's health and read the first answer."""
    stub = health_pb2_grpc.HealthStub(server.channel)
    call: Iterator[health_pb2.HealthCheckResponse] = stub.Watch(health_pb2.HealthCheckRequest(service=service))
    assert next(call).status == SERVING
    return call


def start_calls(
    server: ServerProcess,
) -> tuple[Sequence[grpc.Future[pb.TranslateResponse]], Sequence[Iterable[pb.StreamTranslateResponse]]]:
    """Send unary calls and streams that take a while together, and return when all are in the engine."""
    options = pb.DecodingOptions(max_new_tokens=128)
    request = pb.TranslateRequest(texts=[ENDLESS] * 3, options=options)
    calls = [server.stub.Translate.future(request, timeout=WAIT_S) for _ in range(NUM_CALLS - NUM_STREAMS)]
    stream = pb.StreamTranslateRequest(text=ENDLESS, options=options)
    streams = [server.stub.StreamTranslate(stream, timeout=WAIT_S) for _ in range(NUM_STREAMS)]
    wait_for(lambda: server.metric("tokenize_duration_seconds_count") == NUM_CALLS, "all calls are accepted")
    return calls, streams


def refused(server: ServerProcess) -> grpc.RpcError | None:
    """Try a call that needs no slot, on a new connection; returns its error, if any."""
    with grpc.insecure_channel(server.address, (("grpc.enable_http_proxy", 0),)) as channel:
        try:
            TranslationServiceStub(channel).Translate(pb.TranslateRequest(texts=[""]), timeout=WAIT_S)
        except grpc.RpcError as error:
            return error
    return None


# Readiness


def test_ready_means_serving(server: ServerProcess) -> None:
    """When the line on stdout is there, health, probes and calls all agree."""
    assert [check(server, name) for name in ("", SERVICE)] == [SERVING, SERVING]
    assert (server.get("/livez"), server.get("/readyz")) == ((200, "ok\n"), (200, "ok\n"))
    assert server.stub.Translate(ONE_TEXT, timeout=WAIT_S).translations[0].text == GOOD.target


def test_health_of_another_service_is_unknown(server: ServerProcess) -> None:
    """Check says NOT_FOUND, Watch says SERVICE_UNKNOWN and stays open, as the protocol wants."""
    with pytest.raises(grpc.RpcError) as caught:
        check(server, "other.Service")
    call = health_pb2_grpc.HealthStub(server.channel).Watch(health_pb2.HealthCheckRequest(service="other.Service"))
    first = next(call)
    call.cancel()

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert first.status == UNKNOWN


def test_reflection_lists_the_services(server: ServerProcess) -> None:
    """Tools such as grpcurl need no .proto file."""
    stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    requests = iter(
        [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        ]
    )

    listing, file = stub.ServerReflectionInfo(requests, timeout=WAIT_S)

    names = {service.name for service in listing.list_services_response.service}
    assert names == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert file.file_descriptor_response.file_descriptor_proto


def test_the_model_describes_itself(server: ServerProcess) -> None:
    """GetModel and ListModels tell what the bundle says, and which device is really used."""
    manifest = bundle.load_manifest(BUNDLE)
    model = server.stub.GetModel(pb.GetModelRequest(), timeout=WAIT_S).model

    assert list(server.stub.ListModels(pb.ListModelsRequest(), timeout=WAIT_S).models) == [model]
    assert server.stub.GetModel(pb.GetModelRequest(name="tiny"), timeout=WAIT_S).model == model
    assert (model.name, model.version, model.precision) == ("tiny", manifest.version, "fp32")
    assert (model.requested_device, model.device) == ("auto", "cpu")
    assert [(pair.source_language, pair.target_language) for pair in model.language_pairs] == [("en", "de")]


def test_metrics_show_model_memory_and_calls(server: ServerProcess) -> None:
    """What a dashboard needs is there after the first call, and no sample carries a text."""
    before = server.metric("requests_total", method="Translate", code="OK")
    server.stub.Translate(pb.TranslateRequest(texts=["seventeen weeks"]), timeout=WAIT_S)
    wait_for(
        lambda: server.metric("requests_total", method="Translate", code="OK") == before + 1, "the call is counted"
    )

    info = {"precision": "fp32", "device": "cpu", "requested_device": "auto"}
    version = bundle.load_manifest(BUNDLE).version
    _, text = server.get("/metrics")
    assert server.metric("model_info", version=version, **info) == 1
    assert server.metric("slots") == 64
    assert server.metric("cache_bytes") == 64 * (128 + 128) * 64 * 2 * 4
    assert server.metric("source_tokens_total") > 0
    assert server.metric("target_tokens_total") > 0
    assert server.metric("request_duration_seconds_count", method="Translate") > 0
    assert server.metric("time_to_first_token_seconds_count") > 0
    assert server.metric("engine_failures_total") == 0
    assert "process_resident_memory_bytes" in text
    assert "seventeen" not in text
    assert "_created" not in text


def test_memory_of_the_pool_is_committed_before_ready() -> None:
    """A server that starts also has the memory for the longest texts."""
    with start_server("--max-rows", "1024") as server:
        planned = server.metric("cache_bytes")

        assert planned == 1024 * (128 + 128) * 64 * 2 * 4
        assert server.metrics()["process_resident_memory_bytes", frozenset()] > planned


def test_logs_never_show_a_text() -> None:
    """With every detail switched on, each line is JSON and none has anything of what was translated."""
    with start_server("--log-format", "json", "--log-level", "debug") as server:
        server.stub.Translate(ONE_TEXT, timeout=WAIT_S)
        list(server.stub.StreamTranslate(pb.StreamTranslateRequest(text=GOOD.source), timeout=WAIT_S))
        with pytest.raises(grpc.RpcError):
            server.stub.Translate(pb.TranslateRequest(texts=[GOOD.source * 100]), timeout=WAIT_S)
    entries = [json.loads(line) for line in server.errors.splitlines()]

    assert {"time", "level", "logger", "message"} <= set(entries[0])
    assert any(entry["message"].startswith("loaded model=tiny") for entry in entries)
    assert GOOD.source not in server.errors
    assert GOOD.target not in server.errors


# Drain


def test_sigterm_finishes_what_was_accepted() -> None:
    """Health turns at once, calls are accepted for the delay, then refused; the 32 in flight are all answered."""
    with start_server("--max-rows", "2", "--drain-delay-s", "0.3") as server:
        watches = [watch(server, name) for name in ("", SERVICE)]
        calls, streams = start_calls(server)

        server.terminate()
        assert [next(call).status for call in watches] == [NOT_SERVING, NOT_SERVING]
        assert server.get("/readyz") == (503, "no\n")
        assert server.get("/livez") == (200, "ok\n")
        still_accepted = server.stub.Translate.future(ONE_TEXT, timeout=WAIT_S)
        wait_for(lambda: (error := refused(server)) is not None and error.code() is UNAVAILABLE, "calls are refused")
        assert not all(call.done() for call in calls)

        for call in calls:
            assert [t.finish_reason for t in call.result().translations] == [pb.FINISH_REASON_LENGTH] * 3
        for stream in streams:
            assert list(stream)[-1].end.finish_reason == pb.FINISH_REASON_LENGTH
        assert still_accepted.result().translations[0].text == GOOD.target
        assert server.wait() == 0


def test_an_idle_server_stops_at_once_whoever_watches_it() -> None:
    """A health watch never ends by itself; it must not hold up the exit for the whole drain timeout."""
    with start_server("--drain-timeout-s", "30") as server:
        call = watch(server, "")
        started = time.monotonic()
        server.terminate()
        assert next(call).status == NOT_SERVING

        assert server.wait() == 0
        assert time.monotonic() - started < 5


def test_the_drain_timeout_cuts_what_does_not_finish() -> None:
    """A call that is too long for it fails with UNAVAILABLE, to be sent elsewhere, and the exit is still clean."""
    with start_server("--max-rows", "1", "--drain-timeout-s", "0.2") as server:
        request = pb.TranslateRequest(texts=[ENDLESS] * 256, options=pb.DecodingOptions(max_new_tokens=128))
        call = server.stub.Translate.future(request, timeout=WAIT_S)
        wait_for(lambda: server.metric("texts_running") == 1, "the call runs")
        server.terminate()
        with pytest.raises(grpc.RpcError) as caught:
            call.result()

        assert caught.value.code() is UNAVAILABLE
        assert server.wait() == 0


def test_sigint_stops_like_sigterm() -> None:
    """Ctrl-C in a terminal is a drain, not a traceback."""
    with start_server() as server:
        server.process.send_signal(2)

        assert server.wait() == 0


# Starts that must fail


def fails_to_start(*flags: str, model: Path = BUNDLE, port: int = 0, http_port: int = 0, **environment: str) -> str:
    """Start a server that exits 1 before it is ready; returns the one line that it prints."""
    done = subprocess.run(
        serve_command(*flags, model=model, port=port, http_port=http_port),
        env=clean_environment(DRAGOMAN_LOG_LEVEL="warning", **environment),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr
    (message,) = done.stderr.splitlines()
    return message


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def copied_bundle(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUNDLE, tmp_path / "copy"))


def test_a_taken_grpc_port_is_an_error(taken_port: int) -> None:
    """The message names the port, the system's reason and the flag to choose another; gRPC's own log is silent."""
    message = fails_to_start(port=taken_port)

    assert message.startswith("dragoman serve: cannot listen on 127.0.0.1")
    assert f"gRPC port {taken_port}: Address already in use" in message
    assert "--grpc-port" in message


def test_a_taken_http_port_is_an_error(taken_port: int) -> None:
    """A server whose probes would fail does not pretend to run."""
    message = fails_to_start(http_port=taken_port)

    assert f"HTTP port {taken_port}" in message
    assert "--http-port" in message


@pytest.mark.parametrize("name", _FILES)
def test_a_damaged_file_is_named(copied_bundle: Path, name: str) -> None:
    """One flipped bit in any file of the bundle stops the start."""
    content = bytearray((copied_bundle / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copied_bundle / name).write_bytes(content)

    message = fails_to_start(model=copied_bundle)

    assert f"{name} does not have the sha256" in message
    assert "damaged or replaced" in message


def test_a_missing_bundle_is_an_error(tmp_path: Path) -> None:
    """The message has the path and what is missing."""
    message = fails_to_start(model=tmp_path / "nowhere")

    assert "nowhere is not a bundle: there is no such folder" in message


def test_what_is_no_bundle_is_named_with_the_way_to_one(tmp_path: Path) -> None:
    """A checkpoint of another library is what people try first; saying so needs none of the libraries that read it."""
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    (tmp_path / "model.safetensors").touch()

    message = fails_to_start(model=tmp_path)

    assert message.startswith(f"dragoman serve: {tmp_path} is not a bundle: it is a checkpoint of Hugging Face")
    assert f"`dragoman import hf {tmp_path} -o BUNDLE` makes a bundle of it" in message


@pytest.mark.parametrize("name", _FILES)
def test_a_file_that_is_whole_but_useless_is_named(copied_bundle: Path, name: str) -> None:
    """Right hashes do not make a graph or a tokenizer; the ports are open by then and no traceback is shown."""
    (copied_bundle / name).write_bytes(b"not what it should be")
    manifest = bundle.load_manifest(BUNDLE)
    hashes = {**manifest.sha256, name: bundle.file_sha256(copied_bundle / name)}
    write_manifest(copied_bundle, manifest, sha256=hashes)

    message = fails_to_start(model=copied_bundle)

    assert message.startswith("dragoman serve: ")
    assert name in message


def write_manifest(folder: Path, manifest: Manifest, **changes: object) -> None:
    replace(manifest, **changes).write(folder)  # type: ignore[arg-type]  # tests know the types


def test_a_tokenizer_of_another_model_is_an_error(copied_bundle: Path) -> None:
    """Its ids would mean other pieces; the start compares the sizes."""
    manifest = bundle.load_manifest(BUNDLE)
    write_manifest(copied_bundle, manifest, shape=replace(manifest.shape, vocab_size=401))

    assert "the tokenizer has 400 pieces, the graphs 401" in fails_to_start(model=copied_bundle)


def test_an_unknown_device_is_an_error() -> None:
    """The message lists what there is."""
    assert "device is 'tpu'; it must be auto, cpu, cuda or cuda:N" in fails_to_start("--device", "tpu")


def test_a_bundle_for_another_device_is_an_error(copied_bundle: Path) -> None:
    """A bundle that is meant for a GPU does not run on the CPU by accident."""
    write_manifest(copied_bundle, bundle.load_manifest(BUNDLE), devices=("cuda",))

    assert "not for the CPU" in fails_to_start(model=copied_bundle)


def test_a_pool_larger_than_memory_is_an_error() -> None:
    """The message has the size and the setting to lower."""
    message = fails_to_start("--max-rows", str(10**9))

    assert "no memory for the caches of 1000000000 rows" in message
    assert "lower --max-rows" in message


def test_all_wrong_settings_are_reported_at_once() -> None:
    """Flags and variables alike."""
    message = fails_to_start("--max-rows", "0", "--log-format", "xml", DRAGOMAN_MAX_TEXTS="-1")

    assert "max_rows is 0" in message
    assert "log_format is 'xml'" in message
    assert "max_texts is -1" in message
