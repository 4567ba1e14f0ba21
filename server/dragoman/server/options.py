"""How to decode one text: every option of the search, its default and its range. Standard library only.

Words that Hugging Face's `generate` has too mean the same here, and their defaults are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

Normalization = Literal["length", "gnmt"]
EarlyStopping = bool | Literal["never"]

MOST_BEAMS = 32
MOST_NGRAM = 64
LARGEST_SEED = 2**63 - 1
_PENALTY = 100.0  # larger powers and factors overflow before they mean anything


class OptionError(ValueError):
    """An option is out of its range.

    Attributes:
        option: Its name.
        problem: What was given and what is allowed.
    """

    def __init__(self, option: str, problem: str) -> None:
        """Name the option."""
        super().__init__(f"{option}: {problem}")
        self.option = option
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Sampling:
    """Draw each token instead of taking the best one.

    Attributes:
        temperature: Logits are divided by it.
        top_k: Only so many of the best tokens; 0 means all.
        top_p: Only the best tokens that together have this probability; 1 means all.
        seed: Equal seeds give equal texts, whatever else the engine computes.
    """

    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            OptionError: Of the first value that is out of range.
        """
        _check_number("temperature", self.temperature, 0.0, _PENALTY, exclusive=True)
        _check_integer("top_k", self.top_k, 0, LARGEST_SEED)
        _check_number("top_p", self.top_p, 0.0, 1.0, exclusive=True)
        _check_integer("seed", self.seed, 0, LARGEST_SEED)


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options of one text. Tokens are ids of the model's vocabulary.

    Attributes:
        max_new_tokens: At most this many tokens, EOS included, those of a forced prefix not.
        min_new_tokens: No EOS before so many tokens.
        beams: Hypotheses that are alive at a time; 1 is greedy search, or sampling.
        hypotheses: How many to return, at most `beams`.
        length_penalty: Exponent of the length that a hypothesis's log-probability is divided by.
        normalization: "length" divides by length ** length_penalty; "gnmt" by ((5 + length) / 6) ** length_penalty
            (Wu et al. 2016, "Google's Neural Machine Translation System", equation 14).
        coverage_penalty: Weight of the source words that no target word attends to (same equation); 0 is none.
        patience: The search goes on until beams * patience hypotheses have ended (Kasai et al. 2022, "A Call for
            Clarity in Beam Search").
        early_stopping: When a text with enough ended hypotheses is done; as in `dragoman.model.beam`.
        sampling: None takes the best token.
        repetition_penalty: Divides the score of tokens that the target has already; 1 is none.
        no_repeat_ngram_size: No n-gram of this length comes twice; 0 is none.
        suppressed: Sequences of tokens that may not appear.
        with_token_scores: Whether each token's log-probability is kept.
        with_alignment: Whether each token's attention to the source is kept.
        alternatives: How many of the best tokens of the first free position are kept, with log-probabilities.
        score_target: A given target with its EOS, to be scored: behind `Request.first_target` these tokens are taken
            one per step whatever the logits say, and unlike those of `first_target` each one's log-probability is
            kept in `Hypothesis.token_scores` and summed in `log_prob`; the last one ends the text with status EOS.
            Needs all logits. `max_new_tokens` is then its length. Empty: the search chooses.
    """

    max_new_tokens: int
    min_new_tokens: int = 0
    beams: int = 1
    hypotheses: int = 1
    length_penalty: float = 1.0
    normalization: Normalization = "length"
    coverage_penalty: float = 0.0
    patience: float = 1.0
    early_stopping: EarlyStopping = False
    sampling: Sampling | None = None
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    suppressed: tuple[tuple[int, ...], ...] = ()
    with_token_scores: bool = False
    with_alignment: bool = False
    alternatives: int = 0
    score_target: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check ranges, and that options fit together.

        Raises:
            OptionError: Of the first value that is wrong.
        """
        _check_integer("max_new_tokens", self.max_new_tokens, 1, LARGEST_SEED)
        _check_integer("min_new_tokens", self.min_new_tokens, 0, self.max_new_tokens)
        _check_integer("beams", self.beams, 1, MOST_BEAMS)
        _check_integer("hypotheses", self.hypotheses, 1, self.beams)
        _check_number("length_penalty", self.length_penalty, -_PENALTY, _PENALTY)
        _check_choice("normalization", self.normalization, ("length", "gnmt"))
        _check_number("coverage_penalty", self.coverage_penalty, 0.0, _PENALTY)
        _check_number("patience", self.patience, 0.0, _PENALTY, exclusive=True)
        _check_choice("early_stopping", self.early_stopping, (True, False, "never"))
        _check_number("repetition_penalty", self.repetition_penalty, 0.0, _PENALTY, exclusive=True)
        _check_integer("no_repeat_ngram_size", self.no_repeat_ngram_size, 0, MOST_NGRAM)
        _check_integer("alternatives", self.alternatives, 0, MOST_BEAMS)
        if self.sampling is not None and self.beams > 1:
            raise OptionError(
                "beams", f"{self.beams} with sampling; a sample has 1 beam, ask for several samples instead"
            )
        if self.score_target and (self.beams > 1 or self.sampling is not None):
            raise OptionError(
                "score_target", "given together with beams or sampling; a given target leaves nothing to search"
            )
        if any(not sequence for sequence in self.suppressed):
            raise OptionError("suppressed", "a sequence is empty; it must have at least one token")

    @property
    def adjusts_scores(self) -> bool:
        """Whether scores of tokens are changed before one is chosen, which takes all logits."""
        return bool(
            self.repetition_penalty != 1.0 or self.no_repeat_ngram_size or self.suppressed or self.min_new_tokens
        )


def given_options(options: SearchOptions) -> Iterator[tuple[str, Any]]:
    """Yield name and value of what differs from the default, for logs."""
    for field in fields(options):
        value = getattr(options, field.name)
        if value != field.default:
            yield field.name, value


def _check_number(option: str, value: float, least: float, most: float, *, exclusive: bool = False) -> None:
    inside = least < value <= most if exclusive else least <= value <= most
    if not (math.isfinite(value) and inside):
        allowed = f"more than {least:g} and at most {most:g}" if exclusive else f"{least:g} to {most:g}"
        raise OptionError(option, f"{value} is out of range; it must be {allowed}")


def _check_integer(option: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise OptionError(option, f"{value} is out of range; it must be {least} to {most}")


def _check_choice(option: str, value: object, choices: tuple[object, ...]) -> None:
    if not any(value is choice or value == choice for choice in choices):
        raise OptionError(option, f"{value!r} is not known; choose one of {', '.join(map(repr, choices))}")
