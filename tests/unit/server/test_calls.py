import asyncio
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import grpc
import pytest

from dragoman.export import bundle
from dragoman.model.generated import examples
from dragoman.model.tokenizers import Tokenizer
from dragoman.server import calls
from dragoman.server.calls import Gather, Pieces, Watch
from dragoman.server.errors import CallError
from dragoman.server.options import SearchOptions
from dragoman.server.request import Hypothesis, Request, RequestStatus, Times
from dragoman.server.writing import Writer
from dragoman.v1 import translation_pb2 as pb

BUNDLE = Path(__file__).parents[2] / "data" / "tiny-v1"
WAIT_S = 10  # a test that needs this long has failed


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return bundle.load_tokenizer(BUNDLE, bundle.load_manifest(BUNDLE))


def ended(status: RequestStatus, output: Sequence[int] = (), beams: int = 1) -> Request:
    request = Request((9, 3), SearchOptions(max_new_tokens=20, beams=beams), Gather(), Times(0.0))
    request.status = status
    request.hypotheses = [Hypothesis(list(output))]
    return request


async def gather(requests: int, ends: int) -> bool:
    """Return whether a call of so many requests is done after so many ends."""
    listener = Gather()
    listener.expect(requests)
    waiting = asyncio.ensure_future(listener.wait())
    for _ in range(ends):
        listener.token(7)
        listener.ended(ended(RequestStatus.EOS))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    done = waiting.done()
    waiting.cancel()
    return done


@pytest.mark.parametrize(("requests", "ends", "done"), [(0, 0, True), (1, 0, False), (3, 2, False), (3, 3, True)])
def test_a_call_is_done_when_all_its_requests_have_ended(requests: int, ends: int, done: bool) -> None:
    """A call of blank texts alone has no requests and is done at once."""
    assert asyncio.run(gather(requests, ends)) is done


def test_a_request_may_end_after_the_caller_has_left() -> None:
    """A cancelled wait does not make the late end an error."""

    async def leave() -> None:
        listener = Gather(1)
        waiting = asyncio.ensure_future(listener.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        listener.ended(ended(RequestStatus.CANCELLED))

    asyncio.run(leave())


class Stopped:
    """Keeps what the engine was asked to stop."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def __call__(self, requests: Sequence[Request]) -> None:
        """Take the engine's place."""
        self.requests += requests


async def pieces_of(
    tokens: list[int], tokenizer: Tokenizer, stops: Sequence[str] = (), beams: int = 1
) -> tuple[list[str], Request, Stopped]:
    request = ended(RequestStatus.EOS, tokens, beams)
    stopped = Stopped()
    pieces = Pieces(request, Writer(tokenizer, (), stops), stopped)
    for token in tokens if beams == 1 else ():
        pieces.token(token)
    pieces.ended(request)
    texts: list[str] = []
    while isinstance(piece := await asyncio.wait_for(pieces.next(), WAIT_S), str):
        texts.append(piece)
    return texts, piece, stopped


@pytest.mark.parametrize("beams", [1, 4])
def test_pieces_concatenate_to_the_unary_text(tokenizer: Tokenizer, beams: int) -> None:
    """Byte for byte, none of them empty, and the request comes last; that of a beam search at once."""
    for example in islice(examples(seed=5), 20):
        tokens = tokenizer.encode(example.target)[:-1]

        texts, request, _ = asyncio.run(pieces_of(tokens, tokenizer, beams=beams))

        assert "".join(texts) == tokenizer.decode(tokens) == example.target
        assert all(texts)
        assert request.output == tokens
        assert beams == 1 or len(texts) == 1


def test_a_character_of_several_tokens_is_held_back_until_it_is_whole(tokenizer: Tokenizer) -> None:
    """No piece is half a character; an unfinished one at the end becomes U+FFFD as in the unary text."""
    tokens = tokenizer.encode("one \U0001f600 \u6f22")[:-1]
    cut = tokens[:-1]

    whole, *_ = asyncio.run(pieces_of(tokens, tokenizer))
    broken, *_ = asyncio.run(pieces_of(cut, tokenizer))

    assert "".join(whole) == "one \U0001f600 \u6f22"
    assert [piece for piece in whole if not piece.isascii()] == ["\U0001f600", "\u6f22"]
    assert "".join(broken) == tokenizer.decode(cut) == "one \U0001f600 \ufffd"


def test_a_stop_sequence_is_told_to_the_engine_once(tokenizer: Tokenizer) -> None:
    """Nothing behind it is sent, however much the engine has made by then."""
    tokens = tokenizer.encode("one two three two three")[:-1]

    texts, request, stopped = asyncio.run(pieces_of(tokens, tokenizer, ["two"]))
    _, _, unstopped = asyncio.run(pieces_of(tokens, tokenizer, ["four"]))

    assert "".join(texts) == "one "
    assert stopped.requests == [request]
    assert unstopped.requests == []


def test_a_unary_call_stops_too_and_waits_for_the_end(tokenizer: Tokenizer) -> None:
    """What the engine is asked does not depend on how the text is sent."""

    async def watch() -> tuple[Stopped, Request]:
        request, stopped, gather = ended(RequestStatus.STOPPED), Stopped(), Gather(1)
        listener = Watch(request, Writer(tokenizer, (), ["two"]), stopped, gather)
        for token in tokenizer.encode("one two three two")[:-1]:
            listener.token(token)
        listener.ended(request)
        await asyncio.wait_for(gather.wait(), WAIT_S)
        return stopped, request

    stopped, request = asyncio.run(watch())

    assert Watch.wants_tokens
    assert stopped.requests == [request]


def test_a_failed_stream_adds_nothing_to_what_was_sent(tokenizer: Tokenizer) -> None:
    """Half a character or a possible stop sequence is not the caller's any more."""

    async def fail() -> object:
        request = ended(RequestStatus.FAILED)
        pieces = Pieces(request, Writer(tokenizer, (), ["one two"]), Stopped())
        for token in tokenizer.encode("one")[:-1]:
            pieces.token(token)
        pieces.ended(request)
        return await asyncio.wait_for(pieces.next(), WAIT_S)

    assert isinstance(asyncio.run(fail()), Request)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (RequestStatus.FAILED, grpc.StatusCode.INTERNAL),
        (RequestStatus.DEADLINE, grpc.StatusCode.DEADLINE_EXCEEDED),
        (RequestStatus.CANCELLED, grpc.StatusCode.UNAVAILABLE),
    ],
)
def test_a_request_without_a_result_fails_its_call(status: RequestStatus, code: grpc.StatusCode) -> None:
    """One such request is enough: a call has all its results or an error."""
    request = ended(status)
    request.correlation_id = "abc123"

    with pytest.raises(CallError) as caught:
        calls.raise_for([ended(RequestStatus.EOS), request])

    assert caught.value.code is code
    assert not calls.has_result(request)


def test_requests_with_results_raise_nothing() -> None:
    """A text that was cut or stopped is a result."""
    finished = [ended(status) for status in (RequestStatus.EOS, RequestStatus.LENGTH, RequestStatus.STOPPED)]

    calls.raise_for(finished)

    assert all(map(calls.has_result, finished))


def timed(**changes: float) -> Request:
    times = {"submitted": 1.0, "encode_start": 2.0, "encode_end": 2.5, "first_token": 3.0, "ended": 7.0}
    request = ended(RequestStatus.EOS)
    request.times = Times(**{**times, **changes})
    return request


def test_timings_are_the_longest_of_each_phase() -> None:
    """Nanoseconds; phases of different texts overlap."""
    timings = calls.timings(0.25, 1.0, 8.25, [timed(), timed(encode_start=4.0, encode_end=4.25, first_token=4.5)])

    assert timings == pb.Timings(
        total_ns=8_000_000_000,
        tokenize_ns=750_000_000,
        queue_ns=3_000_000_000,
        encode_ns=500_000_000,
        decode_ns=4_500_000_000,
        first_token_ns=4_250_000_000,
    )


def test_a_call_without_requests_has_no_engine_times() -> None:
    """Blank texts take no queue, encoder or decoder time."""
    assert calls.timings(1.0, 1.5, 2.0, []) == pb.Timings(total_ns=1_000_000_000, tokenize_ns=500_000_000)
