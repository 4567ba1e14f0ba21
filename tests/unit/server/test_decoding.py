"""Every option has a range, and what is outside is refused with field, value and range, quickly."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import pytest

from dragoman.server import decoding
from dragoman.server.decoding import Allowed, Decoding, derived_seed, normalizer
from dragoman.server.errors import InvalidArgument, Unsupported
from dragoman.server.options import SearchOptions
from dragoman.server.request import Priority
from dragoman.v1 import translation_pb2 as pb

ALLOWED = Allowed("tiny", vocab_size=1000, max_target_tokens=128, slots=64, can_align=True)
LARGE = 2**31
LARGEST_UINT32 = 2**32 - 1
QUICK_S = 0.05


def read(options: pb.DecodingOptions | None = None, allowed: Allowed = ALLOWED, **values: Any) -> Decoding:
    return decoding.read(options or pb.DecodingOptions(**values), allowed)


def refused(allowed: Allowed = ALLOWED, **values: Any) -> InvalidArgument:
    """Return the error of some options; it has to come at once."""
    start = time.perf_counter()
    with pytest.raises(InvalidArgument) as caught:
        read(allowed=allowed, **values)
    assert time.perf_counter() - start < QUICK_S
    return caught.value


NOT_FINITE = (math.nan, math.inf, -math.inf)
NUMBERS: dict[str, tuple[tuple[float, ...], str]] = {
    "max_length_ratio": ((-1.0, -1e-300, 100.5, LARGE, *NOT_FINITE), "it must be 0 (none) to 100"),
    "length_penalty": ((-100.5, 100.5, LARGE, *NOT_FINITE), "it must be -100 to 100"),
    "coverage_penalty": ((-1.0, 100.5, LARGE, *NOT_FINITE), "it must be 0 to 100"),
    "patience": ((0.0, -1.0, 100.5, LARGE, *NOT_FINITE), "it must be more than 0 and at most 100"),
    "repetition_penalty": ((0.0, -1.0, 100.5, LARGE, *NOT_FINITE), "it must be more than 0 and at most 100"),
    "max_new_tokens": ((129, LARGE, LARGEST_UINT32), "it must be 0 to 128"),
    "min_new_tokens": ((129, LARGE, LARGEST_UINT32), "it must be 0 to 128"),
    "beam_size": ((33, 1001, LARGE, LARGEST_UINT32), "it must be 0 to 32"),
    "num_hypotheses": ((2, LARGE, LARGEST_UINT32), "it must be 0 to 1, the beam_size, or up to 32 with sampling"),
    "no_repeat_ngram_size": ((65, LARGE, LARGEST_UINT32), "it must be 0 to 64"),
    "return_alternatives": ((33, LARGE, LARGEST_UINT32), "it must be 0 to 32"),
    "normalization": ((9, -1, LARGE - 1), "choose one of NORMALIZATION_UNSPECIFIED, NORMALIZATION_LENGTH"),
    "early_stopping": ((9, -1, LARGE - 1), "choose one of EARLY_STOPPING_UNSPECIFIED, EARLY_STOPPING_FALSE"),
    "priority": ((9, -1, LARGE - 1), "choose one of PRIORITY_UNSPECIFIED, PRIORITY_NORMAL"),
}
SAMPLING: dict[str, tuple[tuple[float, ...], str]] = {
    "temperature": ((0.0, -1.0, 100.5, LARGE, *NOT_FINITE), "it must be more than 0 and at most 100"),
    "top_k": ((1001, LARGE, LARGEST_UINT32), "it must be 0 to 1000"),
    "top_p": ((0.0, -1.0, 1.001, LARGE, *NOT_FINITE), "it must be more than 0 and at most 1"),
    "seed": ((2**63, 2**64 - 1), f"it must be 0 to {2**63 - 1}"),
}


@pytest.mark.parametrize(
    ("name", "value", "problem"), [(n, v, problem) for n, (values, problem) in NUMBERS.items() for v in values]
)
def test_a_value_out_of_range_is_refused(name: str, value: float, problem: str) -> None:
    """With field, value and range."""
    values: dict[str, Any] = {name: value}
    error = refused(**values)

    assert error.field == f"options.{name}"
    assert str(value) in error.problem
    assert problem in error.problem


@pytest.mark.parametrize(
    ("name", "value", "problem"), [(n, v, problem) for n, (values, problem) in SAMPLING.items() for v in values]
)
def test_a_value_of_sampling_out_of_range_is_refused(name: str, value: float, problem: str) -> None:
    """Its field is called by its path."""
    error = refused(sampling=pb.Sampling(**{name: value}))  # type: ignore[arg-type]  # mypy does not know which field is which

    assert error.field == f"options.sampling.{name}"
    assert str(value) in error.problem
    assert problem in error.problem


def test_every_option_has_been_tried() -> None:
    """A new option needs a range and a line above."""
    lists = {"suppressed_texts", "stop_sequences", "sampling"}
    flags = {"return_scores", "return_token_scores", "return_alignment"}

    assert {field.name for field in pb.DecodingOptions.DESCRIPTOR.fields} == {*NUMBERS, *lists, *flags}
    assert {field.name for field in pb.Sampling.DESCRIPTOR.fields} == set(SAMPLING)


@pytest.mark.parametrize(
    ("texts", "field", "problem"),
    [
        ([""], "[0]", "is empty; it must have 1 to 256 characters"),
        (["a", "b" * 257], "[1]", "257 characters, the limit is 256"),
        (["a", "b" * 1_000_000], "[1]", "1000000 characters, the limit is 256"),
        (["a"] * 129, "", "129 were sent, the limit is"),
        (["a"] * 100_000, "", "100000 were sent, the limit is"),
    ],
)
@pytest.mark.parametrize("name", ["suppressed_texts", "stop_sequences"])
def test_long_lists_and_texts_are_refused_unread(name: str, texts: list[str], field: str, problem: str) -> None:
    """Nobody pays for tokenizing them."""
    message = pb.DecodingOptions(**{name: texts})  # type: ignore[arg-type]  # mypy does not know which field is which
    start = time.perf_counter()
    with pytest.raises(InvalidArgument) as caught:
        read(message)

    assert time.perf_counter() - start < QUICK_S
    assert caught.value.field == f"options.{name}{field}"
    assert problem in caught.value.problem


@pytest.mark.parametrize("blank", [" ", "\n", "\u00a0", "\u200b", " \x00\t" * 80])
def test_a_blank_text_cannot_be_suppressed(blank: str) -> None:
    """No token is suppressed for it, so it would do nothing; as a stop sequence it is as good as any other."""
    with pytest.raises(InvalidArgument) as caught:
        read(suppressed_texts=["a", blank])

    assert caught.value.field == "options.suppressed_texts[1]"
    assert "has only white space, control or format characters" in caught.value.problem
    assert read(stop_sequences=[blank]).stop_sequences == (blank,)


@pytest.mark.parametrize(
    ("values", "field", "problem"),
    [
        ({"beam_size": 2, "sampling": pb.Sampling()}, "beam_size", "2 with sampling"),
        ({"beam_size": 4, "num_hypotheses": 5}, "num_hypotheses", "it must be 0 to 4, the beam_size"),
        ({"sampling": pb.Sampling(), "num_hypotheses": 33}, "num_hypotheses", "33 is out of range; it must be 0 to 32"),
        ({"max_new_tokens": 5, "min_new_tokens": 6}, "min_new_tokens", "6 is out of range; it must be 0 to 5"),
        ({"beam_size": 2, "stop_sequences": ["."]}, "stop_sequences", "use a beam_size of 1"),
        ({"return_alternatives": 2, "sampling": pb.Sampling()}, "return_alternatives", "together with sampling"),
        ({"return_alternatives": 2, "beam_size": 2, "num_hypotheses": 2}, "return_alternatives", "2 num_hypotheses"),
        ({"return_alternatives": 2, "return_alignment": True}, "return_alternatives", "return_alignment"),
    ],
)
def test_what_does_not_go_together_is_refused_with_a_reason(values: dict[str, Any], field: str, problem: str) -> None:
    """Each value alone would be fine."""
    error = refused(**values)

    assert error.field == f"options.{field}"
    assert problem in error.problem


@pytest.mark.parametrize(
    ("allowed", "largest"),
    [
        (ALLOWED, 32),
        (Allowed("small pool", 1000, 128, slots=3, can_align=True), 3),
        (Allowed("small vocabulary", 20, 128, slots=64, can_align=True), 10),
        (Allowed("hardly any", 1, 128, slots=64, can_align=True), 1),
    ],
)
def test_a_beam_larger_than_pool_or_vocabulary_is_refused(allowed: Allowed, largest: int) -> None:
    """A step needs two candidates for each beam."""
    assert read(allowed=allowed, beam_size=largest).search.beams == largest
    assert f"it must be 0 to {largest}" in refused(allowed, beam_size=largest + 1).problem


@pytest.mark.parametrize(
    ("values", "field"),
    [({"return_alignment": True}, "return_alignment"), ({"coverage_penalty": 0.1, "beam_size": 2}, "coverage_penalty")],
)
def test_a_model_without_alignments_says_so(values: dict[str, Any], field: str) -> None:
    """The request is right, so it is another error than a wrong value."""
    blind = Allowed("blind", 1000, 128, slots=64, can_align=False)
    with pytest.raises(Unsupported, match="model 'blind' gives no alignments") as caught:
        read(allowed=blind, **values)

    assert caught.value.field == f"options.{field}"
    assert read(allowed=ALLOWED, **values)


def test_an_empty_message_means_the_defaults_of_the_search() -> None:
    """Greedy search without any penalty, nothing returned but the text."""
    assert read() == Decoding(SearchOptions(max_new_tokens=128))
    assert not read().with_hypotheses


def test_zeros_mean_the_default_where_a_field_is_not_optional() -> None:
    """And are values where it is."""
    assert read(max_new_tokens=0, beam_size=0, num_hypotheses=0, max_length_ratio=0.0) == read()
    assert read(length_penalty=0.0).search.length_penalty == 0.0
    assert read(sampling=pb.Sampling(top_k=0)).search.sampling != read(sampling=pb.Sampling(top_k=50)).search.sampling


def test_every_value_reaches_the_search() -> None:
    """Under the search's own names."""
    search = read(
        min_new_tokens=2,
        beam_size=4,
        num_hypotheses=3,
        length_penalty=0.6,
        normalization=pb.NORMALIZATION_GNMT,
        coverage_penalty=0.2,
        patience=2.0,
        early_stopping=pb.EARLY_STOPPING_NEVER,
        repetition_penalty=1.2,
        no_repeat_ngram_size=3,
        return_token_scores=True,
        return_alignment=True,
    ).search

    assert search == SearchOptions(
        max_new_tokens=128,
        min_new_tokens=2,
        beams=4,
        hypotheses=3,
        length_penalty=0.6,
        normalization="gnmt",
        coverage_penalty=0.2,
        patience=2.0,
        early_stopping="never",
        repetition_penalty=1.2,
        no_repeat_ngram_size=3,
        with_token_scores=True,
        with_alignment=True,
    )
    assert read(early_stopping=pb.EARLY_STOPPING_TRUE).search.early_stopping is True
    assert read(priority=pb.PRIORITY_INTERACTIVE).priority is Priority.INTERACTIVE


def test_coverage_of_one_beam_costs_nothing() -> None:
    """There is nothing to rank, so no attention is fetched for it."""
    assert read(coverage_penalty=0.5).search.coverage_penalty == 0.0


def test_samples_have_seeds_of_their_own_and_the_first_has_the_given_one() -> None:
    """So that each can be had alone; neighbouring seeds share no sample."""
    several = read(sampling=pb.Sampling(seed=7), num_hypotheses=5)
    seeds = [several.seed(sample) for sample in range(5)]

    assert (several.samples, several.search.hypotheses) == (5, 1)
    assert seeds[0] == 7
    assert [derived_seed(7, sample) for sample in range(5)] == seeds
    assert len({derived_seed(seed, sample) for seed in range(50) for sample in range(20)}) == 1000
    assert all(0 <= derived_seed(2**63 - 1, sample) < 2**63 for sample in range(100))


def test_without_a_seed_every_call_has_another_one() -> None:
    """As in Hugging Face; the caller learns which."""
    seeds = {read(sampling=pb.Sampling()).seed(0) for _ in range(5)}

    assert len(seeds) == 5
    assert read().seed(0) is None


@pytest.mark.parametrize(
    ("values", "limit"),
    [
        ({}, 36),  # the default given below
        ({"max_new_tokens": 5}, 5),
        ({"max_new_tokens": 100}, 100),
        ({"max_length_ratio": 1.25}, 13),  # of 10 tokens, rounded up
        ({"max_length_ratio": 100.0}, 100),  # no more than there is room
        ({"max_length_ratio": 0.01}, 1),
        ({"max_length_ratio": 2.0, "max_new_tokens": 12}, 12),
        ({"max_length_ratio": 2.0, "max_new_tokens": 30}, 20),
        ({"min_new_tokens": 50}, 50),  # only the default gives way
    ],
)
def test_the_limit_on_new_tokens(values: dict[str, Any], limit: int) -> None:
    """What was asked for, else the model's default; never more than the room behind a prefix."""
    assert read(**values).limit(10, 36, 100, "texts[0]") == limit


def test_a_limit_that_a_text_cannot_have_is_refused() -> None:
    """The text is named, since others may be fine."""
    with pytest.raises(InvalidArgument, match=r"max_new_tokens: 101 is more than the model's 100 for texts\[2\]"):
        read(max_new_tokens=101).limit(10, 36, 100, "texts[2]")
    with pytest.raises(
        InvalidArgument, match=r"min_new_tokens: 6 is more than the limit on new tokens of texts\[2\], 5"
    ):
        read(min_new_tokens=6, max_length_ratio=0.5).limit(10, 36, 100, "texts[2]")


def test_normalizers() -> None:
    """Length and GNMT as they are documented."""
    plain = SearchOptions(max_new_tokens=9, length_penalty=0.5)
    gnmt = SearchOptions(max_new_tokens=9, length_penalty=0.6, normalization="gnmt")

    assert normalizer(plain, 16) == 4.0
    assert normalizer(gnmt, 7) == pytest.approx((12 / 6) ** 0.6)


def test_a_priority_alone_is_read_too() -> None:
    """Scoring has one and no other options."""
    assert decoding.read_priority(pb.PRIORITY_BULK, "priority") is Priority.BULK
    with pytest.raises(InvalidArgument, match="priority: 9 is not known"):
        decoding.read_priority(9, "priority")  # type: ignore[arg-type]  # what a newer client may send


def test_equal_options_are_read_once() -> None:
    """An application says the same in each call; another model's limits are another matter."""
    first, again, more = (read(beam_size=beams, suppressed_texts=["x"]) for beams in (3, 3, 2))
    narrow = dataclasses.replace(ALLOWED, slots=2)

    assert again is first
    assert more.search.beams == 2
    assert refused(narrow, beam_size=3, suppressed_texts=["x"]).field == "options.beam_size"
