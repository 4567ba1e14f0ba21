"""What options may not be, on a real server: refused at once, with field and range."""

from __future__ import annotations

import math
import time
from typing import Any

import grpc
import pytest

from dragoman.client import DecodingOptions, MessageTooLargeError, TranslationClient
from dragoman.model.generated import number_example
from dragoman.v1 import translation_pb2 as pb
from tests.e2e.process import WAIT_S, ServerProcess, start_server, wait_for
from tests.e2e.test_bad_input import error_of
from tests.e2e.test_options import TEXT, WILD, one

QUICK_S = 0.05

VALUES: dict[str, list[float]] = {
    "max_new_tokens": [2**31],
    "min_new_tokens": [2**31],
    "beam_size": [2**31, 1000],
    "num_hypotheses": [2**31, 2],
    "no_repeat_ngram_size": [2**31],
    "return_alternatives": [2**31, 1000],
    "max_length_ratio": [-1.0, math.nan, math.inf, 2.0**31],
    "length_penalty": [math.nan, math.inf, -math.inf, 2.0**31],
    "coverage_penalty": [-1.0, math.nan, math.inf, 2.0**31],
    "patience": [0.0, -1.0, math.nan, math.inf, 2.0**31],
    "repetition_penalty": [0.0, -1.0, math.nan, math.inf, 2.0**31],
    "sampling.temperature": [0.0, -1.0, math.nan, math.inf, 2.0**31],
    "sampling.top_k": [2**31],
    "sampling.top_p": [0.0, -1.0, math.nan, math.inf, 2.0**31],
    "sampling.seed": [2**63],
}


def with_option(field: str, value: Any) -> pb.TranslateRequest:
    options = pb.DecodingOptions()
    kind, _, name = field.rpartition(".")
    setattr(options.sampling if kind else options, name, value)
    return pb.TranslateRequest(texts=[TEXT], options=options)


EXTREME: dict[str, tuple[pb.TranslateRequest, str, str]] = {
    f"{field}={value}": (with_option(field, value), f"options.{field}", "it must be")
    for field, values in VALUES.items()
    for value in values
}
EXTREME |= {
    "prefix longer than the model can": (
        pb.TranslateRequest(texts=[TEXT], target_prefixes=["zwei " * 2000]), "target_prefixes[0]", "the limit is 127",
    ),
    "many suppressed texts": (
        pb.TranslateRequest(texts=[TEXT], options=pb.DecodingOptions(suppressed_texts=["a"] * 100_000)),
        "options.suppressed_texts", "the limit is",
    ),
    "long stop sequence": (
        pb.TranslateRequest(texts=[TEXT], options=pb.DecodingOptions(stop_sequences=["a" * 1_000_000])),
        "options.stop_sequences[0]", "the limit is",
    ),
    "stop sequences of a beam": (
        pb.TranslateRequest(texts=[TEXT], options=pb.DecodingOptions(stop_sequences=["a"], beam_size=2)),
        "options.stop_sequences", "beam_size of 1",
    ),
    "prefixes of other texts": (
        pb.TranslateRequest(texts=[TEXT], target_prefixes=["a", "b"]), "target_prefixes", "one per text",
    ),
    "samples beyond any queue": (
        pb.TranslateRequest(texts=[TEXT] * 256, options=pb.DecodingOptions(sampling=WILD, num_hypotheses=32)),
        "options.num_hypotheses", "no more than 2048 may wait",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXTREME)
def test_an_extreme_value_is_refused_at_once(server: ServerProcess, name: str) -> None:
    """INVALID_ARGUMENT with field and range, before anything is computed; in the quickest of three tries.

    One try would measure what else the machine does.
    """
    request, field, problem = EXTREME[name]
    took = []
    for _ in range(3):
        start = time.perf_counter()
        with pytest.raises(grpc.RpcError) as caught:
            server.stub.Translate(request, timeout=WAIT_S)
        took.append(time.perf_counter() - start)

    code, message, [violation] = error_of(caught.value)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert violation.field == field
    assert problem in violation.description
    assert len(message) < 300
    assert min(took) < QUICK_S


def test_a_beam_wider_than_the_pool_is_refused_and_one_as_wide_works() -> None:
    """The limit is in GetModel and in the message."""
    with start_server("--max-rows", "4") as server:
        largest = server.stub.GetModel(pb.GetModelRequest(), timeout=WAIT_S).model.limits.max_beam_size
        with pytest.raises(grpc.RpcError) as caught:
            one(server, beam_size=largest + 1)

        _, _, [violation] = error_of(caught.value)
        assert 1 <= largest <= 4
        assert violation.description == f"{largest + 1} is out of range; it must be 0 to {largest}"
        assert one(server, beam_size=largest).text == number_example(123).target


def test_what_a_model_cannot_give_is_another_error(server: ServerProcess) -> None:
    """This one was exported without alignments, and says so."""
    assert not server.stub.GetModel(pb.GetModelRequest(), timeout=WAIT_S).model.alignment
    asked: list[dict[str, Any]] = [{"return_alignment": True}, {"coverage_penalty": 0.5, "beam_size": 2}]
    for options in asked:
        with pytest.raises(grpc.RpcError) as caught:
            one(server, **options)

        assert isinstance(caught.value, grpc.Call)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "model 'tiny' gives no alignments" in str(caught.value.details())


def test_callers_and_priorities_are_taken(server: ServerProcess) -> None:
    """A name of any length that gRPC carries, or an error that names the metadata."""
    request = pb.TranslateRequest(texts=[TEXT], options=pb.DecodingOptions(priority=pb.PRIORITY_INTERACTIVE))
    reply = server.stub.Translate(request, timeout=WAIT_S, metadata=(("dragoman-caller", "team-a"),))
    with pytest.raises(grpc.RpcError) as caught:
        server.stub.Translate(request, timeout=WAIT_S, metadata=(("dragoman-caller", "x" * 129),))

    assert reply.translations[0].text == number_example(123).target
    _, _, [violation] = error_of(caught.value)
    assert violation.field == "dragoman-caller"


def test_an_answer_that_no_message_can_carry_is_an_error_of_the_call() -> None:
    """With a remedy, and without a word in the log; the library tells it from an overload and does not try again."""
    flags = ["--max-message-bytes", "20000"]
    with start_server(*flags) as server, TranslationClient(server.address, retries=5) as client:
        with pytest.raises(MessageTooLargeError, match=r"larger than max_message_bytes \(\d+ vs. 20000\); send fewer"):
            client.translate([TEXT] * 200, options=DecodingOptions(return_token_scores=True))

        wait_for(  # the answer is on its way before the call is counted
            lambda: server.metric("requests_total", method="Translate", code="RESOURCE_EXHAUSTED") == 1, "one such call"
        )
        assert client.translate_text(TEXT, options=DecodingOptions(return_token_scores=True)).hypotheses
