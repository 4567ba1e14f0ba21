"""Options of a call, as frozen dataclasses with the names of the protocol. Shared by both clients.

They check types and what the wire cannot carry; ranges belong to the server, which knows its model and answers with the
field that is wrong.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from dragoman.client.checks import (
    check_flag,
    check_instance,
    check_integer,
    check_member,
    check_number,
    check_texts,
)
from dragoman.v1 import translation_pb2 as pb

_MAX_UINT32 = 2**32 - 1
_MAX_SEED = 2**63 - 1
_COUNT = "from 0 to what the server allows (`TranslationClient.model().limits`)"


class Normalization(enum.Enum):
    """What the log-probability of a hypothesis of `length` target tokens is divided by."""

    LENGTH = "LENGTH"  # length ** length_penalty
    GNMT = "GNMT"  # ((5 + length) / 6) ** length_penalty


class EarlyStopping(enum.Enum):
    """When a beam search ends that has found enough hypotheses."""

    FALSE = "FALSE"  # when the best unfinished one would not be better if it ended now
    TRUE = "TRUE"  # at once
    NEVER = "NEVER"  # when no unfinished one can become better until the limit


class Priority(enum.Enum):
    """Whose turn it is when texts wait on the server."""

    NORMAL = "NORMAL"
    INTERACTIVE = "INTERACTIVE"  # somebody is looking at the screen
    BULK = "BULK"  # nobody waits


@dataclass(frozen=True, slots=True)
class Sampling:
    """Draw each token instead of taking the best one. None is the server's default, in brackets.

    Attributes:
        temperature: Logits are divided by it; above 0 to 100 (1).
        top_k: Only so many of the best tokens; 0 means all (50).
        top_p: Only the best tokens that together have this probability; above 0 to 1 (1, all).
        seed: 0 to 2 ** 63 - 1; equal seeds give equal texts, and equal texts of a call equal samples (drawn by the
            server for each call). `Hypothesis.seed` says which seed a sample had.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            TypeError: A value is of another type than its field.
            ValueError: A value does not fit the message.
        """
        for name in ("temperature", "top_p"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name))
        if self.top_k is not None:
            check_integer("top_k", self.top_k, _MAX_UINT32, "from 0 (all) to the size of the vocabulary")
        if self.seed is not None:
            check_integer("seed", self.seed, _MAX_SEED, f"from 0 to {_MAX_SEED}")

    def to_proto(self) -> pb.Sampling:
        """Return the message."""
        return pb.Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, seed=self.seed)


@dataclass(frozen=True, slots=True)
class DecodingOptions:
    """How to decode. The defaults are the server's; words that Hugging Face's `generate` has mean the same.

    Attributes:
        max_new_tokens: Most new target tokens of one text, end of sentence included; 0 is the model's
            default, which grows with the length of the source.
        min_new_tokens: The sentence does not end before so many new tokens.
        max_length_ratio: Most new tokens per source token, above 0 to 100, in place of the model's default; 0 means
            no such limit.
        beam_size: Hypotheses that the search follows; 0 means 1, greedy search or sampling.
        num_hypotheses: Hypotheses to return, the best first: at most `beam_size`, or with sampling so many
            independent samples; 0 means 1. They differ in their tokens; now and then two are the same text, which
            the model can spell in several ways.
        length_penalty: Exponent of the length that log-probabilities are divided by, -100 to 100; 0 prefers short
            texts. None means 1.
        normalization: What that length is.
        coverage_penalty: Weight, 0 to 100, of source words that no target word attends to; needs a model with
            `ModelInfo.alignment`.
        patience: The search goes on until beam_size * patience hypotheses have ended; above 0 to 100. None means 1.
        early_stopping: When it then ends.
        sampling: Draw tokens; None takes the best ones.
        repetition_penalty: Makes tokens less likely that the translation has already; above 0 to 100. None means
            1, which does nothing.
        no_repeat_ngram_size: No sequence of so many tokens comes twice, 0 to 64; 0 means any may.
        suppressed_texts: Words or phrases that may not appear.
        stop_sequences: The translation ends before the first of these; needs a `beam_size` of 1.
        return_scores: Fill `Hypothesis.score` and `log_prob`.
        return_token_scores: Fill `Hypothesis.tokens`.
        return_alignment: Fill `Hypothesis.alignment` and `Translation.source_pieces`.
        return_alternatives: So many hypotheses that begin, behind the prefix, with the best tokens there; 0 means
            none.
        priority: Whose turn it is when texts wait.
    """

    max_new_tokens: int = 0
    min_new_tokens: int = 0
    max_length_ratio: float = 0.0
    beam_size: int = 0
    num_hypotheses: int = 0
    length_penalty: float | None = None
    normalization: Normalization = Normalization.LENGTH
    coverage_penalty: float = 0.0
    patience: float | None = None
    early_stopping: EarlyStopping = EarlyStopping.FALSE
    sampling: Sampling | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int = 0
    suppressed_texts: Sequence[str] = field(default=())
    stop_sequences: Sequence[str] = field(default=())
    return_scores: bool = False
    return_token_scores: bool = False
    return_alignment: bool = False
    return_alternatives: int = 0
    priority: Priority = Priority.NORMAL

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            TypeError: A value is of another type than its field, or a list of texts is one str.
            ValueError: A value does not fit the message.
        """
        for name in _COUNTS:
            check_integer(name, getattr(self, name), _MAX_UINT32, _RANGES.get(name, _COUNT))
        for name in _NUMBERS:
            if getattr(self, name) is not None or name not in _OPTIONAL:
                check_number(name, getattr(self, name))
        for name in _FLAGS:
            check_flag(name, getattr(self, name))
        for name, kind in (("normalization", Normalization), ("early_stopping", EarlyStopping), ("priority", Priority)):
            check_member(name, getattr(self, name), kind)
        if self.sampling is not None:
            check_instance("sampling", self.sampling, Sampling)
        for name in ("suppressed_texts", "stop_sequences"):
            object.__setattr__(self, name, check_texts(getattr(self, name), name))

    def to_proto(self) -> pb.DecodingOptions:
        """Return the message; what is at its default is left out."""
        return pb.DecodingOptions(
            **{name: getattr(self, name) for name in _AS_THEY_ARE},
            normalization=_NORMALIZATIONS[self.normalization],
            early_stopping=_EARLY_STOPPING[self.early_stopping],
            priority=PRIORITIES[self.priority],
            sampling=None if self.sampling is None else self.sampling.to_proto(),
        )


_COUNTS = (
    "max_new_tokens",
    "min_new_tokens",
    "beam_size",
    "num_hypotheses",
    "no_repeat_ngram_size",
    "return_alternatives",
)
_RANGES = {"no_repeat_ngram_size": "from 0 (none) to 64"}  # of the protocol, the same in every model
_OPTIONAL = ("length_penalty", "patience", "repetition_penalty")  # None is the server's default
_NUMBERS = ("max_length_ratio", "coverage_penalty", *_OPTIONAL)
_FLAGS = ("return_scores", "return_token_scores", "return_alignment")
_AS_THEY_ARE = (*_COUNTS, *_NUMBERS, *_FLAGS, "suppressed_texts", "stop_sequences")
_NORMALIZATIONS = {
    Normalization.LENGTH: pb.NORMALIZATION_UNSPECIFIED,
    Normalization.GNMT: pb.NORMALIZATION_GNMT,
}
_EARLY_STOPPING = {
    EarlyStopping.FALSE: pb.EARLY_STOPPING_UNSPECIFIED,
    EarlyStopping.TRUE: pb.EARLY_STOPPING_TRUE,
    EarlyStopping.NEVER: pb.EARLY_STOPPING_NEVER,
}
PRIORITIES = {
    Priority.NORMAL: pb.PRIORITY_UNSPECIFIED,
    Priority.INTERACTIVE: pb.PRIORITY_INTERACTIVE,
    Priority.BULK: pb.PRIORITY_BULK,
}


DEFAULT_OPTIONS = DecodingOptions()
