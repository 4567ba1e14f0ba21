"""From what the engine found to the messages that callers get."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.model.tokenizers import Tokenizer
from dragoman.server.decoding import Decoding, normalizer
from dragoman.server.jobs import Job, Part
from dragoman.server.request import Hypothesis
from dragoman.server.writing import Written, write
from dragoman.v1 import translation_pb2 as pb


@dataclass(frozen=True, slots=True)
class _Found:
    """A hypothesis with its lead in front.

    Attributes:
        tokens: Target ids, neither those that the source forces nor EOS.
        scores: Of each token, and of EOS where it was reached; may be empty if nobody asked.
        log_prob: Their sum.
        score: As the engine ranked it; of a single beam, none.
        alignment: As the engine's.
        ended_by_eos: Whether the model ended it.
    """

    tokens: Sequence[int]
    scores: Sequence[float]
    log_prob: float
    score: float | None
    alignment: Sequence[Sequence[float]]
    ended_by_eos: bool


def translation(job: Job, decoding: Decoding, tokenizer: Tokenizer) -> pb.Translation:
    """Return the result of a text whose requests have ended; a blank one has none."""
    found = hypotheses(job, decoding, tokenizer)
    best = found[0]
    return pb.Translation(
        text=best.text,
        finish_reason=best.finish_reason,
        source_tokens=job.source.tokens,
        target_tokens=best.target_tokens,
        hypotheses=found if decoding.with_hypotheses else (),
        source_pieces=source_pieces(job, tokenizer) if decoding.with_alignment else (),
    )


def hypotheses(job: Job, decoding: Decoding, tokenizer: Tokenizer) -> list[pb.Hypothesis]:
    """Return what was found for a text, the first one being its translation."""
    if not job.parts:
        blank = pb.Hypothesis(finish_reason=pb.FINISH_REASON_EOS)
        if decoding.with_scores:
            blank.score = blank.log_prob = 0.0
        return [blank]
    return [_message(job, part, found, decoding, tokenizer) for part in job.parts for found in _found(job, part)]


def source_pieces(job: Job, tokenizer: Tokenizer) -> list[str]:
    """Return the text of each of the source's own tokens."""
    # Not the detokenizer, which is made for the target. Parts of a character have no text, the last one has it all.
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    return [decoder.decode(tokenizer.source_piece_bytes(token)) for token in job.source.ids[_own(job)]]


def _found(job: Job, part: Part) -> list[_Found]:
    lead, lead_log_prob = part.lead_tokens, part.lead[1] if part.lead is not None else 0.0
    scores = [] if part.lead is None else [lead_log_prob]
    if part.request is None:
        return [_Found(lead, scores, lead_log_prob, None, (), part.ended)]
    several = job.options.beams > 1
    return [
        _Found(
            [*lead, *one.tokens],
            [*scores, *one.token_scores],
            lead_log_prob + one.log_prob,
            one.score + lead_log_prob / _normalizer(job, len(lead) + len(one.tokens) + one.ended_by_eos)
            if several
            else None,
            one.alignment,
            one.ended_by_eos,
        )
        for one in part.request.hypotheses or [Hypothesis()]
    ]


def _message(job: Job, part: Part, found: _Found, decoding: Decoding, tokenizer: Tokenizer) -> pb.Hypothesis:
    written = write(tokenizer, job.source.prefix, found.tokens, decoding.stop_sequences)
    message = pb.Hypothesis(
        text=written.text, finish_reason=_finish_reason(found, written), target_tokens=written.tokens
    )
    scores = list(found.scores)
    log_prob = found.log_prob
    if written.stopped:  # what the engine made beyond it counts for nothing
        scores = scores[: written.tokens]
        log_prob = sum(scores)
    if decoding.with_scores:
        length = written.tokens + (found.ended_by_eos and not written.stopped)
        message.log_prob = log_prob
        message.score = log_prob / _normalizer(job, length) if found.score is None else found.score
    if decoding.with_token_scores:
        texts = [*written.pieces, ""]  # that of EOS
        message.tokens.extend(map(_token_score, texts[: len(scores)], scores))
    if decoding.with_alignment:
        rows = found.alignment[: written.tokens]
        message.alignment.extend(pb.AlignmentRow(weights=map(float, row[_own(job)])) for row in rows)
    if part.seed is not None:
        message.seed = part.seed
    return message


def _own(job: Job) -> slice:
    """Return where in the source the tokens of the text itself are."""
    return slice(job.source.own, job.source.own + job.source.tokens)


def _token_score(text: str, log_prob: float) -> pb.TokenScore:
    return pb.TokenScore(text=text, log_prob=log_prob)


def _finish_reason(found: _Found, written: Written) -> pb.FinishReason.ValueType:
    if written.stopped:
        return pb.FINISH_REASON_STOP_SEQUENCE
    return pb.FINISH_REASON_EOS if found.ended_by_eos else pb.FINISH_REASON_LENGTH


def _normalizer(job: Job, length: int) -> float:
    """Return what a log-probability of so many new tokens, EOS included, is divided by."""
    return normalizer(job.options, max(1, length + len(job.source.forced)))
