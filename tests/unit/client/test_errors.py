import asyncio

import grpc
import pytest

from dragoman.client import (
    AsyncTranslationClient,
    CallError,
    DeadlineExceededError,
    DragomanError,
    FieldViolation,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    TranslationClient,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedError,
)
from tests.fakes.translation_server import Failure, FakeTranslationService

EXPECTED = {
    grpc.StatusCode.CANCELLED: UnavailableError,
    grpc.StatusCode.UNKNOWN: InternalError,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.NOT_FOUND: ModelNotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: InternalError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.FAILED_PRECONDITION: UnsupportedError,
    grpc.StatusCode.ABORTED: InternalError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequestError,
    grpc.StatusCode.UNIMPLEMENTED: UnsupportedError,
    grpc.StatusCode.INTERNAL: InternalError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DATA_LOSS: InternalError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
}

CANCELLED = "the server cancelled the call, probably because it was stopping: "


def test_every_failing_status_is_expected_to_be_something() -> None:
    """A status that gRPC adds must find its exception here first."""
    assert set(EXPECTED) == set(grpc.StatusCode) - {grpc.StatusCode.OK}


@pytest.mark.parametrize(("code", "kind"), EXPECTED.items(), ids=lambda value: getattr(value, "name", None))
def test_each_status_raises_its_exception(
    address: str, service: FakeTranslationService, code: grpc.StatusCode, kind: type[CallError]
) -> None:
    """Type, text, status, details and cause are the same in both clients and for streams."""
    failure = Failure(code, "the server's text", violations=(("texts[2]", "too long"),), retry_after_s=1.5)
    service.failures.extend([failure] * 3)

    for error in (_sync_error(address), _async_error(address), _stream_error(address)):
        assert type(error) is kind
        assert isinstance(error, DragomanError)
        assert str(error) == ("" if code is not grpc.StatusCode.CANCELLED else CANCELLED) + "the server's text"
        assert error.code is code
        assert error.field_violations == (FieldViolation("texts[2]", "too long"),)
        assert error.retry_after_s == 1.5
        assert isinstance(error.__cause__, grpc.RpcError)


def test_an_error_without_text_names_its_status(address: str, service: FakeTranslationService) -> None:
    """An empty message would tell a user nothing."""
    service.failures.append(Failure(grpc.StatusCode.INTERNAL, ""))

    assert str(_sync_error(address)) == "INTERNAL without a message"


def test_details_that_cannot_be_read_do_not_hide_the_error(address: str, service: FakeTranslationService) -> None:
    """Broken details, from a proxy for example, leave status and text."""
    service.failures.append(Failure(grpc.StatusCode.INVALID_ARGUMENT, "bad option", raw_details=b"\xff\xff"))

    error = _sync_error(address)

    assert (type(error), str(error), error.field_violations) == (InvalidRequestError, "bad option", ())


def test_a_handler_that_breaks_is_an_internal_error(address: str, service: FakeTranslationService) -> None:
    """A server that breaks without a status is an InternalError too."""

    def break_down(request: object) -> None:
        del request
        raise RuntimeError("bug")

    service.before_translate = break_down

    assert type(_sync_error(address)) is InternalError


def _sync_error(address: str) -> CallError:
    with TranslationClient(address, retries=0) as client, pytest.raises(CallError) as caught:
        client.translate(["a"])
    return caught.value


def _stream_error(address: str) -> CallError:
    with TranslationClient(address, retries=0) as client, pytest.raises(CallError) as caught:
        next(client.stream("a"))
    return caught.value


def _async_error(address: str) -> CallError:
    async def call() -> CallError:
        async with AsyncTranslationClient(address, retries=0) as client:
            with pytest.raises(CallError) as caught:
                await client.translate(["a"])
        return caught.value

    return asyncio.run(call())
