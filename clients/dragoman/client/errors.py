"""Errors of the client, and the one table from gRPC status to exception.

DragomanError
 |- CallError                   a call failed; the gRPC error is its __cause__
 |   |- InvalidRequestError     the request is wrong; `field_violations` says where
 |   |   `- MessageTooLargeError  request or response is larger than one side allows
 |   |- ModelNotFoundError      no such model on this server
 |   |- UnsupportedError        this server or model does not offer what was asked for
 |   |- UnauthenticatedError    credentials are missing or wrong
 |   |- PermissionDeniedError   the credentials do not allow this call
 |   |- OverloadedError         the server is full; `retry_after_s` says when to come back
 |   |- UnavailableError        no server at the address, or it is starting or stopping, or it cancelled the call
 |   |- DeadlineExceededError   no answer within the call's timeout
 |   |- CallCancelledError      the call was cancelled on this side: the client or the stream was closed
 |   `- InternalError           a fault of the server, or an answer that breaks the protocol
 `- CommandError                a command, such as `dragoman translate`, cannot go on; the message is for its user
     |- InputError              an input cannot be read
     `- OutputError             the output cannot be written

Knows gRPC and google.rpc, not the messages of the API. `CallCancelledError` is not called
CancelledError: an `except` for asyncio's class of that name would look as if it caught this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

DETAILS_KEY = "grpc-status-details-bin"  # where gRPC carries a google.rpc.Status
ENDED_EARLY = "the server ended the stream before the translation was complete"

_CLOSED = "the call was cancelled because its client or stream was closed"
# What gRPC says where this side cancelled. Only the text tells whether the owner of a channel that was given to us has
# closed it; should it change, such a call is tried again in vain.
_CANCELLED_HERE = ("Channel closed!", "Locally cancelled by application!")


class DragomanError(Exception):
    """Base of everything this package raises on purpose."""


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One thing that is wrong with a request.

    Attributes:
        field: Path of the field in the request, for example "texts[3]" or "options.max_new_tokens".
        description: The value, what is allowed, and what to do.
    """

    field: str
    description: str


class CallError(DragomanError):
    """Say that a call failed. `str(error)` is the server's text.

    Attributes:
        code: gRPC status.
        field_violations: What is wrong with the request, if the server said so.
        retry_after_s: When the server asked to try again, in seconds; None if it did not.
    """

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode,
        field_violations: Sequence[FieldViolation] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.field_violations = tuple(field_violations)
        self.retry_after_s = retry_after_s


class InvalidRequestError(CallError):
    """Say that the request is wrong; sending it again cannot help."""


class MessageTooLargeError(InvalidRequestError):
    """Say that a message is larger than the client's or the server's limit; send fewer texts per call."""


class ModelNotFoundError(CallError):
    """Say that the server has no model of this name."""


class UnsupportedError(CallError):
    """Say that this server or model does not offer what was asked for."""


class UnauthenticatedError(CallError):
    """Say that credentials are missing or wrong."""


class PermissionDeniedError(CallError):
    """Say that the credentials do not allow this call."""


class OverloadedError(CallError):
    """Say that the server has no room for the call now."""


class UnavailableError(CallError):
    """Say that nothing answers at the address, or that the server is starting or stopping.

    One that stops may cancel calls that it has read and not begun; `code` is then CANCELLED.
    """


class DeadlineExceededError(CallError):
    """Say that the call's timeout passed first."""


class CallCancelledError(CallError):
    """Say that the call was cancelled on this side before it ended: the client or the stream was closed."""


class InternalError(CallError):
    """Say that the server failed, or that its answer breaks the protocol."""


class CommandError(DragomanError):
    """Say why a command such as `dragoman translate` stops."""


class InputError(CommandError):
    """Say that an input cannot be read."""


class OutputError(CommandError):
    """Say that the output cannot be written."""


ERROR_BY_CODE: Mapping[grpc.StatusCode, type[CallError]] = MappingProxyType(
    {
        grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
        grpc.StatusCode.OUT_OF_RANGE: InvalidRequestError,
        grpc.StatusCode.NOT_FOUND: ModelNotFoundError,
        grpc.StatusCode.FAILED_PRECONDITION: UnsupportedError,
        grpc.StatusCode.UNIMPLEMENTED: UnsupportedError,
        grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
        grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
        grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
        grpc.StatusCode.UNAVAILABLE: UnavailableError,
        grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
        grpc.StatusCode.CANCELLED: UnavailableError,  # by the server; what this side cancels is told apart before
        # Every other status is an InternalError.
    }
)


def call_error(error: grpc.RpcError, *, is_closed: bool = False) -> CallError:
    """Translate what gRPC raised; the caller raises it `from error`.

    Args:
        error: Why the call failed.
        is_closed: The client or the stream was closed on this side, so that a cancelled call is no fault of the server.
    """
    code = error.code()
    text = error.details() or ""
    if code is grpc.StatusCode.CANCELLED:
        if is_closed or text in _CANCELLED_HERE:
            return closed_error()
        text = "the server cancelled the call, probably because it was stopping" + (f": {text}" if text else "")
    violations, retry_after_s = _details(error)
    error_type = ERROR_BY_CODE.get(code, InternalError)
    if error_type is OverloadedError and retry_after_s is None and "larger than max" in text:
        # gRPC reports its message size limit with the code of an overload. Only the text tells them
        # apart; should it change, the error is an OverloadedError without a time to retry.
        error_type = MessageTooLargeError
    return error_type(
        text or f"{code.name} without a message",
        code=code,
        field_violations=violations,
        retry_after_s=retry_after_s,
    )


def closed_error() -> CallCancelledError:
    """Return the error for a call whose client or stream was closed."""
    return CallCancelledError(_CLOSED, code=grpc.StatusCode.CANCELLED)


def protocol_error(message: str) -> InternalError:
    """Return the error for an answer that arrived but breaks the protocol."""
    return InternalError(message, code=grpc.StatusCode.INTERNAL)


def _details(error: grpc.RpcError) -> tuple[list[FieldViolation], float | None]:
    violations: list[FieldViolation] = []
    retry_after_s: float | None = None
    for detail in _status_of(error).details:
        if detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
            bad_request = error_details_pb2.BadRequest.FromString(detail.value)
            violations += [FieldViolation(item.field, item.description) for item in bad_request.field_violations]
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
            retry_after_s = max(0.0, delay.seconds + delay.nanos / 1e9)
    return violations, retry_after_s


def _status_of(error: grpc.RpcError) -> status_pb2.Status:
    # The stubs know neither that the pairs are tuples nor that there may be no metadata at all.
    metadata = cast("Iterable[tuple[str, str | bytes]] | None", error.trailing_metadata())
    for key, value in metadata or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                break  # details of a stranger; code and text still tell the user what happened
    return status_pb2.Status()
