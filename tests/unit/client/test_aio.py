import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import grpc
import pytest

from dragoman.client import (
    AsyncTranslationClient,
    AsyncTranslationStream,
    CallCancelledError,
    DeadlineExceededError,
    DecodingOptions,
    InternalError,
    OverloadedError,
    StreamPiece,
    TranslationClient,
    TranslationStream,
    UnavailableError,
)
from tests.fakes.translation_server import Failure, FakeTranslationService

WAIT_S = 10  # a test that needs this long has failed
UNAVAILABLE = Failure(grpc.StatusCode.UNAVAILABLE, "draining")
FULL = Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue is full", retry_after_s=0.02)

_Result = TypeVar("_Result")


def _run(address: str, work: Callable[[AsyncTranslationClient], Awaitable[_Result]]) -> _Result:
    async def with_client() -> _Result:
        async with AsyncTranslationClient(address, timeout_s=20) as client:
            return await work(client)

    return asyncio.run(with_client())


def _public(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(member).replace(return_annotation=inspect.Signature.empty)
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_both_clients_have_the_same_surface() -> None:
    """Methods, parameters and defaults do not differ, so neither does what a user has to learn."""
    assert _public(AsyncTranslationClient) == _public(TranslationClient)
    assert _settings(AsyncTranslationClient) == _settings(TranslationClient)
    assert set(_public(AsyncTranslationStream)) - {"aclose"} == set(_public(TranslationStream)) - {"close"}


def _settings(kind: type) -> list[tuple[str, object]]:
    return [(name, setting.default) for name, setting in inspect.signature(kind).parameters.items()]


def test_both_clients_send_and_return_the_same(
    address: str, client: TranslationClient, service: FakeTranslationService
) -> None:
    """Requests and results of every call are equal, message by message."""
    options = DecodingOptions(max_new_tokens=2)

    async def calls(aio: AsyncTranslationClient) -> list[object]:
        return [
            await aio.translate(["one two three", ""], model="m", source_language="en", options=options, id="x"),
            await aio.translate_text("a b", target_language="de"),
            await aio.models(),
            await aio.model("shout"),
            [piece async for piece in aio.stream("a b c", model="m", target_language="de", options=options, id="y")],
        ]

    awaited = _run(address, calls)
    requests = list(service.requests)
    service.requests.clear()

    assert awaited == [
        client.translate(["one two three", ""], model="m", source_language="en", options=options, id="x"),
        client.translate_text("a b", target_language="de"),
        client.models(),
        client.model("shout"),
        list(client.stream("a b c", model="m", target_language="de", options=options, id="y")),
    ]
    assert requests == service.requests


def test_many_calls_share_one_client(address: str) -> None:
    """Calls started together each get their own answer."""

    async def calls(client: AsyncTranslationClient) -> list[str]:
        results = await asyncio.gather(*(client.translate_text(f"text {number}") for number in range(40)))
        return [result.text for result in results]

    assert _run(address, calls) == [f"TEXT {number}" for number in range(40)]


def test_retries_follow_the_same_policy(address: str, service: FakeTranslationService) -> None:
    """A full or absent server is tried again, for calls and for streams that have not begun."""
    service.failures.extend([FULL, UNAVAILABLE, FULL, UNAVAILABLE])

    async def calls(client: AsyncTranslationClient) -> str:
        first = await client.translate_text("one")
        return first.text + "".join([piece.text async for piece in client.stream("two")])

    assert _run(address, calls) == "ONETWO"
    assert len(service.requests) == 6


def test_a_wait_beyond_the_deadline_is_not_begun(address: str, service: FakeTranslationService) -> None:
    """The overload is reported at once instead of a passed deadline later."""
    service.failures.append(Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after_s=30))

    with pytest.raises(OverloadedError):
        _run(address, lambda client: client.translate(["a"], timeout_s=5))


def test_a_str_is_a_type_error(address: str) -> None:
    """The common mistake is caught in this client too."""
    with pytest.raises(TypeError, match="texts is one str"):
        _run(address, lambda client: client.translate("one text"))


def test_the_deadline_ends_a_slow_call(address: str, service: FakeTranslationService) -> None:
    """A call that takes longer than its timeout is a DeadlineExceededError."""
    service.before_translate = lambda _: _wait_for(service.call_over)

    with pytest.raises(DeadlineExceededError):
        _run(address, lambda client: client.translate(["a"], timeout_s=0.2))


def test_cancelling_the_task_cancels_the_call(address: str, service: FakeTranslationService) -> None:
    """The server learns that nobody waits any more, and the task ends as asyncio expects."""
    arrived = service.hold_calls(WAIT_S)

    async def cancel(client: AsyncTranslationClient) -> bool:
        task = asyncio.create_task(client.translate(["a"]))
        await asyncio.to_thread(arrived.wait, WAIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await asyncio.to_thread(service.call_over.wait, WAIT_S)

    assert _run(address, cancel)


def test_closing_the_client_is_not_taken_for_a_cancelled_task(address: str, service: FakeTranslationService) -> None:
    """A call of a closed client fails with a CallCancelledError, because its task was not cancelled."""
    arrived = service.hold_calls(WAIT_S)
    service.stream_hangs = True

    async def close(client: AsyncTranslationClient) -> None:
        task = asyncio.create_task(client.translate(["a"]))
        stream = client.stream("one two")
        await anext(stream)
        await asyncio.to_thread(arrived.wait, WAIT_S)
        await client.close()
        with pytest.raises(CallCancelledError):
            await task
        with pytest.raises(CallCancelledError):
            await anext(stream)

    _run(address, close)


def test_a_stream_is_not_tried_again_after_its_first_piece(address: str, service: FakeTranslationService) -> None:
    """A second attempt would repeat what the user has seen."""
    service.stream_failure = UNAVAILABLE

    async def read(client: AsyncTranslationClient) -> None:
        stream = client.stream("one two")
        assert await anext(stream) == StreamPiece("ONE", end=None)
        with pytest.raises(UnavailableError, match="draining"):
            await anext(stream)

    _run(address, read)
    assert len(service.requests) == 1


def test_a_stream_without_its_last_message_is_an_error(address: str, service: FakeTranslationService) -> None:
    """A cut translation is never taken for a complete one."""
    service.stream_breaks = True

    async def read(client: AsyncTranslationClient) -> list[StreamPiece]:
        return [piece async for piece in client.stream("one two")]

    with pytest.raises(InternalError, match="before the translation was complete"):
        _run(address, read)


async def _close(stream: AsyncTranslationStream) -> None:
    await stream.aclose()
    assert [piece async for piece in stream] == []


async def _leave(stream: AsyncTranslationStream) -> None:
    async with stream:
        pass


async def _cancel_reader(stream: AsyncTranslationStream) -> None:
    async def read() -> StreamPiece:
        return await anext(stream)

    task = asyncio.create_task(read())
    await asyncio.sleep(0)  # lets the task begin to wait
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("leave", [_close, _leave, _cancel_reader])
def test_leaving_a_stream_cancels_the_call(
    address: str,
    service: FakeTranslationService,
    leave: Callable[[AsyncTranslationStream], Coroutine[Any, Any, None]],
) -> None:
    """The server learns that nobody listens any more."""
    service.stream_hangs = True

    async def read(client: AsyncTranslationClient) -> bool:
        stream = client.stream("one two")
        assert (await anext(stream)).text == "ONE"
        await leave(stream)
        return await asyncio.to_thread(service.call_over.wait, WAIT_S)

    assert _run(address, read)


def _wait_for(event: threading.Event) -> None:
    event.wait(WAIT_S)
