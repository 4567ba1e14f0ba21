"""The same text has the same translation, however it is sent."""

import time
from collections.abc import Iterable

import pytest

from dragoman.model.generated import Example, amount_example, date_example, number_example
from dragoman.model.tokenizers import Tokenizer
from dragoman.v1 import translation_pb2 as pb
from tests.e2e.process import WAIT_S, ServerProcess

PAUSE_S = 0.005
HELLO = [number_example(42), date_example(1999, 3, 12), amount_example((3, "euro"), (20, "cent"))]


class StepRows:
    """How many rows shared a decode step since this was made."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._before = self._read()

    def mean(self) -> float:
        """Return rows per step."""
        steps, rows = (now - then for now, then in zip(self._read(), self._before, strict=True))
        return rows / steps

    def _read(self) -> tuple[float, float]:
        metric = self._server.metric
        return metric("decode_step_rows_count"), metric("decode_step_rows_sum")


@pytest.fixture(scope="session")
def one_by_one(server: ServerProcess, texts: list[str]) -> list[pb.Translation]:
    """The translation of each text when it is the only one in the server."""
    rows = StepRows(server)
    translations = [
        server.stub.Translate(pb.TranslateRequest(texts=[text]), timeout=WAIT_S).translations[0] for text in texts
    ]
    assert rows.mean() == 1
    return translations


def stream(server: ServerProcess, text: str) -> tuple[list[str], pb.StreamEnd]:
    """Return the pieces and the end of a streamed translation; checks the form of every message."""
    return read(server.stub.StreamTranslate(pb.StreamTranslateRequest(text=text, id="x"), timeout=WAIT_S))


def read(call: Iterable[pb.StreamTranslateResponse]) -> tuple[list[str], pb.StreamEnd]:
    *pieces, last = call
    assert all(piece.text for piece in pieces)
    assert not any(piece.HasField("end") for piece in pieces)
    assert last.HasField("end")
    return [piece.text for piece in (*pieces, last) if piece.text], last.end


def test_the_texts_are_what_the_tests_below_need(texts: list[str], tokenizer: Tokenizer) -> None:
    """64 different ones of 1 to 100 tokens."""
    lengths = [len(tokenizer.encode(text)) - 1 for text in texts]

    assert len(set(texts)) == 64
    assert min(lengths) == 1
    assert 95 <= max(lengths) <= 127


@pytest.mark.parametrize("example", HELLO)
def test_a_sentence_is_translated(server: ServerProcess, example: Example) -> None:
    """The answer is the right German text, with reason, counts, model, id and times."""
    request = pb.TranslateRequest(texts=[example.source], source_language="en", target_language="de", id="7")

    response = server.stub.Translate(request, timeout=WAIT_S)

    [translation] = response.translations
    assert translation.text == example.target
    assert translation.finish_reason == pb.FINISH_REASON_EOS
    assert translation.source_tokens > 0
    assert translation.target_tokens > 0
    assert (response.model, response.id) == ("tiny", "7")
    assert 0 < response.timings.first_token_ns <= response.timings.total_ns
    assert response.timings.encode_ns + response.timings.decode_ns <= response.timings.total_ns


def test_one_request_gives_what_single_requests_give(
    server: ServerProcess, texts: list[str], one_by_one: list[pb.Translation]
) -> None:
    """64 texts in one call share their decode steps and have their own translations, in order."""
    rows = StepRows(server)

    response = server.stub.Translate(pb.TranslateRequest(texts=texts), timeout=WAIT_S)

    assert list(response.translations) == one_by_one
    assert rows.mean() > 4


def test_concurrent_calls_give_what_single_requests_give(
    server: ServerProcess, texts: list[str], one_by_one: list[pb.Translation]
) -> None:
    """64 calls, eight at once every few ms, join each other's decode steps; every caller gets its own translation.

    Not each after a pause: a fast machine has translated one before the next comes.
    """
    rows = StepRows(server)
    calls = []
    for number, text in enumerate(texts, 1):
        calls.append(server.stub.Translate.future(pb.TranslateRequest(texts=[text], id=text), timeout=WAIT_S))
        if number % 8 == 0:
            time.sleep(PAUSE_S)

    responses = [call.result() for call in calls]

    assert [response.id for response in responses] == texts
    assert [response.translations[0] for response in responses] == one_by_one
    assert rows.mean() > 1


def test_a_stream_is_the_unary_text_byte_for_byte(
    server: ServerProcess, texts: list[str], one_by_one: list[pb.Translation]
) -> None:
    """The pieces concatenate to the text, and the end has the same reason and counts."""
    for text, translation in zip(texts, one_by_one, strict=True):
        pieces, end = stream(server, text)

        assert "".join(pieces) == translation.text
        assert (end.finish_reason, end.source_tokens, end.target_tokens) == (
            translation.finish_reason,
            translation.source_tokens,
            translation.target_tokens,
        )
        assert (end.model, end.id) == ("tiny", "x")
        assert end.timings.total_ns > 0


def test_concurrent_streams_do_not_mix(
    server: ServerProcess, texts: list[str], one_by_one: list[pb.Translation]
) -> None:
    """Streams that share their decode steps each get their own pieces."""
    calls = [server.stub.StreamTranslate(pb.StreamTranslateRequest(text=text), timeout=WAIT_S) for text in texts]

    streamed = ["".join(read(call)[0]) for call in calls]

    assert streamed == [translation.text for translation in one_by_one]


def test_a_stream_comes_in_pieces(server: ServerProcess) -> None:
    """A caller sees the beginning before the end is known."""
    example = date_example(1999, 3, 12)

    pieces, end = stream(server, example.source)

    assert len(pieces) > 5
    assert end.target_tokens >= len(pieces)


def test_max_new_tokens_cuts_a_text_and_says_so(server: ServerProcess, tokenizer: Tokenizer) -> None:
    """Unary and streamed end after the same tokens, with LENGTH as reason."""
    options = pb.DecodingOptions(max_new_tokens=3)
    source = date_example(1999, 3, 12)

    response = server.stub.Translate(pb.TranslateRequest(texts=[source.source], options=options), timeout=WAIT_S)
    pieces, end = read(
        server.stub.StreamTranslate(pb.StreamTranslateRequest(text=source.source, options=options), timeout=WAIT_S)
    )

    [translation] = response.translations
    assert translation.text == "".join(pieces) == tokenizer.decode(tokenizer.encode(source.target)[:3])
    assert translation.finish_reason == end.finish_reason == pb.FINISH_REASON_LENGTH
    assert translation.target_tokens == end.target_tokens == 3


def test_memory_is_flat_after_the_first_load(server: ServerProcess, texts: list[str]) -> None:
    """Nothing grows with the number of texts, whatever their lengths."""

    def load() -> float:
        for _ in range(3):
            server.stub.Translate(pb.TranslateRequest(texts=texts), timeout=WAIT_S)
        return server.metrics()["process_resident_memory_bytes", frozenset()]

    first = load()

    assert [load() for _ in range(3)][-1] < 1.03 * first


def test_a_call_without_a_deadline_is_answered(server: ServerProcess) -> None:
    """No deadline means no limit, not one that has passed."""
    assert server.stub.Translate(pb.TranslateRequest(texts=[HELLO[0].source])).translations[0].text == HELLO[0].target
