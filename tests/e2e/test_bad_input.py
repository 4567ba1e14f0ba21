"""Wrong requests get the right code and a message that helps; the next right one works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from dragoman.model.generated import number_example
from dragoman.model.tokenizers import Tokenizer
from dragoman.v1 import translation_pb2 as pb
from tests.e2e.process import WAIT_S, ServerProcess, wait_for

GOOD = number_example(42)
INVALID = grpc.StatusCode.INVALID_ARGUMENT


@dataclass(frozen=True)
class Bad:
    """A wrong request and its error.

    Attributes:
        request: Sent to Translate.
        field: Named in the BadRequest detail.
        problem: Parts of the message: the value, and the limit or what is allowed.
    """

    request: pb.TranslateRequest
    field: str
    problem: tuple[str, ...]


BAD = {
    "no texts": Bad(pb.TranslateRequest(), "texts", ("empty",)),
    "too many texts": Bad(pb.TranslateRequest(texts=["one"] * 257), "texts", ("257", "256")),
    "ten times too long": Bad(pb.TranslateRequest(texts=["one", "and " * 1280]), "texts[1]", ("1280", "127")),
    "unknown source language": Bad(
        pb.TranslateRequest(texts=["one"], source_language="fr"), "source_language", ("'fr'", "model 'tiny' has 'en'")
    ),
    "unknown target language": Bad(
        pb.TranslateRequest(texts=["one"], target_language="x" * 10_000), "target_language", ("'xxx", "has 'de'")
    ),
    "markup": Bad(
        pb.TranslateRequest(texts=["<b>one</b>"], mime_type="text/html"), "mime_type", ("'text/html'", "plain")
    ),
    "too many new tokens": Bad(
        pb.TranslateRequest(texts=["one"], options=pb.DecodingOptions(max_new_tokens=129)),
        "options.max_new_tokens",
        ("129", "128"),
    ),
    "far too many new tokens": Bad(
        pb.TranslateRequest(texts=["one"], options=pb.DecodingOptions(max_new_tokens=2**32 - 1)),
        "options.max_new_tokens",
        ("4294967295", "128"),
    ),
}


@pytest.fixture(autouse=True)
def the_server_still_works(server: ServerProcess) -> Iterator[None]:
    """After each test a normal request has its normal answer, and nothing is left in the engine."""
    yield
    response = server.stub.Translate(pb.TranslateRequest(texts=[GOOD.source]), timeout=WAIT_S)
    assert response.translations[0].text == GOOD.target
    assert server.rows_in_engine() == 0


def translate(server: ServerProcess, request: pb.TranslateRequest) -> pb.TranslateResponse:
    response: pb.TranslateResponse = server.stub.Translate(request, timeout=WAIT_S)
    return response


def num_refused(server: ServerProcess) -> float:
    return server.metric("requests_total", method="Translate", code="INVALID_ARGUMENT")


def error_of(call: object) -> tuple[grpc.StatusCode, str, list[error_details_pb2.BadRequest.FieldViolation]]:
    """Return code, message and field violations."""
    assert isinstance(call, grpc.Call)
    violations = []
    rich = rpc_status.from_call(call)
    for detail in rich.details if rich else []:
        bad_request = error_details_pb2.BadRequest()
        if detail.Unpack(bad_request):
            violations += bad_request.field_violations
    return call.code(), str(call.details()), violations


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_a_wrong_request_is_refused_with_field_value_and_limit(server: ServerProcess, bad: Bad) -> None:
    """People read it in the message, programs in the BadRequest detail."""
    refused = num_refused(server)
    with pytest.raises(grpc.RpcError) as caught:
        translate(server, bad.request)

    code, message, [violation] = error_of(caught.value)
    assert code is INVALID
    assert violation.field == bad.field
    assert message == f"{bad.field}: {violation.description}"
    assert all(part in violation.description for part in bad.problem)
    assert len(message) < 300
    wait_for(lambda: num_refused(server) == refused + 1, "the call is counted")


def test_a_wrong_stream_is_refused_in_the_same_way(server: ServerProcess) -> None:
    """The field is called as it is in the streaming request, and no piece is sent."""
    call = server.stub.StreamTranslate(pb.StreamTranslateRequest(text="and " * 1280), timeout=WAIT_S)
    with pytest.raises(grpc.RpcError):
        next(call)

    code, message, [violation] = error_of(call)
    assert code is INVALID
    assert violation.field == "text"
    assert "1280" in message
    assert "127" in message


@pytest.mark.parametrize("name", ["huge", "tiny-v1", "../tiny"])
def test_an_unknown_model_is_not_found(server: ServerProcess, name: str) -> None:
    """Every method that takes a model says which one there is."""
    calls: list[Callable[[], object]] = [
        lambda: server.stub.Translate(pb.TranslateRequest(texts=["one"], model=name), timeout=WAIT_S),
        lambda: next(server.stub.StreamTranslate(pb.StreamTranslateRequest(text="one", model=name), timeout=WAIT_S)),
        lambda: server.stub.GetModel(pb.GetModelRequest(name=name), timeout=WAIT_S),
    ]
    for call in calls:
        with pytest.raises(grpc.RpcError) as caught:
            call()

        code, message, _ = error_of(caught.value)
        assert code is grpc.StatusCode.NOT_FOUND
        assert name in message
        assert "'tiny'" in message


def test_a_message_too_large_is_refused(server: ServerProcess) -> None:
    """GRPC itself refuses it, before it is read into memory as a whole."""
    with pytest.raises(grpc.RpcError) as caught:
        translate(server, pb.TranslateRequest(texts=["x" * (5 * 1024 * 1024)]))

    code, message, _ = error_of(caught.value)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(4 * 1024 * 1024) in message


@pytest.mark.parametrize("blank", ["", " ", "\n", "\u200b", "\x00", "\u00a0\t"])
def test_a_blank_text_has_a_blank_translation_at_its_place(server: ServerProcess, blank: str) -> None:
    """OK, no tokens, and its neighbours are translated."""
    response = translate(server, pb.TranslateRequest(texts=[blank, GOOD.source, blank]))
    [end] = server.stub.StreamTranslate(pb.StreamTranslateRequest(text=blank), timeout=WAIT_S)

    nothing = pb.Translation(finish_reason=pb.FINISH_REASON_EOS)
    assert [response.translations[0], response.translations[2]] == [nothing, nothing]
    assert response.translations[1].text == GOOD.target
    assert end.text == ""
    assert (end.end.finish_reason, end.end.source_tokens, end.end.target_tokens) == (pb.FINISH_REASON_EOS, 0, 0)


def test_nothing_but_blank_texts_is_fine(server: ServerProcess) -> None:
    """Such a call never reaches the engine."""
    ended = server.metric("texts_ended_total", reason="eos")

    response = translate(server, pb.TranslateRequest(texts=["", "\n"]))

    assert [translation.text for translation in response.translations] == ["", ""]
    assert server.metric("texts_ended_total", reason="eos") == ended


@pytest.mark.parametrize(
    "text", ["</s>", "<pad>", "<s>", "<unk>", "\u2581", "__de__", "one </s> two", "\u2581one", "one\x00two"]
)
def test_special_tokens_in_a_text_are_characters(server: ServerProcess, tokenizer: Tokenizer, text: str) -> None:
    """They cost tokens as characters do, end nothing early and are translated like any other text."""
    texts = [text, f"{GOOD.source} {text} {GOOD.source}"]

    response = translate(server, pb.TranslateRequest(texts=texts))

    assert [t.source_tokens for t in response.translations] == [len(tokenizer.encode(text)) - 1 for text in texts]
    assert all(t.finish_reason != pb.FINISH_REASON_UNSPECIFIED for t in response.translations)


def test_languages_may_name_a_region(server: ServerProcess) -> None:
    """A model for "en" understands "en-US"."""
    request = pb.TranslateRequest(texts=[GOOD.source], source_language="en-US", target_language="de-AT")

    assert translate(server, request).translations[0].text == GOOD.target


def test_one_wrong_text_refuses_the_call_as_a_whole(server: ServerProcess) -> None:
    """No text of it is translated, and the message names the one that is wrong."""
    encoded = server.metric("source_tokens_total")
    with pytest.raises(grpc.RpcError) as caught:
        translate(server, pb.TranslateRequest(texts=[GOOD.source, "and " * 500, GOOD.source]))

    assert error_of(caught.value)[2][0].field == "texts[1]"
    assert server.metric("source_tokens_total") == encoded


def test_the_limits_in_messages_are_those_of_get_model(server: ServerProcess) -> None:
    """A caller can know all limits before it sends anything; the limit itself is accepted."""
    limits = server.stub.GetModel(pb.GetModelRequest(), timeout=WAIT_S).model.limits

    response = translate(
        server,
        pb.TranslateRequest(
            texts=["and " * limits.max_source_tokens] + [""] * (limits.max_texts - 1),
            options=pb.DecodingOptions(max_new_tokens=limits.max_target_tokens),
        ),
    )

    assert (limits.max_source_tokens, limits.max_target_tokens, limits.max_texts) == (127, 128, 256)
    assert response.translations[0].source_tokens == limits.max_source_tokens
    assert (limits.max_message_bytes, limits.max_queued_texts) == (4 * 1024 * 1024, 2048)
