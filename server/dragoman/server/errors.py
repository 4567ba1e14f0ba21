"""Errors of the server, and the one table that turns them into gRPC status codes.

ServerError
├── StartupError         the server cannot start; for the operator, never sent to a caller
└── CallError            ends one call
    ├── InvalidArgument  a field is wrong; names it         INVALID_ARGUMENT + BadRequest
    ├── Unsupported      the model cannot give that         FAILED_PRECONDITION + PreconditionFailure
    ├── ModelNotFound    no such model is loaded            NOT_FOUND
    ├── QueueFull        try again later                    RESOURCE_EXHAUSTED + RetryInfo
    ├── AnswerTooLarge   more than a message may have       RESOURCE_EXHAUSTED
    ├── NotServing       loading or draining                UNAVAILABLE
    ├── DeadlineExceeded the caller's time is up            DEADLINE_EXCEEDED
    └── EngineFault      our fault; names a log entry       INTERNAL
"""

from __future__ import annotations

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status


class ServerError(Exception):
    """Base of everything this package raises on purpose."""


class StartupError(ServerError):
    """The server cannot start."""


class CallError(ServerError):
    """Ends one call with `code`; the message goes to the caller."""

    code = grpc.StatusCode.UNKNOWN

    def details(self) -> list[Message]:
        """Return google.rpc messages that tell a program what the text tells a person."""
        return []


class InvalidArgument(CallError):
    """A field of the request is wrong."""

    code = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, field: str, problem: str) -> None:
        """Name the field, for example `texts[3]`, and what is wrong, allowed and to be done."""
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem

    def details(self) -> list[Message]:
        """Return the field violation."""
        violation = error_details_pb2.BadRequest.FieldViolation(field=self.field, description=self.problem)
        return [error_details_pb2.BadRequest(field_violations=[violation])]


class Unsupported(CallError):
    """The request is right, but the loaded model cannot give what it asks for."""

    code = grpc.StatusCode.FAILED_PRECONDITION

    def __init__(self, field: str, problem: str) -> None:
        """Name the field that asks for it, and what is missing."""
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem

    def details(self) -> list[Message]:
        """Return the violation."""
        violation = error_details_pb2.PreconditionFailure.Violation(
            type="MODEL", subject=self.field, description=self.problem
        )
        return [error_details_pb2.PreconditionFailure(violations=[violation])]


class ModelNotFound(CallError):
    """No such model is loaded."""

    code = grpc.StatusCode.NOT_FOUND


class QueueFull(CallError):
    """More texts are waiting than the server is willing to hold."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, message: str, retry_after_s: float) -> None:
        """Say when trying again makes sense."""
        super().__init__(message)
        self.retry_after_s = retry_after_s

    @classmethod
    def of(cls, more: int, *, free: int, limit: int, theirs: int = 0, retry_after_s: float) -> QueueFull:
        """Return the error for so many more texts than fit, or than are left for a caller who has some waiting."""
        problem = f"{limit - free} texts are waiting and the limit is {limit}, so {more} more do not fit"
        if more <= free:
            problem = (
                f"{theirs} texts of this caller are waiting, and {more} more would be more than the {free} places that "
                f"are free of {limit}; the rest is for others"
            )
        return cls(f"{problem}; try again later or send fewer texts per call", retry_after_s)

    def details(self) -> list[Message]:
        """Return the delay."""
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(self.retry_after_s * 1e9))
        return [error_details_pb2.RetryInfo(retry_delay=delay)]


class AnswerTooLarge(CallError):
    """There is an answer, but no message may be so large."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, num_bytes: int, limit: int) -> None:
        """Say how large it is. The words are those of gRPC, by which clients tell this from an overload."""
        super().__init__(
            f"the answer is larger than max_message_bytes ({num_bytes} vs. {limit}); send fewer texts per call, or ask "
            "for fewer hypotheses, token scores or alignments"
        )


class NotServing(CallError):
    """The server is loading or draining."""

    code = grpc.StatusCode.UNAVAILABLE


class DeadlineExceeded(CallError):
    """The caller's deadline has passed."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class EngineFault(CallError):
    """The engine failed on this call; the log has the reason under the same id."""

    code = grpc.StatusCode.INTERNAL

    def __init__(self, correlation_id: str) -> None:
        """Name the log entry and nothing of our insides."""
        super().__init__(f"internal error, correlation id {correlation_id}; the server's log says more under this id")


def to_status(error: CallError) -> grpc.Status:
    """Return code, message and details as a status to abort with."""
    details = []
    for message in error.details():
        packed = any_pb2.Any()
        packed.Pack(message)
        details.append(packed)
    status: grpc.Status = rpc_status.to_status(
        status_pb2.Status(code=error.code.value[0], message=str(error), details=details)
    )
    return status
