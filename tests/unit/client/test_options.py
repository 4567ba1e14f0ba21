"""Options, hypotheses and scores, in both clients."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import grpc
import numpy as np
import pytest

from dragoman.client import (
    AsyncTranslationClient,
    DecodingOptions,
    EarlyStopping,
    FinishReason,
    Hypothesis,
    InternalError,
    InvalidRequestError,
    Normalization,
    PairScore,
    Priority,
    Sampling,
    TokenScore,
    TranslationClient,
)
from dragoman.client.results import Translation
from dragoman.v1 import translation_pb2 as pb
from tests.fakes.translation_server import Failure, FakeTranslationService

COUNTS = ("max_new_tokens", "min_new_tokens", "beam_size", "num_hypotheses", "no_repeat_ngram_size")
NUMBERS = ("max_length_ratio", "length_penalty", "coverage_penalty", "patience", "repetition_penalty")
FLAGS = ("return_scores", "return_token_scores", "return_alignment")
ALL = DecodingOptions(
    max_new_tokens=50,
    min_new_tokens=2,
    max_length_ratio=2.5,
    beam_size=4,
    num_hypotheses=3,
    length_penalty=0.0,
    normalization=Normalization.GNMT,
    coverage_penalty=0.2,
    patience=2.0,
    early_stopping=EarlyStopping.NEVER,
    sampling=Sampling(temperature=0.7, top_k=0, top_p=0.9, seed=0),
    repetition_penalty=1.2,
    no_repeat_ngram_size=3,
    suppressed_texts=["foo", "bar baz"],
    stop_sequences=["\n"],
    return_scores=True,
    return_token_scores=True,
    return_alignment=True,
    return_alternatives=5,
    priority=Priority.BULK,
)


def test_every_field_of_the_protocol_is_an_option_of_the_same_name() -> None:
    """What the server can do, the library can ask for."""
    for message, kind in ((pb.DecodingOptions, DecodingOptions), (pb.Sampling, Sampling)):
        assert [field.name for field in message.DESCRIPTOR.fields] == [field.name for field in fields(kind)]


def test_every_option_reaches_the_message() -> None:
    """As given, zeros of optional fields included."""
    message = ALL.to_proto()

    assert {field.name for field, _ in message.ListFields()} == {field.name for field in fields(DecodingOptions)}
    assert (message.length_penalty, message.HasField("length_penalty")) == (0.0, True)
    assert (message.sampling.seed, message.sampling.HasField("seed")) == (0, True)
    assert (message.sampling.top_k, message.sampling.HasField("top_k")) == (0, True)
    assert message.normalization == pb.NORMALIZATION_GNMT
    assert message.early_stopping == pb.EARLY_STOPPING_NEVER
    assert message.priority == pb.PRIORITY_BULK
    assert list(message.suppressed_texts) == ["foo", "bar baz"]


def test_defaults_send_nothing_and_leave_the_server_its_own() -> None:
    """An empty message; sampling without settings is there all the same."""
    assert DecodingOptions().to_proto() == pb.DecodingOptions()
    sampled = DecodingOptions(sampling=Sampling()).to_proto()
    assert sampled.HasField("sampling")
    assert not sampled.sampling.ListFields()


@pytest.mark.parametrize("name", ["max_new_tokens", "beam_size", "num_hypotheses", "return_alternatives"])
@pytest.mark.parametrize("value", [-1, 2**32])
def test_what_the_wire_cannot_carry_is_a_value_error(name: str, value: int) -> None:
    """The message names the option and its value; everything else is the server's to judge."""
    with pytest.raises(ValueError, match=f"{name} is {value}; it must be from 0"):
        DecodingOptions(**{name: value})  # type: ignore[arg-type]  # mypy does not know which field is which


@pytest.mark.parametrize("name", ["suppressed_texts", "stop_sequences"])
def test_one_text_where_a_list_belongs_is_a_type_error(name: str) -> None:
    """Its letters would be taken one by one."""
    with pytest.raises(TypeError, match=f"{name} is one str"):
        DecodingOptions(**{name: "abc"})  # type: ignore[arg-type]  # the mistake
    with pytest.raises(ValueError, match=rf"{name}\[1\] has a lone surrogate"):
        DecodingOptions(**{name: ["a", "\udc80"]})  # type: ignore[arg-type]  # mypy does not know which field is which


@pytest.mark.parametrize(
    ("kind", "name", "value", "allowed"),
    [
        *((DecodingOptions, name, value, "int, from 0") for name in COUNTS for value in ("5", 2.0, None, True)),
        *((DecodingOptions, name, value, "float or int") for name in NUMBERS for value in ("1", True, [1.0])),
        *((DecodingOptions, name, value, "True or False") for name in FLAGS for value in (1, "no", None)),
        (DecodingOptions, "coverage_penalty", None, "float or int"),
        (DecodingOptions, "normalization", "GNMT", "Normalization.LENGTH or Normalization.GNMT"),
        (DecodingOptions, "early_stopping", True, "EarlyStopping.FALSE or EarlyStopping.TRUE or EarlyStopping.NEVER"),
        (DecodingOptions, "priority", "BULK", "Priority.NORMAL or Priority.INTERACTIVE or Priority.BULK"),
        (DecodingOptions, "sampling", {"top_k": 5}, "Sampling"),
        (DecodingOptions, "suppressed_texts", 5, "a sequence of str"),
        (Sampling, "temperature", "1", "float or int"),
        (Sampling, "top_p", True, "float or int"),
        (Sampling, "top_k", 2.5, "int, from 0"),
        (Sampling, "seed", "7", "int, from 0"),
    ],
)
def test_another_type_is_an_error_that_says_what_is_allowed(kind: type, name: str, value: object, allowed: str) -> None:
    """Field, value and type, and what is allowed: protobuf would name none of them."""
    given = re.escape(f"{name} is {value!r} of type {type(value).__name__}; it must be {allowed}")
    with pytest.raises(TypeError, match=f"^{given}"):
        kind(**{name: value})


def test_numbers_of_other_libraries_are_numbers() -> None:
    """What behaves as an int or a float is sent as one."""
    options = DecodingOptions(beam_size=np.int32(4), length_penalty=np.float32(0.5), patience=2, max_length_ratio=1)  # type: ignore[arg-type]  # NumPy's are no float

    assert (
        options.to_proto()
        == DecodingOptions(beam_size=4, length_penalty=0.5, patience=2.0, max_length_ratio=1.0).to_proto()
    )


def test_a_number_beyond_32_bits_is_a_value_error() -> None:
    """It would be sent as infinity, or not at all; what no number is, the server refuses."""
    for value in (1e39, -1e300, 10**400):
        with pytest.raises(ValueError, match=r"length_penalty is .*; it must be a number that 32 bits can hold"):
            DecodingOptions(length_penalty=value)
    for value in (math.inf, -math.inf, math.nan):
        assert DecodingOptions(length_penalty=value).to_proto().HasField("length_penalty")


@pytest.mark.parametrize("name", ["model", "source_language", "target_language", "id"])
def test_names_of_another_type_are_named(client: TranslationClient, name: str) -> None:
    """In every method that takes them."""
    calls: list[tuple[Callable[..., Any], Any]] = [(client.translate, ["a"]), (client.stream, "a")]
    calls.append((client.score_many, [("a", "b")]))
    for call, given in calls:
        with pytest.raises(TypeError, match=f"{name} is int; it must be str"):
            call(given, **{name: 5})


def test_options_of_another_type_are_named(client: TranslationClient) -> None:
    """A dict is no options, a str no priority, a number no pair."""
    calls: list[tuple[Callable[..., Any], Any]] = [(client.translate, ["a"]), (client.translate_text, "a")]
    calls.append((client.stream, "a"))
    for call, given in calls:
        with pytest.raises(TypeError, match=r"options is {'beam_size': 4} of type dict; it must be DecodingOptions"):
            call(given, options={"beam_size": 4})
    with pytest.raises(TypeError, match=r"priority is 'BULK' of type str; it must be Priority.NORMAL or"):
        client.score("a", "b", priority="BULK")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(TypeError, match=r"pairs\[0\] is not a pair"):
        client.score_many([5])  # type: ignore[list-item]  # the mistake


def test_options_are_values() -> None:
    """Equal ones are equal, whatever sequence they were given; they can be keys."""
    assert DecodingOptions(stop_sequences=["a"]) == DecodingOptions(stop_sequences=("a",))
    assert len({ALL, DecodingOptions(), DecodingOptions(beam_size=0)}) == 2


def test_hypotheses_have_what_was_asked_for(client: TranslationClient) -> None:
    """Scores, tokens, alignment and seeds are read; the translation is the first hypothesis."""
    options = DecodingOptions(
        num_hypotheses=2,
        sampling=Sampling(seed=7),
        return_scores=True,
        return_token_scores=True,
        return_alignment=True,
    )

    translation = client.translate_text("ab c", options=options)

    tokens = (TokenScore("ab", -2.0), TokenScore("c", -1.0), TokenScore("", -0.5))
    rows = ((1.0, 0.0), (0.0, 1.0))
    first = Hypothesis("AB C", FinishReason.EOS, 2, -0.5, -1.0, tokens, rows, 7)
    assert translation.hypotheses == (first, Hypothesis("AB C!", FinishReason.EOS, 2, -1.5, -2.0, tokens, rows, 8))
    assert translation.text == "AB C"
    assert translation.source_pieces == ("ab", "c")
    assert first.aligned_pairs == ((0, 0), (1, 1))


def test_nothing_is_listed_that_was_not_asked_for(client: TranslationClient) -> None:
    """A plain translation has no hypotheses besides itself, and scores that nobody wanted are None, not 0."""
    [first, _] = client.translate_text("a b", options=DecodingOptions(num_hypotheses=2)).hypotheses

    assert client.translate_text("a b").hypotheses == ()
    assert (first.score, first.log_prob, first.seed, first.tokens, first.alignment) == (None, None, None, (), ())


def test_prefixes_reach_the_server_one_per_text(client: TranslationClient, service: FakeTranslationService) -> None:
    """One text has one, too, and no prefix sends none."""
    result = client.translate(["a", "b"], target_prefixes=["x", ""])
    single = client.translate_text("a", target_prefix="y")
    client.translate_text("a")

    assert result.texts == ("x A", "B")
    assert single.text == "y A"
    sent = [list(request.target_prefixes) for request in service.requests if isinstance(request, pb.TranslateRequest)]
    assert sent == [["x", ""], ["y"], []]


def test_a_stream_has_prefix_options_and_hypotheses(client: TranslationClient, service: FakeTranslationService) -> None:
    """The end of a stream says what a unary translation says."""
    options = DecodingOptions(return_scores=True, return_alignment=True)
    with client.stream("a b", target_prefix="x", options=options) as stream:
        *pieces, last = stream

    assert "".join(piece.text for piece in pieces) == "x A B"
    assert last.end is not None
    assert last.end.hypotheses == client.translate_text("a b", target_prefix="x", options=options).hypotheses
    assert last.end.source_pieces == ("a", "b")
    [request, _] = service.requests
    assert isinstance(request, pb.StreamTranslateRequest)
    assert request.target_prefix == "x"


def test_a_stop_sequence_is_a_finish_reason() -> None:
    """It is read like the others, and one that this client does not know is UNSPECIFIED."""
    assert FinishReason.from_proto(pb.FINISH_REASON_STOP_SEQUENCE) is FinishReason.STOP_SEQUENCE
    assert FinishReason.from_proto(99) is FinishReason.UNSPECIFIED  # type: ignore[arg-type]  # a newer server's


def test_pairs_are_scored_in_their_order(client: TranslationClient, service: FakeTranslationService) -> None:
    """One score per pair, with tokens; a blank pair is certain, a text for a blank source impossible."""
    pairs = [("a b", "xx y"), ("", ""), ("", "x")]

    result = client.score_many(pairs, model="m", source_language="en", priority=Priority.BULK, id="7")

    tokens = (TokenScore("xx", -2.0), TokenScore("y", -1.0), TokenScore("", -0.5))
    assert result.scores[0] == PairScore(-3.5, tokens, source_tokens=2, target_tokens=2)
    assert result.scores[0].mean_log_prob == pytest.approx(-3.5 / 3)
    assert [score.log_prob for score in result.scores[1:]] == [0.0, -math.inf]
    assert (result.model, result.id) == ("m", "7")
    assert client.score("a b", "xx y") == result.scores[0]
    assert service.requests[0] == pb.ScoreRequest(
        pairs=[pb.ScorePair(source=source, target=target) for source, target in pairs],
        model="m",
        source_language="en",
        priority=pb.PRIORITY_BULK,
        id="7",
    )


def test_what_is_no_pair_is_a_type_error(client: TranslationClient) -> None:
    """Two letters of a str are no pair either."""
    with pytest.raises(TypeError, match=r"pairs\[1\] is not a pair"):
        client.score_many([("a", "b"), "ab"])  # type: ignore[list-item]  # the mistake
    with pytest.raises(TypeError, match=r"pairs\[0\]\[1\] is int"):
        client.score("a", 3)  # type: ignore[arg-type]  # the mistake


def test_scores_that_cannot_be_paired_are_refused(client: TranslationClient, service: FakeTranslationService) -> None:
    """A missing score would shift all that follow."""
    service.num_missing = 1

    with pytest.raises(InternalError, match="2 scores for 3 pairs"):
        client.score_many([("a", "b")] * 3)


def test_a_refused_option_is_the_servers_error(client: TranslationClient, service: FakeTranslationService) -> None:
    """Ranges are not checked twice."""
    problem = ("options.beam_size", "99 is out of range; it must be 0 to 32")
    service.failures.append(Failure(grpc.StatusCode.INVALID_ARGUMENT, "bad", violations=(problem,)))

    with pytest.raises(InvalidRequestError) as caught:
        client.translate(["a"], options=DecodingOptions(beam_size=99))

    [violation] = caught.value.field_violations
    assert (violation.field, violation.description) == problem


def test_the_callers_name_goes_with_every_call(address: str, service: FakeTranslationService) -> None:
    """Unary, streamed and scored; without a name there is none."""
    with TranslationClient(address, caller="team-a") as client:
        client.translate_text("a")
        list(client.stream("a"))
        client.score("a", "b")
    with TranslationClient(address) as client:
        client.translate_text("a")

    assert service.callers == ["team-a"] * 3 + [None]
    with pytest.raises(ValueError, match="caller is 'é'; it must be printable ASCII"):
        TranslationClient(caller="é")


def test_the_asyncio_client_does_the_same(address: str, service: FakeTranslationService) -> None:
    """Options, prefixes, scores and the caller's name."""

    async def work() -> tuple[Translation, PairScore, str]:
        async with AsyncTranslationClient(address, caller="team-b") as client:
            translation = await client.translate_text("a b", target_prefix="x", options=DecodingOptions(beam_size=2))
            score = await client.score("a b", "xx y")
            streamed = [piece.text async for piece in client.stream("a b", target_prefix="x")]
            return translation, score, "".join(streamed)

    translation, score, streamed = asyncio.run(work())

    assert translation.text == streamed == "x A B"
    assert score.log_prob == -3.5
    assert service.callers == ["team-b"] * 3
    assert isinstance(service.requests[0], pb.TranslateRequest)
    assert service.requests[0].options == pb.DecodingOptions(beam_size=2)
