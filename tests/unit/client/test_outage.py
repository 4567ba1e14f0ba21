import grpc
import pytest

from dragoman.client.commands.outage import DEFAULT_WAIT_S, Outage
from dragoman.client.errors import (
    CallError,
    DeadlineExceededError,
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
)
from tests.fakes.clock import FakeClock

GONE = UnavailableError("refused", code=grpc.StatusCode.UNAVAILABLE)
FULL = OverloadedError("queue is full", code=grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after_s=1)
LATE = DeadlineExceededError("time is up", code=grpc.StatusCode.DEADLINE_EXCEEDED)
WRONG = InvalidRequestError("no", code=grpc.StatusCode.INVALID_ARGUMENT)


class Trial:
    """An outage with a clock that only a test moves, and what it said."""

    def __init__(self, wait_s: float | None) -> None:
        self.clock = FakeClock()
        self.said: list[str] = []
        self.outage = Outage("here:1", wait_s, self.said.append, clock=self.clock, chance=lambda: 1.0)

    def answer(self) -> None:
        """Let a call be answered."""
        patience = self.outage.patience()
        patience.begin()
        patience.answered()

    def pauses(self, error: CallError = GONE) -> list[float]:
        """Fail one call until it is given up; return all pauses."""
        patience, pauses = self.outage.patience(), []
        patience.begin()
        while (pause_s := patience.pause_s(error)) is not None:
            pauses.append(pause_s)
            self.clock.advance(pause_s)
            patience.begin()
        return pauses


def test_a_server_that_never_answered_is_not_waited_for() -> None:
    """The address may be wrong; the user wants to know at once."""
    assert Trial(None).pauses() == []


@pytest.mark.parametrize("error", [GONE, FULL], ids=["gone", "full"])
def test_a_server_that_answered_is_waited_for(error: CallError) -> None:
    """Pauses grow to ten seconds and together are the documented time."""
    trial = Trial(None)
    trial.answer()

    pauses = trial.pauses(error)

    assert pauses[:6] == [1, 2, 4, 8, 10, 10]
    assert sum(pauses) == DEFAULT_WAIT_S


def test_the_user_says_how_long() -> None:
    """Also for a server that is only starting; 0 turns waiting off."""
    assert Trial(5).pauses() == [1, 2, 2]
    trial = Trial(0)
    trial.answer()
    assert trial.pauses() == []


def test_a_server_that_has_not_answered_yet_is_waited_for_if_time_is_up() -> None:
    """A connection that hangs is no sign of a server; without --wait it is told at once."""
    assert Trial(5).pauses(LATE) == [1, 2, 2]
    assert Trial(None).pauses(LATE) == []


def test_a_call_that_takes_too_long_is_not_repeated() -> None:
    """The server is there, and would take as long again."""
    trial = Trial(5)
    trial.answer()

    assert trial.pauses(LATE) == []
    assert trial.said == []


def test_time_that_is_up_during_an_outage_is_not_its_end() -> None:
    """Nothing was heard, so the server is still away."""
    trial = Trial(None)
    trial.answer()
    patience = trial.outage.patience()
    for error in (GONE, LATE):
        patience.begin()
        assert patience.pause_s(error) is not None
        trial.clock.advance(2)
    trial.answer()

    assert trial.said == [
        f"here:1 does not answer (refused); trying again for {DEFAULT_WAIT_S:g} s",
        "here:1 answers again after 4 s",
    ]
    assert trial.pauses(LATE) == []


def test_errors_that_waiting_cannot_help_are_not_waited_for() -> None:
    """A wrong request stays wrong, and a server that says so has answered."""
    trial = Trial(None)

    assert trial.pauses(WRONG) == []
    assert trial.pauses() != []


def test_beginning_and_end_of_an_outage_are_said_once() -> None:
    """However many calls notice it; an answer to a call from before the outage is not its end."""
    trial = Trial(60)
    old, one, other = (trial.outage.patience() for _ in range(3))
    for patience in (old, one, other):
        patience.begin()
    trial.clock.advance(1)
    one.pause_s(GONE)
    other.pause_s(GONE)
    old.answered()
    trial.clock.advance(40)
    one.begin()
    one.pause_s(GONE)
    trial.clock.advance(2)
    for patience in (one, other):
        patience.begin()
        patience.answered()

    assert trial.said == [
        "here:1 does not answer (refused); trying again for 60 s",
        "here:1: still trying, 40 of 60 s",
        "here:1 answers again after 42 s",
    ]
