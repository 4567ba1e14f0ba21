"""Python client of a Dragoman translation server.

    from dragoman.client import TranslationClient

    with TranslationClient("127.0.0.1:50051") as client:
        print(client.translate_text("Click the button to save the file.").text)

`AsyncTranslationClient` is the same for asyncio. Every failed call raises a subclass of `CallError`.
"""

from dragoman.client.aio import AsyncTranslationClient, AsyncTranslationStream
from dragoman.client.client import TranslationClient, TranslationStream
from dragoman.client.errors import (
    CallCancelledError,
    CallError,
    DeadlineExceededError,
    DragomanError,
    FieldViolation,
    InternalError,
    InvalidRequestError,
    MessageTooLargeError,
    ModelNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedError,
)
from dragoman.client.model_info import LanguagePair, Limits, ModelInfo
from dragoman.client.options import DecodingOptions, EarlyStopping, Normalization, Priority, Sampling
from dragoman.client.results import (
    FinishReason,
    Hypothesis,
    PairScore,
    ScoreResult,
    StreamEnd,
    StreamPiece,
    Timings,
    TokenScore,
    TranslateResult,
    Translation,
)

__all__ = [
    "AsyncTranslationClient",
    "AsyncTranslationStream",
    "CallCancelledError",
    "CallError",
    "DeadlineExceededError",
    "DecodingOptions",
    "DragomanError",
    "EarlyStopping",
    "FieldViolation",
    "FinishReason",
    "Hypothesis",
    "InternalError",
    "InvalidRequestError",
    "LanguagePair",
    "Limits",
    "MessageTooLargeError",
    "ModelInfo",
    "ModelNotFoundError",
    "Normalization",
    "OverloadedError",
    "PairScore",
    "PermissionDeniedError",
    "Priority",
    "Sampling",
    "ScoreResult",
    "StreamEnd",
    "StreamPiece",
    "Timings",
    "TokenScore",
    "TranslateResult",
    "Translation",
    "TranslationClient",
    "TranslationStream",
    "UnauthenticatedError",
    "UnavailableError",
    "UnsupportedError",
]
