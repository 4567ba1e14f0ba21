"""From the message to the search: reads `DecodingOptions`, checks every value, and says what each text gets.

Ranges of the search's own options live in `options`; here is what depends on the model, on the protocol, or on
options that this layer serves itself: samples, stop sequences, suppressed texts, alternatives.
"""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from google.protobuf.message import Message

from dragoman.server.characters import is_blank
from dragoman.server.errors import InvalidArgument, Unsupported
from dragoman.server.options import LARGEST_SEED, MOST_BEAMS, OptionError, Sampling, SearchOptions
from dragoman.server.request import Priority
from dragoman.v1 import translation_pb2 as pb

MOST_SAMPLES = 32
MOST_SUPPRESSED = 128
MOST_STOP_SEQUENCES = 16
MOST_CHARACTERS = 256  # of a suppressed text or a stop sequence
_LARGEST_RATIO = 100.0
_REMEMBERED = 256

_PRIORITIES = {
    pb.PRIORITY_UNSPECIFIED: Priority.NORMAL,
    pb.PRIORITY_NORMAL: Priority.NORMAL,
    pb.PRIORITY_INTERACTIVE: Priority.INTERACTIVE,
    pb.PRIORITY_BULK: Priority.BULK,
}
_NORMALIZATIONS = {
    pb.NORMALIZATION_UNSPECIFIED: "length",
    pb.NORMALIZATION_LENGTH: "length",
    pb.NORMALIZATION_GNMT: "gnmt",
}
_EARLY_STOPPING = {
    pb.EARLY_STOPPING_UNSPECIFIED: False,
    pb.EARLY_STOPPING_FALSE: False,
    pb.EARLY_STOPPING_TRUE: True,
    pb.EARLY_STOPPING_NEVER: "never",
}
# Names of the search that the protocol spells differently.
_FIELDS = {
    "beams": "beam_size",
    "hypotheses": "num_hypotheses",
    "alternatives": "return_alternatives",
    "temperature": "sampling.temperature",
    "top_k": "sampling.top_k",
    "top_p": "sampling.top_p",
    "seed": "sampling.seed",
}


@dataclass(frozen=True, slots=True)
class Allowed:
    """What calls may ask of a model.

    Attributes:
        model: Its name.
        vocab_size: V.
        max_target_tokens: Most new tokens.
        slots: Rows that the server decodes together.
        can_align: Whether its graphs give alignments.
    """

    model: str
    vocab_size: int
    max_target_tokens: int
    slots: int
    can_align: bool

    @property
    def max_beam_size(self) -> int:
        """Largest beam: a step needs the 2k best tokens of each of its k rows."""
        return max(1, min(MOST_BEAMS, self.slots, self.vocab_size // 2))

    @property
    def max_alternatives(self) -> int:
        """Most alternatives at one position."""
        return max(1, min(MOST_BEAMS, self.vocab_size // 2))


@dataclass(frozen=True, slots=True)
class Decoding:
    """The options of a call, checked.

    Attributes:
        search: What the search of each text is told, but for the limit on new tokens and suppressed sequences.
        max_new_tokens: As asked; 0 means the model's default.
        max_length_ratio: New tokens per source token; 0 means no limit.
        samples: Independent samples of a text; 0 without sampling.
        suppressed_texts: What may not appear, as sent.
        stop_sequences: What a text ends in front of.
        alternatives: So many translations that begin differently; 0 means the usual one.
        priority: Of all texts.
        with_scores: Whether the answer has scores.
        with_token_scores: Whether it has those of each token.
        with_alignment: Whether it has alignments.
    """

    search: SearchOptions
    max_new_tokens: int = 0
    max_length_ratio: float = 0.0
    samples: int = 0
    suppressed_texts: tuple[str, ...] = ()
    stop_sequences: tuple[str, ...] = ()
    alternatives: int = 0
    priority: Priority = Priority.NORMAL
    with_scores: bool = False
    with_token_scores: bool = False
    with_alignment: bool = False

    @property
    def with_hypotheses(self) -> bool:
        """Whether the answer lists hypotheses: they say more than the text alone."""
        return bool(
            self.search.hypotheses > 1
            or self.samples
            or self.alternatives
            or self.with_scores
            or self.with_token_scores
            or self.with_alignment
        )

    def limit(self, source_tokens: int, default: int, room: int, field: str) -> int:
        """Return the limit on new tokens of one text.

        Args:
            source_tokens: Of the text, without EOS.
            default: The model's limit for such a source.
            room: What the model can take behind language tokens and prefix.
            field: What to call the text in an error.

        Raises:
            InvalidArgument: There is no room for what was asked for, or min_new_tokens is beyond the limit.
        """
        if self.max_new_tokens > room:
            raise InvalidArgument(
                "options.max_new_tokens",
                f"{self.max_new_tokens} is more than the model's {room} for {field}; ask for less, or 0 for the "
                "default",
            )
        limits = [room]
        if self.max_new_tokens:
            limits.append(self.max_new_tokens)
        if self.max_length_ratio:
            limits.append(max(1, math.ceil(self.max_length_ratio * source_tokens)))
        limit = min(limits)
        if len(limits) == 1:  # only the default, which gives way to what was asked for
            limit = min(room, max(default, self.search.min_new_tokens))
        if self.search.min_new_tokens > limit:
            raise InvalidArgument(
                "options.min_new_tokens",
                f"{self.search.min_new_tokens} is more than the limit on new tokens of {field}, {limit}",
            )
        return limit

    def seed(self, sample: int) -> int | None:
        """Return the seed of a text's sample number `sample`, from 0."""
        return None if self.search.sampling is None else derived_seed(self.search.sampling.seed, sample)


def read(options: pb.DecodingOptions, allowed: Allowed) -> Decoding:
    """Check the options of a call.

    Raises:
        InvalidArgument: A value is out of its range, or two do not go together.
        Unsupported: The model cannot give what was asked for.
    """
    if options.HasField("sampling") and not options.sampling.HasField("seed"):
        return _read(options, allowed)  # each call gets a seed of its own
    return _read_again(options.SerializeToString(deterministic=True), allowed)


@functools.lru_cache(maxsize=_REMEMBERED)
def _read_again(options: bytes, allowed: Allowed) -> Decoding:
    """Read options that mean the same in every call; an application's calls have few different ones."""
    return _read(pb.DecodingOptions.FromString(options), allowed)


def _read(options: pb.DecodingOptions, allowed: Allowed) -> Decoding:
    samples = max(1, options.num_hypotheses) if options.HasField("sampling") else 0
    _check_counts(options, allowed)
    _check_choices(options)
    beams = options.beam_size or 1
    try:
        search = SearchOptions(
            max_new_tokens=allowed.max_target_tokens,
            min_new_tokens=options.min_new_tokens,
            beams=beams,
            hypotheses=1 if samples else options.num_hypotheses or 1,
            length_penalty=_given(options, "length_penalty", 1.0),
            normalization=_NORMALIZATIONS[options.normalization],  # type: ignore[arg-type]  # a table of the literals
            coverage_penalty=options.coverage_penalty,
            patience=_given(options, "patience", 1.0),
            early_stopping=_EARLY_STOPPING[options.early_stopping],  # type: ignore[arg-type]  # likewise
            sampling=_sampling(options.sampling, allowed) if samples else None,
            repetition_penalty=_given(options, "repetition_penalty", 1.0),
            no_repeat_ngram_size=options.no_repeat_ngram_size,
            with_token_scores=bool(options.return_scores or options.return_token_scores),
            with_alignment=options.return_alignment,
        )
    except OptionError as error:
        raise InvalidArgument(f"options.{_FIELDS.get(error.option, error.option)}", error.problem) from error
    if beams == 1 and search.coverage_penalty:  # it ranks hypotheses, and there is one
        search = replace(search, coverage_penalty=0.0)
    _check_combinations(options, search)
    _check_features(options, search, allowed)
    return Decoding(
        search,
        max_new_tokens=options.max_new_tokens,
        max_length_ratio=options.max_length_ratio,
        samples=samples,
        suppressed_texts=tuple(options.suppressed_texts),
        stop_sequences=tuple(options.stop_sequences),
        alternatives=options.return_alternatives,
        priority=_PRIORITIES[options.priority],
        with_scores=options.return_scores,
        with_token_scores=options.return_token_scores,
        with_alignment=options.return_alignment,
    )


def read_priority(priority: pb.Priority.ValueType, field: str) -> Priority:
    """Return the class of a call.

    Raises:
        InvalidArgument: There is no such class.
    """
    _check_enum(field, priority, pb.Priority)
    return _PRIORITIES[priority]


def derived_seed(seed: int, sample: int) -> int:
    """Return the seed of sample number `sample`: the first one's is the seed itself, others have one far away.

    The same finalizer as SplitMix64 (Steele et al. 2014, "Fast Splittable Pseudorandom Number Generators").
    """
    if not sample:
        return seed
    mask = 2**64 - 1
    value = (seed + sample * 0x9E3779B97F4A7C15) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return (value ^ (value >> 31)) & LARGEST_SEED


def normalizer(search: SearchOptions, length: int) -> float:
    """Return what the log-probability of a target of `length` tokens is divided by, forced ones and EOS included."""
    base = float(length) if search.normalization == "length" else (5 + length) / 6
    return float(base**search.length_penalty)


def _sampling(sampling: pb.Sampling, allowed: Allowed) -> Sampling:
    _check_range("options.sampling.top_k", sampling.top_k, 0, allowed.vocab_size)
    return Sampling(
        temperature=_given(sampling, "temperature", 1.0),
        top_k=min(_given(sampling, "top_k", 50), allowed.vocab_size),
        top_p=_given(sampling, "top_p", 1.0),
        seed=sampling.seed if sampling.HasField("seed") else secrets.randbelow(LARGEST_SEED),
    )


def _check_counts(options: pb.DecodingOptions, allowed: Allowed) -> None:
    """Check what is a number or a list and has a limit of the model, of the protocol, or of this server."""
    _check_range("options.max_new_tokens", options.max_new_tokens, 0, allowed.max_target_tokens)
    _check_range(
        "options.min_new_tokens", options.min_new_tokens, 0, options.max_new_tokens or allowed.max_target_tokens
    )
    _check_range("options.beam_size", options.beam_size, 0, allowed.max_beam_size)
    beams = options.beam_size or 1
    if options.HasField("sampling"):
        _check_range("options.num_hypotheses", options.num_hypotheses, 0, MOST_SAMPLES)
    elif options.num_hypotheses > beams:
        raise InvalidArgument(
            "options.num_hypotheses",
            f"{options.num_hypotheses} is out of range; it must be 0 to {beams}, the beam_size, or up to "
            f"{MOST_SAMPLES} with sampling",
        )
    _check_range("options.return_alternatives", options.return_alternatives, 0, allowed.max_alternatives)
    ratio = options.max_length_ratio
    if not 0 <= ratio <= _LARGEST_RATIO:  # false for NaN
        raise InvalidArgument(
            "options.max_length_ratio", f"{ratio} is out of range; it must be 0 (none) to {_LARGEST_RATIO:g}"
        )
    _check_texts("options.suppressed_texts", options.suppressed_texts, MOST_SUPPRESSED)
    for index, text in enumerate(options.suppressed_texts):
        if is_blank(text):  # no token is suppressed for it
            raise InvalidArgument(
                f"options.suppressed_texts[{index}]",
                "has only white space, control or format characters; name a word or a phrase, or leave it out",
            )
    _check_texts("options.stop_sequences", options.stop_sequences, MOST_STOP_SEQUENCES)


def _check_texts(field: str, texts: Sequence[str], most: int) -> None:
    if len(texts) > most:
        raise InvalidArgument(field, f"{len(texts)} were sent, the limit is {most}")
    for index, text in enumerate(texts):
        if not text:
            raise InvalidArgument(f"{field}[{index}]", f"is empty; it must have 1 to {MOST_CHARACTERS} characters")
        if len(text) > MOST_CHARACTERS:
            raise InvalidArgument(f"{field}[{index}]", f"{len(text)} characters, the limit is {MOST_CHARACTERS}")


def _check_choices(options: pb.DecodingOptions) -> None:
    _check_enum("options.normalization", options.normalization, pb.Normalization)
    _check_enum("options.early_stopping", options.early_stopping, pb.EarlyStopping)
    _check_enum("options.priority", options.priority, pb.Priority)


def _check_combinations(options: pb.DecodingOptions, search: SearchOptions) -> None:
    if options.stop_sequences and search.beams > 1:
        raise InvalidArgument(
            "options.stop_sequences",
            f"given together with a beam_size of {search.beams}, whose text is not known before its end; use a "
            "beam_size of 1",
        )
    if not options.return_alternatives:
        return
    problem = None
    if search.sampling is not None:
        problem = "sampling, which does not take the best tokens"
    elif search.hypotheses > 1:
        problem = f"{search.hypotheses} num_hypotheses; each alternative has one"
    elif options.return_alignment:
        problem = "return_alignment, which a token that was given instead of found does not have"
    if problem:
        raise InvalidArgument("options.return_alternatives", f"given together with {problem}")


def _check_features(options: pb.DecodingOptions, search: SearchOptions, allowed: Allowed) -> None:
    if allowed.can_align:
        return
    field = "return_alignment" if options.return_alignment else "coverage_penalty" if search.coverage_penalty else ""
    if field:
        raise Unsupported(
            f"options.{field}",
            f"model {allowed.model!r} gives no alignments; use a bundle that was exported with them, or leave the "
            "option out",
        )


def _check_range(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidArgument(field, f"{value} is out of range; it must be {least} to {most}")


def _check_enum(field: str, value: int, kind: Any) -> None:
    if value not in kind.values():
        raise InvalidArgument(field, f"{value} is not known; choose one of {', '.join(kind.keys())}")


def _given(message: Message, field: str, default: Any) -> Any:
    return getattr(message, field) if message.HasField(field) else default
