"""Calls that are cancelled, by the server or on this side, in both clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import grpc
import grpc.aio
import pytest

from dragoman.client import AsyncTranslationClient, CallCancelledError, CallError, TranslationClient, UnavailableError
from tests.fakes.translation_server import Failure, FakeTranslationService

WAIT_S = 10  # a test that needs this long has failed
CANCELLED = Failure(grpc.StatusCode.CANCELLED, "")
FULL = Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue is full", retry_after_s=WAIT_S)


def test_what_the_server_cancelled_is_tried_again(client: TranslationClient, service: FakeTranslationService) -> None:
    """A server that stops cancels calls that it has read and not begun; the next one answers them."""
    service.failures.extend([CANCELLED] * 2)
    assert client.translate_text("a").text == "A"

    service.failures.extend([CANCELLED] * 2)
    assert "".join(piece.text for piece in client.stream("a b")) == "A B"
    assert len(service.requests) == 6


def test_what_the_server_cancelled_is_tried_again_with_asyncio(address: str, service: FakeTranslationService) -> None:
    """As in the other client; the task is not taken for a cancelled one."""

    async def call() -> tuple[str, str]:
        async with AsyncTranslationClient(address) as client:
            service.failures.extend([CANCELLED] * 2)
            text = (await client.translate_text("a")).text
            service.failures.extend([CANCELLED] * 2)
            return text, "".join([piece.text async for piece in client.stream("a b")])

    assert asyncio.run(call()) == ("A", "A B")
    assert len(service.requests) == 6


def test_a_server_that_cancels_every_attempt_is_named(address: str, service: FakeTranslationService) -> None:
    """The error is not the one of a closed client, and says what probably happened."""
    service.failures.extend([CANCELLED] * 4)

    async def call() -> None:
        async with AsyncTranslationClient(address, retries=1) as client:
            await client.translate_text("a")

    attempts: list[Callable[[], None]] = [lambda: asyncio.run(call()), lambda: _translate(address, retries=1)]
    for attempt in attempts:
        with pytest.raises(UnavailableError, match="server cancelled the call, probably because it was stopping") as e:
            attempt()
        assert e.value.code is grpc.StatusCode.CANCELLED
    assert len(service.requests) == 4


def test_a_stream_that_has_begun_is_not_tried_again(address: str, service: FakeTranslationService) -> None:
    """A second attempt would repeat what the user has seen."""
    service.stream_failure = CANCELLED

    async def read() -> None:
        async with AsyncTranslationClient(address) as client, client.stream("one two") as stream:
            assert (await anext(stream)).text == "ONE"
            await anext(stream)

    with TranslationClient(address) as client, client.stream("one two") as stream:
        assert next(stream).text == "ONE"
        with pytest.raises(UnavailableError, match="the server cancelled the call"):
            next(stream)
    with pytest.raises(UnavailableError, match="the server cancelled the call"):
        asyncio.run(read())
    assert len(service.requests) == 2


def test_closing_a_given_channel_is_no_fault_of_the_server(address: str, service: FakeTranslationService) -> None:
    """Its owner cancels the call, which is not tried again on a channel that is closed."""
    arrived = service.hold_calls(WAIT_S)
    channel = grpc.insecure_channel(address)
    client = TranslationClient(channel=channel)
    errors, caller = _caller(lambda: client.translate_text("a"))
    assert arrived.wait(WAIT_S)
    channel.close()
    caller.join(WAIT_S)

    async def close() -> None:
        arrived.clear()
        service.call_over.clear()
        async with grpc.aio.insecure_channel(address) as aio_channel:
            task = asyncio.create_task(AsyncTranslationClient(channel=aio_channel).translate_text("a"))
            assert await asyncio.to_thread(arrived.wait, WAIT_S)
            await aio_channel.close()
            with pytest.raises(CallCancelledError):
                await task

    asyncio.run(close())
    assert [type(error) for error in errors] == [CallCancelledError]


def test_closing_the_client_ends_the_wait_for_the_next_attempt(address: str, service: FakeTranslationService) -> None:
    """Of calls and streams, at once and with the error of a closed client."""
    service.failures.extend([FULL] * 3)
    client = TranslationClient(address, timeout_s=60)
    stream, other = client.stream("b"), client.stream("c")
    results = [_caller(lambda: client.translate_text("a")), _caller(lambda: next(stream)), _caller(lambda: next(other))]
    while service.failures:
        threading.Event().wait(0.01)
    other.cancel()
    client.close()

    for errors, caller in results:
        caller.join(WAIT_S / 2)
        assert [type(error) for error in errors] == [CallCancelledError]


def test_closing_the_asyncio_client_ends_the_wait_for_the_next_attempt(
    address: str, service: FakeTranslationService
) -> None:
    """As in the other client; a cancelled task ends as asyncio expects."""
    service.failures.extend([FULL] * 3)

    async def close() -> list[object]:
        client = AsyncTranslationClient(address, timeout_s=60)
        waiting: list[Awaitable[object]] = [client.translate_text("a"), client.translate_text("b")]
        tasks = [asyncio.ensure_future(one) for one in (*waiting, anext(client.stream("c")))]
        while service.failures:
            await asyncio.sleep(0.01)
        tasks[0].cancel()
        await client.close()
        async with asyncio.timeout(WAIT_S / 2):
            return list(await asyncio.gather(*tasks, return_exceptions=True))

    ends = asyncio.run(close())
    assert [type(end) for end in ends] == [asyncio.CancelledError, CallCancelledError, CallCancelledError]


def _translate(address: str, *, retries: int) -> None:
    with TranslationClient(address, retries=retries) as client:
        client.translate_text("a")


def _caller(call: Callable[[], object]) -> tuple[list[CallError], threading.Thread]:
    errors: list[CallError] = []

    def run() -> None:
        try:
            call()
        except CallError as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return errors, thread
