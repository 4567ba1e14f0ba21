import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from dragoman.server.errors import (
    AnswerTooLarge,
    CallError,
    DeadlineExceeded,
    EngineFault,
    InvalidArgument,
    ModelNotFound,
    NotServing,
    QueueFull,
    Unsupported,
    to_status,
)


class FakeCall:
    """What rpc_status reads of a finished call."""

    def __init__(self, status: grpc.Status) -> None:
        self._status = status

    def code(self) -> grpc.StatusCode:
        """Return the status code."""
        return self._status.code

    def details(self) -> str:
        """Return the message."""
        return self._status.details

    def trailing_metadata(self) -> object:
        """Return where the details are."""
        return self._status.trailing_metadata


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidArgument("texts[3]", "too long"), grpc.StatusCode.INVALID_ARGUMENT),
        (Unsupported("options.x", "not here"), grpc.StatusCode.FAILED_PRECONDITION),
        (ModelNotFound("no"), grpc.StatusCode.NOT_FOUND),
        (QueueFull("full", 1.0), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (AnswerTooLarge(7, 5), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (NotServing("draining"), grpc.StatusCode.UNAVAILABLE),
        (DeadlineExceeded("late"), grpc.StatusCode.DEADLINE_EXCEEDED),
        (EngineFault("abc123"), grpc.StatusCode.INTERNAL),
    ],
)
def test_each_error_has_its_code_and_its_message(error: CallError, code: grpc.StatusCode) -> None:
    """The status carries the code of the table and the error's own text."""
    status = to_status(error)

    assert status.code is code
    assert status.details == str(error)


def test_an_invalid_argument_names_its_field_for_programs() -> None:
    """BadRequest has the field and the problem; the text has both for people."""
    status = to_status(InvalidArgument("texts[3]", "200 tokens, the limit is 127"))

    rich = rpc_status.from_call(FakeCall(status))
    detail = error_details_pb2.BadRequest()
    assert rich.details[0].Unpack(detail)
    [violation] = detail.field_violations
    assert (violation.field, violation.description) == ("texts[3]", "200 tokens, the limit is 127")
    assert status.details == "texts[3]: 200 tokens, the limit is 127"


def test_what_the_model_cannot_give_names_the_option() -> None:
    """PreconditionFailure has it for programs."""
    rich = rpc_status.from_call(FakeCall(to_status(Unsupported("options.x", "the model gives none"))))

    detail = error_details_pb2.PreconditionFailure()
    assert rich.details[0].Unpack(detail)
    [violation] = detail.violations
    assert (violation.type, violation.subject, violation.description) == ("MODEL", "options.x", "the model gives none")


@pytest.mark.parametrize("seconds", [0.1, 2.0, 30.0])
def test_a_full_queue_says_when_to_retry(seconds: float) -> None:
    """RetryInfo has the delay."""
    rich = rpc_status.from_call(FakeCall(to_status(QueueFull("full", seconds))))

    detail = error_details_pb2.RetryInfo()
    assert rich.details[0].Unpack(detail)
    assert detail.retry_delay.ToNanoseconds() / 1e9 == pytest.approx(seconds)


def test_an_engine_fault_tells_the_id_and_none_of_our_insides() -> None:
    """The log has the rest under the same id."""
    status = to_status(EngineFault("abc123"))

    assert "abc123" in status.details
    assert "Traceback" not in status.details
    assert rpc_status.from_call(FakeCall(status)).details == []
