from collections.abc import Callable
from typing import Any

import grpc
import pytest

from dragoman.client import CallCancelledError, InternalError, OverloadedError, UnavailableError
from dragoman.client.errors import DETAILS_KEY
from dragoman.client.retry import MAX_SECONDS, Attempts, CallPolicy
from tests.fakes.translation_server import Failure

START_S = 1000.0


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = START_S

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now_s


class ScriptedError(grpc.RpcError):
    """What gRPC would raise for a failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__()
        self._failure = failure

    def code(self) -> grpc.StatusCode:
        """Return the status."""
        return self._failure.code

    def details(self) -> str:
        """Return the server's text."""
        return self._failure.message

    def trailing_metadata(self) -> Any:
        """Return the details as gRPC hands them over."""
        return ((DETAILS_KEY, self._failure.details()),)


UNAVAILABLE = ScriptedError(Failure(grpc.StatusCode.UNAVAILABLE))


def _attempts(
    clock: Clock, *, retries: int = 4, timeout_s: float = 60, chance: Callable[[], float] = lambda: 0.0
) -> Attempts:
    return Attempts(retries=retries, timeout_s=timeout_s, clock=clock, chance=chance)


def test_waits_for_a_silent_server_double() -> None:
    """Each wait is twice the one before, half of it left to chance, and the last retry is counted."""
    shortest = _attempts(Clock())
    longest = _attempts(Clock(), chance=lambda: 1.0)

    assert [shortest.wait_s(UNAVAILABLE) for _ in range(4)] == pytest.approx([0.05, 0.1, 0.2, 0.4])
    assert [longest.wait_s(UNAVAILABLE) for _ in range(4)] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    with pytest.raises(UnavailableError):
        shortest.wait_s(UNAVAILABLE)


def test_waits_have_an_upper_limit() -> None:
    """However often it was tried, the server is not left alone for long."""
    attempts = _attempts(Clock(), retries=100, chance=lambda: 1.0)

    assert max(attempts.wait_s(UNAVAILABLE) for _ in range(100)) == 2.0


def test_a_named_time_is_never_cut_short_and_not_counted() -> None:
    """The server's own time is kept, with up to a fifth more, as often as it asks."""
    full = ScriptedError(Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after_s=1.0))

    assert [_attempts(Clock()).wait_s(full), _attempts(Clock(), chance=lambda: 1.0).wait_s(full)] == [1.0, 1.2]
    attempts = _attempts(Clock(), retries=1)
    assert [attempts.wait_s(full) for _ in range(10)] == [1.0] * 10


def test_a_server_that_says_now_gets_no_busy_loop() -> None:
    """A delay of zero is stretched."""
    now = ScriptedError(Failure(grpc.StatusCode.UNAVAILABLE, retry_after_s=0.0))

    assert _attempts(Clock()).wait_s(now) == pytest.approx(0.02)


def test_a_wait_that_would_pass_the_deadline_raises() -> None:
    """What is wrong is reported instead of waiting for the time to be up."""
    full = ScriptedError(Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after_s=2.0))
    clock = Clock()
    attempts = _attempts(clock, timeout_s=5)

    clock.now_s = START_S + 2.9
    assert attempts.wait_s(full) == 2.0
    clock.now_s = START_S + 3.0
    with pytest.raises(OverloadedError):
        attempts.wait_s(full)


def test_time_left_shrinks_and_never_ends_below_what_grpc_accepts() -> None:
    """Each attempt gets what the earlier ones left over."""
    clock = Clock()
    attempts = _attempts(clock, timeout_s=5)

    assert attempts.remaining_s() == 5
    clock.now_s = START_S + 4
    assert attempts.remaining_s() == 1
    clock.now_s = START_S + 9
    assert attempts.remaining_s() == 0.001


def test_other_failures_and_committed_calls_are_final() -> None:
    """Only an absent or full server is worth another attempt, and only while nothing was handed out."""
    committed = _attempts(Clock())
    committed.commit()

    with pytest.raises(UnavailableError):
        committed.wait_s(UNAVAILABLE)
    with pytest.raises(InternalError):
        _attempts(Clock()).wait_s(ScriptedError(Failure(grpc.StatusCode.INTERNAL)))


def test_a_call_may_have_its_own_timeout() -> None:
    """The call's timeout wins over the client's, and is checked the same way."""
    policy = CallPolicy(timeout_s=60)
    too_long = MAX_SECONDS + 1

    assert policy.start(None).remaining_s() == pytest.approx(60, abs=1)
    assert policy.start(5).remaining_s() == pytest.approx(5, abs=1)
    with pytest.raises(ValueError, match="timeout_s is -1"):
        policy.start(-1)
    with pytest.raises(ValueError, match=rf"timeout_s is {too_long}; .* above 0, at most {MAX_SECONDS} \(a year\)"):
        policy.start(too_long)


def test_a_call_that_the_server_cancelled_is_tried_again() -> None:
    """As one that it did not take; the last error says who cancelled, with the text that came."""
    by_server = ScriptedError(Failure(grpc.StatusCode.CANCELLED, "CANCELLED"))
    attempts = _attempts(Clock(), retries=2)

    assert [attempts.wait_s(by_server), attempts.wait_s(UNAVAILABLE)] == pytest.approx([0.05, 0.1])
    with pytest.raises(UnavailableError, match="the server cancelled the call, probably because it was stopping: CANC"):
        attempts.wait_s(by_server)


@pytest.mark.parametrize(
    ("text", "is_closed"), [("", True), ("Channel closed!", False), ("Locally cancelled by application!", False)]
)
def test_a_call_that_this_side_cancelled_is_not_tried_again(text: str, is_closed: bool) -> None:
    """Whoever closes a client, a stream or a channel wants no more of it."""
    with pytest.raises(CallCancelledError, match="because its client or stream was closed"):
        _attempts(Clock()).wait_s(ScriptedError(Failure(grpc.StatusCode.CANCELLED, text)), is_closed=is_closed)
