"""What a server answers, as frozen dataclasses, and how they are read from the messages.

Shared by both clients. Checks that an answer keeps what the protocol promises, so that a caller
may pair texts and translations by position.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from dragoman.client.errors import protocol_error
from dragoman.v1 import translation_pb2 as pb


class FinishReason(enum.Enum):
    """Why a translation ended."""

    UNSPECIFIED = "UNSPECIFIED"  # not given, or a reason newer than this client
    EOS = "EOS"  # the model ended the sentence itself; also for a blank text
    LENGTH = "LENGTH"  # the limit on new tokens was reached, the text may be incomplete

    @classmethod
    def from_proto(cls, value: pb.FinishReason.ValueType) -> FinishReason:
        """Read the number of the message."""
        return _FINISH_REASONS.get(value, cls.UNSPECIFIED)


_FINISH_REASONS = {
    pb.FINISH_REASON_EOS: FinishReason.EOS,
    pb.FINISH_REASON_LENGTH: FinishReason.LENGTH,
}


@dataclass(frozen=True, slots=True)
class Translation:
    """One translated text.

    Attributes:
        text: Blank for a blank source.
        finish_reason: Why it ended.
        source_tokens: Tokens of the source, end of sentence not included.
        target_tokens: Tokens of the translation, end of sentence not included.
    """

    text: str
    finish_reason: FinishReason
    source_tokens: int
    target_tokens: int

    @classmethod
    def from_proto(cls, message: pb.Translation) -> Translation:
        """Read the message."""
        return cls(
            text=message.text,
            finish_reason=FinishReason.from_proto(message.finish_reason),
            source_tokens=message.source_tokens,
            target_tokens=message.target_tokens,
        )


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the server spent its time on a call, in nanoseconds.

    For several texts each phase is the longest of any text; phases of different texts overlap.

    Attributes:
        total_ns: The whole call.
        tokenize_ns: Text to tokens.
        queue_ns: From the queue to the encoder.
        encode_ns: The encoder.
        decode_ns: From the end of encoding to the last token.
        first_token_ns: From the start of the call to the first token.
    """

    total_ns: int
    tokenize_ns: int
    queue_ns: int
    encode_ns: int
    decode_ns: int
    first_token_ns: int

    @classmethod
    def from_proto(cls, message: pb.Timings) -> Timings:
        """Read the message."""
        return cls(
            total_ns=message.total_ns,
            tokenize_ns=message.tokenize_ns,
            queue_ns=message.queue_ns,
            encode_ns=message.encode_ns,
            decode_ns=message.decode_ns,
            first_token_ns=message.first_token_ns,
        )


@dataclass(frozen=True, slots=True)
class TranslateResult:
    """The answer to one call.

    Attributes:
        translations: One per text, in the order of the texts.
        model: Name of the model that was used.
        timings: Where the server spent its time.
        id: The call's id, echoed.
    """

    translations: tuple[Translation, ...]
    model: str
    timings: Timings
    id: str

    @property
    def texts(self) -> tuple[str, ...]:
        """Text of each translation."""
        return tuple(translation.text for translation in self.translations)

    @classmethod
    def from_proto(cls, message: pb.TranslateResponse, *, num_texts: int) -> TranslateResult:
        """Read the message.

        Raises:
            InternalError: The number of translations is not `num_texts`.
        """
        if len(message.translations) != num_texts:
            raise protocol_error(
                f"the server sent {len(message.translations)} translations for {num_texts} texts; "
                "they cannot be paired, so none is used"
            )
        return cls(
            translations=tuple(map(Translation.from_proto, message.translations)),
            model=message.model,
            timings=Timings.from_proto(message.timings),
            id=message.id,
        )


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """What is known once a streamed translation is complete.

    Attributes:
        finish_reason: Why it ended.
        source_tokens: Tokens of the source, end of sentence not included.
        target_tokens: Tokens of the translation, end of sentence not included.
        model: Name of the model that was used.
        timings: Where the server spent its time.
        id: The call's id, echoed.
    """

    finish_reason: FinishReason
    source_tokens: int
    target_tokens: int
    model: str
    timings: Timings
    id: str

    @classmethod
    def from_proto(cls, message: pb.StreamEnd) -> StreamEnd:
        """Read the message."""
        return cls(
            finish_reason=FinishReason.from_proto(message.finish_reason),
            source_tokens=message.source_tokens,
            target_tokens=message.target_tokens,
            model=message.model,
            timings=Timings.from_proto(message.timings),
            id=message.id,
        )


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """One piece of a streamed translation; the pieces, joined, are the translation.

    Attributes:
        text: The next piece; may be empty in the last one only.
        end: Set in the last piece and only there.
    """

    text: str
    end: StreamEnd | None

    @classmethod
    def from_proto(cls, message: pb.StreamTranslateResponse) -> StreamPiece:
        """Read the message."""
        return cls(text=message.text, end=StreamEnd.from_proto(message.end) if message.HasField("end") else None)


@dataclass(frozen=True, slots=True)
class LanguagePair:
    """One direction a model translates, as BCP-47 tags."""

    source_language: str
    target_language: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server accepts; beyond it a call fails, nothing is truncated.

    Attributes:
        max_texts: Texts of one call.
        max_source_tokens: Tokens of one text, end of sentence not included.
        max_target_tokens: Tokens of one translation, end of sentence included.
        max_message_bytes: Size of one request.
        max_queued_texts: Texts that may wait; a call that does not fit is an OverloadedError.
    """

    max_texts: int
    max_source_tokens: int
    max_target_tokens: int
    max_message_bytes: int
    max_queued_texts: int


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One model of a server.

    Attributes:
        name: What a call's `model` names.
        version: Content hash; equal versions give equal translations.
        language_pairs: Supported directions.
        limits: What the server accepts.
        requested_device: What the server's configuration asked for.
        device: What is used.
        precision: "fp32", "int8", ...
    """

    name: str
    version: str
    language_pairs: tuple[LanguagePair, ...]
    limits: Limits
    requested_device: str
    device: str
    precision: str

    @classmethod
    def from_proto(cls, message: pb.Model) -> ModelInfo:
        """Read the message."""
        limits = message.limits
        return cls(
            name=message.name,
            version=message.version,
            language_pairs=tuple(
                LanguagePair(pair.source_language, pair.target_language) for pair in message.language_pairs
            ),
            limits=Limits(
                max_texts=limits.max_texts,
                max_source_tokens=limits.max_source_tokens,
                max_target_tokens=limits.max_target_tokens,
                max_message_bytes=limits.max_message_bytes,
                max_queued_texts=limits.max_queued_texts,
            ),
            requested_device=message.requested_device,
            device=message.device,
            precision=message.precision,
        )
