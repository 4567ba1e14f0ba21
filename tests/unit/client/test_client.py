import socket
import threading
import time
from collections.abc import Callable

import grpc
import pytest

from dragoman.client import (
    CallCancelledError,
    CallError,
    DeadlineExceededError,
    DecodingOptions,
    FieldViolation,
    FinishReason,
    InternalError,
    InvalidRequestError,
    LanguagePair,
    Limits,
    MessageTooLargeError,
    ModelNotFoundError,
    OverloadedError,
    StreamPiece,
    Timings,
    Translation,
    TranslationClient,
    UnavailableError,
)
from dragoman.v1 import translation_pb2 as pb
from tests.fakes.translation_server import Failure, FakeTranslationService, serve

WAIT_S = 10  # a test that needs this long has failed
UNAVAILABLE = Failure(grpc.StatusCode.UNAVAILABLE, "draining")
FULL = Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue is full", retry_after_s=0.02)


def test_translations_are_one_to_one_and_in_order(client: TranslationClient) -> None:
    """Every text, blank ones included, has its translation at its own position."""
    texts = [f"text {number}" if number % 7 else "" for number in range(50)]

    result = client.translate(texts, id="batch 7")

    assert result.texts == tuple(text.upper() for text in texts)
    assert result.translations[0] == Translation("", FinishReason.EOS, source_tokens=0, target_tokens=0)
    assert result.translations[1] == Translation("TEXT 1", FinishReason.EOS, source_tokens=2, target_tokens=2)
    assert (result.model, result.id) == ("shout", "batch 7")
    assert result.timings == Timings(60, 1, 2, 3, 4, 5)


def test_every_argument_reaches_the_server(client: TranslationClient, service: FakeTranslationService) -> None:
    """The request carries model, languages, id and options as given."""
    client.translate(
        ["good morning"],
        model="m",
        source_language="en",
        target_language="de",
        options=DecodingOptions(max_new_tokens=7),
        id="x",
    )

    assert service.requests == [
        pb.TranslateRequest(
            texts=["good morning"],
            model="m",
            source_language="en",
            target_language="de",
            id="x",
            options=pb.DecodingOptions(max_new_tokens=7),
        )
    ]


def test_one_text_gives_one_translation(client: TranslationClient) -> None:
    """The convenience returns the translation itself, with its finish reason."""
    translation = client.translate_text("one two three", options=DecodingOptions(max_new_tokens=2))

    assert translation == Translation("ONE TWO", FinishReason.LENGTH, source_tokens=3, target_tokens=2)


@pytest.mark.parametrize("texts", ["one text", b"bytes", ["fine", 3]])
def test_something_else_than_a_sequence_of_str_is_a_type_error(client: TranslationClient, texts: list[str]) -> None:
    """A str is a sequence of str too, so the mistake is caught before its letters are translated."""
    with pytest.raises(TypeError, match=r"texts is one str|texts is one bytes|texts\[1\] is int"):
        client.translate(texts)


def test_a_lone_surrogate_is_a_value_error_with_its_place(client: TranslationClient) -> None:
    """Text that no UTF-8 can carry is refused with text and index."""
    with pytest.raises(ValueError, match=r"texts\[1\] has a lone surrogate, U\+DC80, at index 2"):
        client.translate(["fine", "ab\udc80"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DecodingOptions(max_new_tokens=-1), "max_new_tokens is -1"),
        (lambda: TranslationClient(timeout_s=0), "timeout_s is 0"),
        (lambda: TranslationClient(timeout_s=float("inf")), "timeout_s is inf"),
        (lambda: TranslationClient(retries=-1), "retries is -1"),
        (lambda: TranslationClient(max_message_bytes=0), "max_message_bytes is 0"),
    ],
)
def test_a_setting_out_of_range_is_a_value_error(make: Callable[[], object], message: str) -> None:
    """The message names the setting and its value."""
    with pytest.raises(ValueError, match=message):
        make()


def test_models_are_described(client: TranslationClient) -> None:
    """Everything a server says about a model can be read, by list and by name."""
    model = client.model("shout")

    assert client.models() == (model,)
    assert client.model() == model
    assert (model.name, model.version) == ("shout", "abc123")
    assert model.language_pairs == (LanguagePair("en", "de"),)
    assert model.limits == Limits(64, 100, 101, 2**20, 256, 32, 16, 8, 4, 2, 50)
    assert (model.requested_device, model.device, model.precision, model.alignment) == ("cuda", "cpu", "int8", True)


def test_an_unknown_model_is_its_own_error(client: TranslationClient) -> None:
    """The message is the server's and the gRPC error is the cause."""
    with pytest.raises(ModelNotFoundError, match="no model 'nope'; there is 'shout'") as caught:
        client.model("nope")

    assert isinstance(caught.value.__cause__, grpc.RpcError)
    assert caught.value.code is grpc.StatusCode.NOT_FOUND


def test_an_invalid_request_says_which_field(client: TranslationClient, service: FakeTranslationService) -> None:
    """Violations of google.rpc.BadRequest are attributes of the error, and nothing is retried."""
    service.failures.append(
        Failure(grpc.StatusCode.INVALID_ARGUMENT, "texts[1] is too long", violations=(("texts[1]", "700 tokens"),))
    )

    with pytest.raises(InvalidRequestError, match=r"texts\[1\] is too long") as caught:
        client.translate(["a", "b"])

    assert caught.value.field_violations == (FieldViolation("texts[1]", "700 tokens"),)
    assert len(service.requests) == 1


def test_a_full_server_is_tried_again_when_it_says(client: TranslationClient, service: FakeTranslationService) -> None:
    """RetryInfo is obeyed, as often as it comes."""
    service.failures.extend([FULL] * 6)
    start = time.monotonic()

    result = client.translate(["a"])

    assert result.texts == ("A",)
    assert len(service.requests) == 7
    assert time.monotonic() - start >= 6 * 0.02


def test_a_wait_beyond_the_deadline_is_not_begun(client: TranslationClient, service: FakeTranslationService) -> None:
    """The overload is reported at once, with the time the server named."""
    service.failures.append(Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue is full", retry_after_s=30))
    start = time.monotonic()

    with pytest.raises(OverloadedError, match="queue is full") as caught:
        client.translate(["a"], timeout_s=5)

    assert caught.value.retry_after_s == 30
    assert time.monotonic() - start < 5
    assert len(service.requests) == 1


def test_a_full_server_that_names_no_time_is_not_tried_again(
    client: TranslationClient, service: FakeTranslationService
) -> None:
    """Without RetryInfo nothing says that waiting helps."""
    service.failures.append(Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "quota"))

    with pytest.raises(OverloadedError, match="quota"):
        client.translate(["a"])

    assert len(service.requests) == 1


def test_unavailable_is_tried_again(client: TranslationClient, service: FakeTranslationService) -> None:
    """A server that is starting or stopping is asked again."""
    service.failures.extend([UNAVAILABLE] * 2)

    assert client.translate_text("a").text == "A"
    assert len(service.requests) == 3


def test_retries_can_be_turned_off(address: str, service: FakeTranslationService) -> None:
    """With retries=0 the first failure is the answer, whatever the server asks for."""
    service.failures.extend([UNAVAILABLE, FULL])

    with TranslationClient(address, retries=0) as client:
        with pytest.raises(UnavailableError, match="draining"):
            client.translate(["a"])
        with pytest.raises(OverloadedError):
            client.translate(["a"])
    assert len(service.requests) == 2


def test_a_server_that_comes_back_is_reached(service: FakeTranslationService) -> None:
    """A server that restarts during a call is found by its retries, soon enough."""
    answers: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    with TranslationClient(address) as client:
        caller = threading.Thread(target=lambda: answers.append(client.translate_text("late").text))
        caller.start()
        connection, _ = listener.accept()
        connection.close()
        listener.close()
        with serve(service, address):
            caller.join(WAIT_S)

    assert answers == ["LATE"]


def test_no_server_is_unavailable() -> None:
    """A closed port is an UnavailableError after the retries."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"

        with TranslationClient(address, retries=1) as client, pytest.raises(UnavailableError):
            client.translate(["a"])


def test_the_deadline_ends_a_slow_call(client: TranslationClient, service: FakeTranslationService) -> None:
    """A call that takes longer than its timeout is a DeadlineExceededError."""
    service.before_translate = lambda _: _wait_for(service.call_over)

    with pytest.raises(DeadlineExceededError):
        client.translate(["a"], timeout_s=0.2)


def test_closing_the_client_ends_its_calls(address: str, service: FakeTranslationService) -> None:
    """A call in progress ends with a CallCancelledError, and the server notices."""
    arrived = service.hold_calls(WAIT_S)
    client = TranslationClient(address)
    errors: list[CallError] = []

    def call() -> None:
        try:
            client.translate(["a"])
        except CallError as error:
            errors.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    arrived.wait(WAIT_S)
    client.close()
    caller.join()

    assert [type(error) for error in errors] == [CallCancelledError]


def test_a_wrong_number_of_translations_is_an_internal_error(
    client: TranslationClient, service: FakeTranslationService
) -> None:
    """Translations that cannot be paired with their texts are not handed out."""
    service.num_missing = 1

    with pytest.raises(InternalError, match="1 translations for 2 texts"):
        client.translate(["a", "b"])


def test_a_message_above_the_limit_is_not_an_overload(address: str) -> None:
    """GRPC's own size limit has the code of an overload but is a fault of the request."""
    with TranslationClient(address, max_message_bytes=1000) as client, pytest.raises(MessageTooLargeError):
        client.translate(["a" * 2000])


def test_a_given_channel_stays_open(address: str) -> None:
    """The client does not close what it did not open."""
    with grpc.insecure_channel(address) as channel:
        with TranslationClient(channel=channel) as client:
            client.translate(["a"])

        assert TranslationClient(channel=channel).translate_text("b").text == "B"


def test_pieces_equal_the_unary_translation(client: TranslationClient) -> None:
    """The joined pieces are the translation, and the last one has its numbers."""
    pieces = list(client.stream("one two three", id="s"))

    assert "".join(piece.text for piece in pieces) == client.translate_text("one two three").text
    assert [piece.end for piece in pieces[:-1]] == [None, None, None]
    end = pieces[-1].end
    assert end is not None
    assert (end.finish_reason, end.source_tokens, end.target_tokens) == (FinishReason.EOS, 3, 3)
    assert (end.model, end.id, end.timings) == ("shout", "s", Timings(60, 1, 2, 3, 4, 5))


def test_a_stream_maps_its_arguments(client: TranslationClient, service: FakeTranslationService) -> None:
    """The request carries model, languages, id and options as given."""
    list(
        client.stream(
            "a b",
            model="m",
            source_language="en",
            target_language="de",
            options=DecodingOptions(max_new_tokens=1),
            id="x",
        )
    )

    assert service.requests == [
        pb.StreamTranslateRequest(
            text="a b",
            model="m",
            source_language="en",
            target_language="de",
            id="x",
            options=pb.DecodingOptions(max_new_tokens=1),
        )
    ]


def test_a_stream_is_tried_again_before_its_first_piece(
    client: TranslationClient, service: FakeTranslationService
) -> None:
    """Nothing has been seen yet, so another attempt repeats nothing."""
    service.failures.extend([FULL, UNAVAILABLE])

    assert "".join(piece.text for piece in client.stream("one two")) == "ONE TWO"
    assert len(service.requests) == 3


def test_a_stream_is_not_tried_again_after_its_first_piece(
    client: TranslationClient, service: FakeTranslationService
) -> None:
    """A second attempt would repeat what the user has seen."""
    service.stream_failure = UNAVAILABLE
    stream = client.stream("one two")

    assert next(stream) == StreamPiece("ONE", end=None)
    with pytest.raises(UnavailableError, match="draining"):
        next(stream)
    assert len(service.requests) == 1


def test_a_stream_without_its_last_message_is_an_error(
    client: TranslationClient, service: FakeTranslationService
) -> None:
    """A cut translation is never taken for a complete one."""
    service.stream_breaks = True

    with pytest.raises(InternalError, match="before the translation was complete"):
        list(client.stream("one two"))


@pytest.mark.parametrize("how", ["close", "with", "drop"])
def test_leaving_a_stream_cancels_the_call(
    client: TranslationClient, service: FakeTranslationService, how: str
) -> None:
    """The server learns that nobody listens any more."""
    service.stream_hangs = True
    stream = client.stream("one two")
    assert next(stream).text == "ONE"

    if how == "close":
        stream.close()
        assert list(stream) == []
    elif how == "with":
        with stream:
            pass
    else:
        del stream

    assert service.call_over.wait(WAIT_S)


def test_a_cancelled_stream_is_not_taken_for_a_complete_one(
    client: TranslationClient, service: FakeTranslationService
) -> None:
    """Another thread may cancel; the reader learns that the translation was cut."""
    service.stream_hangs = True
    stream = client.stream("one two")
    assert next(stream).text == "ONE"

    threading.Thread(target=stream.cancel).start()

    with pytest.raises(CallCancelledError):
        next(stream)


def test_a_text_to_stream_must_be_str(client: TranslationClient) -> None:
    """A list is the mistake of those who come from `translate`."""
    with pytest.raises(TypeError, match="text is list; it must be str"):
        client.stream(["a"])  # type: ignore[arg-type] # the mistake under test


def _wait_for(event: threading.Event) -> None:
    event.wait(WAIT_S)
