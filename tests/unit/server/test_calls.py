import asyncio
from itertools import islice
from pathlib import Path

import grpc
import pytest

from dragoman.export import bundle
from dragoman.model.generated import examples
from dragoman.model.tokenizers import Tokenizer
from dragoman.server import calls
from dragoman.server.calls import Gather, Pieces
from dragoman.server.errors import CallError
from dragoman.server.request import Row, RowStatus, Times
from dragoman.server.validate import Source
from dragoman.v1 import translation_pb2 as pb
from tests.fakes.engine import new_row

BUNDLE = Path(__file__).parents[2] / "data" / "tiny-v1"
WAIT_S = 10  # a test that needs this long has failed


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return bundle.load_tokenizer(BUNDLE, bundle.load_manifest(BUNDLE))


def ended_row(status: RowStatus, output: list[int] | None = None) -> Row:
    row = new_row()
    row.status = status
    row.output = output or []
    return row


async def gather(rows: int, ends: int) -> bool:
    """Return whether a call of so many rows is done after so many ends."""
    listener = Gather(rows)
    waiting = asyncio.ensure_future(listener.wait())
    for _ in range(ends):
        listener.token(7)
        listener.ended(ended_row(RowStatus.EOS))
    await asyncio.sleep(0)
    done = waiting.done()
    waiting.cancel()
    return done


@pytest.mark.parametrize(("rows", "ends", "done"), [(0, 0, True), (1, 0, False), (3, 2, False), (3, 3, True)])
def test_a_call_is_done_when_all_its_rows_have_ended(rows: int, ends: int, done: bool) -> None:
    """A call of blank texts alone has no rows and is done at once."""
    assert asyncio.run(gather(rows, ends)) is done


def test_a_row_may_end_after_the_caller_has_left() -> None:
    """A cancelled wait does not make the late end an error."""

    async def leave() -> None:
        listener = Gather(1)
        waiting = asyncio.ensure_future(listener.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        listener.ended(ended_row(RowStatus.CANCELLED))

    asyncio.run(leave())


async def pieces_of(tokens: list[int], tokenizer: Tokenizer) -> tuple[list[str], Row]:
    pieces = Pieces(tokenizer)
    for token in tokens:
        pieces.token(token)
    pieces.ended(ended_row(RowStatus.EOS, tokens))
    texts: list[str] = []
    while isinstance(piece := await asyncio.wait_for(pieces.next(), WAIT_S), str):
        texts.append(piece)
    return texts, piece


def test_pieces_concatenate_to_the_unary_text(tokenizer: Tokenizer) -> None:
    """Byte for byte, none of them empty, and the row comes last."""
    for example in islice(examples(seed=5), 20):
        tokens = tokenizer.encode(example.target)[:-1]

        texts, row = asyncio.run(pieces_of(tokens, tokenizer))

        assert "".join(texts) == tokenizer.decode(tokens) == example.target
        assert all(texts)
        assert row.output == tokens


def test_a_character_of_several_tokens_is_held_back_until_it_is_whole(tokenizer: Tokenizer) -> None:
    """No piece is half a character; an unfinished one at the end becomes U+FFFD as in the unary text."""
    tokens = tokenizer.encode("one \U0001f600 \u6f22")[:-1]
    cut = tokens[:-1]

    whole, _ = asyncio.run(pieces_of(tokens, tokenizer))
    broken, _ = asyncio.run(pieces_of(cut, tokenizer))

    assert "".join(whole) == "one \U0001f600 \u6f22"
    assert [piece for piece in whole if not piece.isascii()] == ["\U0001f600", "\u6f22"]
    assert "".join(broken) == tokenizer.decode(cut) == "one \U0001f600 \ufffd"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (RowStatus.FAILED, grpc.StatusCode.INTERNAL),
        (RowStatus.DEADLINE, grpc.StatusCode.DEADLINE_EXCEEDED),
        (RowStatus.CANCELLED, grpc.StatusCode.UNAVAILABLE),
    ],
)
def test_a_row_without_a_result_fails_its_call(status: RowStatus, code: grpc.StatusCode) -> None:
    """One such row is enough: a call has all its results or an error."""
    row = ended_row(status)
    row.correlation_id = "abc123"

    with pytest.raises(CallError) as caught:
        calls.raise_for([ended_row(RowStatus.EOS), row])

    assert caught.value.code is code


def test_rows_with_results_raise_nothing() -> None:
    """A text that was cut is a result."""
    calls.raise_for([ended_row(RowStatus.EOS), ended_row(RowStatus.LENGTH)])


@pytest.mark.parametrize(
    ("status", "reason"),
    [(RowStatus.EOS, pb.FINISH_REASON_EOS), (RowStatus.LENGTH, pb.FINISH_REASON_LENGTH)],
)
def test_a_translation_has_text_reason_and_counts(
    tokenizer: Tokenizer, status: RowStatus, reason: "pb.FinishReason.ValueType"
) -> None:
    """EOS is counted on neither side."""
    ids = tokenizer.encode("zwei")
    source = Source(tokenizer.encode("two"), 20, 2)

    translation = calls.translation(source, ended_row(status, ids[:-1]), tokenizer)

    assert translation == pb.Translation(text="zwei", finish_reason=reason, source_tokens=2, target_tokens=len(ids) - 1)


def test_a_blank_text_has_a_blank_translation(tokenizer: Tokenizer) -> None:
    """It never was a row."""
    translation = calls.translation(Source([], 16, 0), None, tokenizer)

    assert translation == pb.Translation(finish_reason=pb.FINISH_REASON_EOS)


def timed(**changes: float) -> Row:
    times = {"submitted": 1.0, "encode_start": 2.0, "encode_end": 2.5, "first_token": 3.0, "ended": 7.0}
    row = new_row()
    row.times = Times(**{**times, **changes})
    return row


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


def test_a_call_without_rows_has_no_engine_times() -> None:
    """Blank texts take no queue, encoder or decoder time."""
    assert calls.timings(1.0, 1.5, 2.0, []) == pb.Timings(total_ns=1_000_000_000, tokenize_ns=500_000_000)
