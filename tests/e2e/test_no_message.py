"""Bytes that are no message: the caller's error, which leaves no trace in the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import grpc
import pytest

from dragoman.v1 import translation_pb2 as pb
from tests.e2e.process import WAIT_S, ServerProcess, start_server, wait_for
from tests.e2e.test_bad_input import error_of

SERVICE = "dragoman.v1.TranslationService"
# Kind, service, method, the message that it takes.
METHODS = (
    ("unary_unary", SERVICE, "Translate", "dragoman.v1.TranslateRequest"),
    ("unary_stream", SERVICE, "StreamTranslate", "dragoman.v1.StreamTranslateRequest"),
    ("unary_unary", SERVICE, "Score", "dragoman.v1.ScoreRequest"),
    ("unary_unary", SERVICE, "ListModels", "dragoman.v1.ListModelsRequest"),
    ("unary_unary", SERVICE, "GetModel", "dragoman.v1.GetModelRequest"),
    ("unary_unary", "grpc.health.v1.Health", "Check", "grpc.health.v1.HealthCheckRequest"),
    ("unary_stream", "grpc.health.v1.Health", "Watch", "grpc.health.v1.HealthCheckRequest"),
    (
        "stream_stream", "grpc.reflection.v1alpha.ServerReflection", "ServerReflectionInfo",
        "grpc.reflection.v1alpha.ServerReflectionRequest",
    ),
)  # fmt: skip
GARBAGE = b"\xff" * 20
NOT_UTF8 = b"\x0a\x02\xff\xfe"  # a text as field 1


@pytest.fixture(scope="module")
def own_server() -> Iterator[ServerProcess]:
    with start_server() as server:
        yield server


def refusal(server: ServerProcess, kind: str, path: str, content: bytes) -> tuple[grpc.StatusCode, str, list[str]]:
    """Return code, message and the fields that are named."""
    make: Callable[[str], Callable[..., object]] = getattr(server.channel, kind)  # raw bytes both ways
    call = make(path)
    given = iter([content]) if kind == "stream_stream" else content
    with pytest.raises(grpc.RpcError) as caught:
        list(call(given, timeout=WAIT_S))  # type: ignore[call-overload]  # of a stream
    code, message, violations = error_of(caught.value)
    return code, message, [violation.field for violation in violations]


@pytest.mark.parametrize(("kind", "service", "method", "wanted"), METHODS, ids=[method[2] for method in METHODS])
def test_bytes_that_are_no_message_are_refused(
    own_server: ServerProcess, kind: str, service: str, method: str, wanted: str
) -> None:
    """Whoever reaches the port could fill the log otherwise, with a traceback for each call."""
    before = own_server.metric("requests_total", method=method, code="INVALID_ARGUMENT")
    written = own_server.errors

    code, message, fields = refusal(own_server, kind, f"/{service}/{method}", GARBAGE)

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert message.startswith(f"request: these bytes are no valid {wanted}, or a text in them is not UTF-8; send a")
    assert fields == ["request"]
    counted = before + (service == SERVICE)
    wait_for(
        lambda: own_server.metric("requests_total", method=method, code="INVALID_ARGUMENT") == counted, "it is counted"
    )
    assert own_server.errors == written


@pytest.mark.parametrize("method", ["Translate", "StreamTranslate", "GetModel"])
def test_text_that_is_not_utf8_is_refused(own_server: ServerProcess, method: str) -> None:
    """Clients of languages whose strings are bytes send it by mistake; those that follow are answered."""
    kind = "unary_stream" if method == "StreamTranslate" else "unary_unary"

    code, _, _ = refusal(own_server, kind, f"/{SERVICE}/{method}", NOT_UTF8)

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert own_server.stub.Translate(pb.TranslateRequest(texts=[""]), timeout=WAIT_S).translations
