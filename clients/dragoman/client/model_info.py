"""What a server says of its models, as frozen dataclasses. Shared by both clients."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.v1 import translation_pb2 as pb


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
        max_beam_size: Largest `beam_size`.
        max_num_hypotheses: Samples of one text.
        max_return_alternatives: Largest `return_alternatives`.
        max_suppressed_texts: Longest list of `suppressed_texts`.
        max_stop_sequences: Longest list of `stop_sequences`.
        max_option_characters: Longest suppressed text or stop sequence.
    """

    max_texts: int
    max_source_tokens: int
    max_target_tokens: int
    max_message_bytes: int
    max_queued_texts: int
    max_beam_size: int = 0
    max_num_hypotheses: int = 0
    max_return_alternatives: int = 0
    max_suppressed_texts: int = 0
    max_stop_sequences: int = 0
    max_option_characters: int = 0


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
        alignment: Whether it can give alignments, which `return_alignment` and `coverage_penalty` need.
    """

    name: str
    version: str
    language_pairs: tuple[LanguagePair, ...]
    limits: Limits
    requested_device: str
    device: str
    precision: str
    alignment: bool = False

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
                max_beam_size=limits.max_beam_size,
                max_num_hypotheses=limits.max_num_hypotheses,
                max_return_alternatives=limits.max_return_alternatives,
                max_suppressed_texts=limits.max_suppressed_texts,
                max_stop_sequences=limits.max_stop_sequences,
                max_option_characters=limits.max_option_characters,
            ),
            requested_device=message.requested_device,
            device=message.device,
            precision=message.precision,
            alignment=message.alignment,
        )
