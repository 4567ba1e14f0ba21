from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.server.fair_queue import FairQueue, tokens_of
from dragoman.server.request import Request
from tests.fakes.requests import make_request

texts = st.builds(make_request, st.integers(1, 40), beams=st.integers(1, 4), caller=st.sampled_from("abcd"))


def queue_of(requests: Sequence[Request]) -> FairQueue:
    queue = FairQueue()
    for request in requests:
        queue.append(request)
    return queue


def serve_next(queue: FairQueue) -> Request:
    request = next(queue.in_order())
    queue.serve(request)
    return request


def test_callers_take_turns_and_their_own_texts_go_in_order_of_arrival() -> None:
    """Texts of equal size: one of each caller, round and round."""
    a, b = [make_request(caller="a") for _ in range(3)], [make_request(caller="b") for _ in range(2)]

    queue = queue_of([*a, *b])

    assert list(queue.in_order()) == [a[0], b[0], a[1], b[1], a[2]]


@pytest.mark.parametrize(("long", "beams"), [(24, 1), (8, 3)])
def test_a_caller_pays_for_length_and_beams(long: int, beams: int) -> None:
    """Whose text cost three times as much has one turn where the other has three."""
    dear = [make_request(long, beams=beams, caller="a") for _ in range(2)]
    cheap = [make_request(8, caller="b") for _ in range(4)]

    queue = queue_of([*dear, *cheap])

    assert list(queue.in_order()) == [dear[0], *cheap[:3], dear[1], cheap[3]]


def test_a_new_caller_is_before_one_who_had_texts_served_already() -> None:
    """One text does not wait behind a thousand of another caller, not even behind one."""
    queue = queue_of([make_request(caller="many") for _ in range(1000)])
    for _ in range(10):
        serve_next(queue)
    single = make_request(500, caller="single")
    queue.append(single)

    assert serve_next(queue) is single


def test_a_caller_who_comes_back_has_no_claim_on_the_time_away() -> None:
    """Having been away gives one turn ahead, not all that the other was served meanwhile."""
    queue = queue_of([make_request(caller="away"), *(make_request(caller="b") for _ in range(40))])
    for _ in range(20):
        serve_next(queue)
    back = [make_request(caller="away") for _ in range(20)]
    for request in back:
        queue.append(request)

    callers = [serve_next(queue).caller for _ in range(10)]

    assert callers == ["away", "b"] * 5


def test_a_new_caller_does_not_wait_for_what_others_were_served_out_of_turn() -> None:
    """It begins where those stand whose turn it is, not where one stands who filled up a batch."""
    a, b = [make_request(caller="a") for _ in range(10)], [make_request(caller="b") for _ in range(10)]
    queue = queue_of([*a, *b])
    for request in a[:6]:  # the first in its turn, the others as its companions
        queue.serve(request)
    queue.append(make_request(caller="c"))

    assert [request.caller for request in queue.in_order()][:3] == ["b", "c", "b"]


def test_texts_that_leave_unserved_cost_nothing() -> None:
    """Only what was served counts."""
    a, b = [make_request(caller="a") for _ in range(3)], [make_request(caller="b") for _ in range(2)]
    queue = queue_of([*a, *b])

    queue.remove(a[0])

    assert list(queue.in_order()) == [a[1], b[0], a[2], b[1]]


def test_an_endless_stream_of_new_callers_does_not_keep_an_old_one_waiting() -> None:
    """A caller who was served a lot is next once the new ones have had as much in all."""
    old = [make_request(40, caller="old") for _ in range(2)]
    queue = queue_of(old)
    assert serve_next(queue) is old[0]

    for turn in range(1000):
        queue.append(make_request(4, caller=f"new {turn}"))
        queue.append(make_request(4, caller=f"another {turn}"))
        if serve_next(queue) is old[1]:
            break

    assert turn <= 20


@given(st.lists(texts, max_size=30), st.data())
def test_the_order_is_that_in_which_they_would_be_served(requests: list[Request], data: st.DataObject) -> None:
    """Looking ahead equals serving one after the other, whatever was served or has left before."""
    queue = queue_of(requests)
    for request in requests:
        change = data.draw(st.sampled_from(["keep", "keep", "serve", "remove"]))
        if change == "serve":
            queue.serve(request)
        elif change == "remove":
            queue.remove(request)

    foreseen = list(queue.in_order())

    assert [serve_next(queue) for _ in foreseen] == foreseen
    assert not list(queue.in_order())


@given(st.lists(texts, min_size=1, max_size=60))
def test_no_caller_gets_more_than_a_text_ahead(requests: list[Request]) -> None:
    """While two callers wait, what they were served differs by no more than their largest texts."""
    queue = queue_of(requests)
    served = dict.fromkeys("abcd", 0)
    largest = max(tokens_of(request) for request in requests)

    for _ in requests:
        waiting = {request.caller for request in queue.in_order()}
        shares = [served[caller] for caller in waiting]
        assert max(shares) - min(shares) <= largest
        request = serve_next(queue)
        served[request.caller] += tokens_of(request)
