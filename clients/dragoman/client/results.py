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
    STOP_SEQUENCE = "STOP_SEQUENCE"  # one of the stop sequences would have come next

    @classmethod
    def from_proto(cls, value: pb.FinishReason.ValueType) -> FinishReason:
        """Read the number of the message."""
        return _FINISH_REASONS.get(value, cls.UNSPECIFIED)


_FINISH_REASONS = {
    pb.FINISH_REASON_EOS: FinishReason.EOS,
    pb.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    pb.FINISH_REASON_STOP_SEQUENCE: FinishReason.STOP_SEQUENCE,
}


@dataclass(frozen=True, slots=True)
class TokenScore:
    """One target token.

    Attributes:
        text: What it adds to the text; empty for a part of a character that a later token completes, and for the end
            of the sentence.
        log_prob: Natural logarithm of its probability.
    """

    text: str
    log_prob: float

    @classmethod
    def from_proto(cls, message: pb.TokenScore) -> TokenScore:
        """Read the message."""
        return cls(message.text, message.log_prob)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One translation of a text.

    Attributes:
        text: With the target prefix.
        finish_reason: Why it ended.
        target_tokens: New tokens: neither the end of sentence nor the prefix.
        score: What hypotheses are ranked by: `log_prob`, normalised. None without `return_scores`.
        log_prob: Sum of the new tokens' log-probabilities, the end of sentence included. None without
            `return_scores`.
        tokens: With `return_token_scores`: the new tokens, and last the end of sentence where it was reached.
        alignment: With `return_alignment`: for each new token, how much the model looked at each source token.
        seed: With sampling: what gives this text as the only sample.
    """

    text: str
    finish_reason: FinishReason
    target_tokens: int
    score: float | None = None
    log_prob: float | None = None
    tokens: tuple[TokenScore, ...] = ()
    alignment: tuple[tuple[float, ...], ...] = ()
    seed: int | None = None

    @property
    def aligned_pairs(self) -> tuple[tuple[int, int], ...]:
        """For each new token, the source token that it was looked at most for, as (source, target) indices."""
        return tuple((max(range(len(row)), key=row.__getitem__), i) for i, row in enumerate(self.alignment) if row)

    @classmethod
    def from_proto(cls, message: pb.Hypothesis) -> Hypothesis:
        """Read the message."""
        return cls(
            text=message.text,
            finish_reason=FinishReason.from_proto(message.finish_reason),
            target_tokens=message.target_tokens,
            score=message.score if message.HasField("score") else None,
            log_prob=message.log_prob if message.HasField("log_prob") else None,
            tokens=tuple(map(TokenScore.from_proto, message.tokens)),
            alignment=tuple(tuple(row.weights) for row in message.alignment),
            seed=message.seed if message.HasField("seed") else None,
        )


@dataclass(frozen=True, slots=True)
class Translation:
    """One translated text.

    Attributes:
        text: Of the first hypothesis, like the fields that follow; blank for a blank source.
        finish_reason: Why it ended.
        source_tokens: Tokens of the source, end of sentence not included.
        target_tokens: New tokens of the translation: neither the end of sentence nor a prefix.
        hypotheses: All of them, the first one included; empty unless the options ask for several or for what only a
            `Hypothesis` has.
        source_pieces: With `return_alignment`: the source's tokens as text.
    """

    text: str
    finish_reason: FinishReason
    source_tokens: int
    target_tokens: int
    hypotheses: tuple[Hypothesis, ...] = ()
    source_pieces: tuple[str, ...] = ()

    @classmethod
    def from_proto(cls, message: pb.Translation) -> Translation:
        """Read the message."""
        return cls(
            text=message.text,
            finish_reason=FinishReason.from_proto(message.finish_reason),
            source_tokens=message.source_tokens,
            target_tokens=message.target_tokens,
            hypotheses=tuple(map(Hypothesis.from_proto, message.hypotheses)),
            source_pieces=tuple(message.source_pieces),
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
        target_tokens: New tokens of the translation: neither the end of sentence nor a prefix.
        model: Name of the model that was used.
        timings: Where the server spent its time.
        id: The call's id, echoed.
        hypotheses: As in `Translation`.
        source_pieces: As in `Translation`.
    """

    finish_reason: FinishReason
    source_tokens: int
    target_tokens: int
    model: str
    timings: Timings
    id: str
    hypotheses: tuple[Hypothesis, ...] = ()
    source_pieces: tuple[str, ...] = ()

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
            hypotheses=tuple(map(Hypothesis.from_proto, message.hypotheses)),
            source_pieces=tuple(message.source_pieces),
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
class PairScore:
    """How probable the model finds a translation.

    Attributes:
        log_prob: Natural logarithm of its probability, end of sentence included; -inf for what the model cannot
            write, 0 for a blank pair.
        tokens: Those of the translation, and last the end of sentence; empty where `log_prob` is 0 or -inf.
        source_tokens: Tokens of the source, end of sentence not included.
        target_tokens: Tokens of the translation, end of sentence not included.
    """

    log_prob: float
    tokens: tuple[TokenScore, ...]
    source_tokens: int
    target_tokens: int

    @property
    def mean_log_prob(self) -> float:
        """Log-probability per target token, end of sentence included: what long and short pairs compare by."""
        return self.log_prob / (self.target_tokens + 1)

    @classmethod
    def from_proto(cls, message: pb.PairScore) -> PairScore:
        """Read the message."""
        return cls(
            log_prob=message.log_prob,
            tokens=tuple(map(TokenScore.from_proto, message.tokens)),
            source_tokens=message.source_tokens,
            target_tokens=message.target_tokens,
        )


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """The answer to one call.

    Attributes:
        scores: One per pair, in the order of the pairs.
        model: Name of the model that was used.
        timings: Where the server spent its time.
        id: The call's id, echoed.
    """

    scores: tuple[PairScore, ...]
    model: str
    timings: Timings
    id: str

    @classmethod
    def from_proto(cls, message: pb.ScoreResponse, *, num_pairs: int) -> ScoreResult:
        """Read the message.

        Raises:
            InternalError: The number of scores is not `num_pairs`.
        """
        if len(message.scores) != num_pairs:
            raise protocol_error(
                f"the server sent {len(message.scores)} scores for {num_pairs} pairs; "
                "they cannot be paired, so none is used"
            )
        return cls(
            scores=tuple(map(PairScore.from_proto, message.scores)),
            model=message.model,
            timings=Timings.from_proto(message.timings),
            id=message.id,
        )
