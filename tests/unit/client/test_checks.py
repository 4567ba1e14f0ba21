"""What both clients refuse before anything is sent: settings and arguments of a wrong type or out of range."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from dragoman.client import AsyncTranslationClient, DecodingOptions, Sampling, TranslationClient
from tests.fakes.translation_server import FakeTranslationService

Client = type[TranslationClient] | type[AsyncTranslationClient]

YEAR = 31536000
TIMEOUT = f"a number of seconds above 0, at most {YEAR} (a year)"


def _make(kind: Client, target: Any = "127.0.0.1:1", **settings: Any) -> object:
    async def make() -> object:
        return kind(target, **settings)

    return asyncio.run(make())


@pytest.mark.parametrize("kind", [TranslationClient, AsyncTranslationClient])
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"target": None}, TypeError, "target is None of type NoneType; it must be str"),
        ({"target": 5}, TypeError, "target is 5 of type int; it must be str"),
        ({"timeout_s": "5"}, TypeError, f"timeout_s is '5' of type str; it must be {TIMEOUT}"),
        ({"timeout_s": True}, TypeError, "timeout_s is True of type bool"),
        ({"timeout_s": None}, TypeError, "timeout_s is None of type NoneType"),
        ({"timeout_s": 1e10}, ValueError, f"timeout_s is 10000000000.0; it must be {TIMEOUT}"),
        ({"timeout_s": YEAR + 1}, ValueError, f"timeout_s is {YEAR + 1}; it must be {TIMEOUT}"),
        ({"timeout_s": float("nan")}, ValueError, f"timeout_s is nan; it must be {TIMEOUT}"),
        ({"retries": 1.5}, TypeError, "retries is 1.5 of type float; it must be int, 0 (never) or more"),
        ({"retries": True}, TypeError, "retries is True of type bool"),
        ({"max_message_bytes": 1.5}, TypeError, "max_message_bytes is 1.5 of type float; it must be int, from 1 to"),
        ({"max_message_bytes": 2**31}, ValueError, "max_message_bytes is 2147483648; it must be from 1 to 2147483647"),
        ({"secure": True}, TypeError, "secure is True of type bool; it must be ChannelCredentials"),
        ({"channel": "127.0.0.1:1"}, TypeError, "channel is '127.0.0.1:1' of type str; it must be grpc."),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_wrong_setting_is_named(kind: Client, settings: dict[str, Any], error: type[Exception], message: str) -> None:
    """With what was given and what is allowed, before gRPC sees it."""
    with pytest.raises(error, match=re.escape(message)):
        _make(kind, **settings)


def test_a_channel_of_the_other_kind_is_refused() -> None:
    """Its calls would fail with an error that names neither client."""

    async def mix_up() -> None:
        async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
            with pytest.raises(TypeError, match=r"one of grpc\.aio is for AsyncTranslationClient"):
                TranslationClient(channel=channel)  # type: ignore[arg-type]  # the mistake

    asyncio.run(mix_up())
    with (
        grpc.insecure_channel("127.0.0.1:1") as channel,
        pytest.raises(TypeError, match="one of grpc itself is for TranslationClient"),
    ):
        _make(AsyncTranslationClient, channel=channel)


def test_numbers_of_numpy_are_numbers(address: str) -> None:
    """They come out of configurations and tables."""
    with TranslationClient(address, timeout_s=np.float32(20), retries=np.int64(1)) as client:  # type: ignore[arg-type]
        assert client.translate_text("a", timeout_s=np.int64(5)).text == "A"  # type: ignore[arg-type]


WRONG_CALLS: dict[str, tuple[Callable[[TranslationClient], object], str]] = {
    "set": (lambda client: client.translate({"a", "b"}), "texts is {"),  # type: ignore[arg-type]
    "frozenset": (lambda client: client.translate(frozenset("a")), "texts is frozenset("),  # type: ignore[arg-type]
    "dict": (lambda client: client.translate({"a": "b"}), "texts is {'a': 'b'} of type dict"),  # type: ignore[arg-type]
    "None": (lambda client: client.translate(None), "texts is None of type NoneType"),  # type: ignore[arg-type]
    "prefixes": (lambda client: client.translate(["a"], target_prefixes={"b"}), "target_prefixes is {'b'}"),  # type: ignore[arg-type]
    "pairs None": (lambda client: client.score_many(None), "pairs is None of type NoneType"),  # type: ignore[arg-type]
    "pairs dict": (lambda client: client.score_many({"a": "b"}), "pairs is {'a': 'b'} of type dict"),  # type: ignore[arg-type]
    "pairs str": (lambda client: client.score_many("ab"), "pairs is one str; it must be a sequence of (source"),  # type: ignore[arg-type]
    "text": (lambda client: client.translate_text(["a"]), "text is list; it must be str"),  # type: ignore[arg-type]
    "prefix": (lambda client: client.translate_text("a", target_prefix=None), "target_prefix is NoneType"),  # type: ignore[arg-type]
    "name": (lambda client: client.model(5), "name is int; it must be str"),  # type: ignore[arg-type]
    "timeout": (lambda client: client.models(timeout_s="5"), "timeout_s is '5' of type str"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("mistake", WRONG_CALLS)
def test_a_wrong_argument_is_named(client: TranslationClient, service: FakeTranslationService, mistake: str) -> None:
    """A set has no order that results could have; what is no text would come back as an error without its name."""
    call, message = WRONG_CALLS[mistake]

    with pytest.raises(TypeError, match=re.escape(message)):
        call(client)

    assert service.requests == []


def test_what_has_an_order_is_taken(client: TranslationClient) -> None:
    """Also if it can be read only once, or is the keys of a dict."""
    assert client.translate(text for text in ("b", "a")).texts == ("B", "A")  # type: ignore[arg-type]
    assert client.translate({"b": 1, "a": 2}.keys()).texts == ("B", "A")  # type: ignore[arg-type]
    assert len(client.score_many(pair for pair in [("a", "b")]).scores) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sampling(seed=-1), "seed is -1; it must be from 0 to 9223372036854775807"),
        (lambda: Sampling(seed=2**63), "seed is 9223372036854775808; it must be from 0 to 9223372036854775807"),
        (lambda: Sampling(top_k=-1), "top_k is -1; it must be from 0 (all) to the size of the vocabulary"),
        (
            lambda: DecodingOptions(no_repeat_ngram_size=-1),
            "no_repeat_ngram_size is -1; it must be from 0 (none) to 64",
        ),
        (
            lambda: DecodingOptions(beam_size=2**32),
            "beam_size is 4294967296; it must be from 0 to what the server allow",
        ),
    ],
)
def test_a_range_is_the_protocols_and_not_the_messages(make: Callable[[], object], message: str) -> None:
    """What the message can carry is no use to who asks for more than the server takes."""
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
