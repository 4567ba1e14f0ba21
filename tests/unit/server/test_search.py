import numpy as np

from dragoman.model.vocab import SPECIAL_IDS
from dragoman.server.search import forced, greedy

EOS = SPECIAL_IDS.eos


def test_a_row_goes_on_until_eos_or_its_own_limit() -> None:
    """Each row is judged by its own token, count and limit."""
    tokens = np.array([7, EOS, 7, 7], np.int64)
    generated = np.array([1, 5, 9, 10], np.int64)
    limits = np.array([10, 10, 10, 10], np.int64)

    verdict = greedy(tokens, generated, limits, SPECIAL_IDS)

    assert verdict.tokens.tolist() == [7, EOS, 7, 7]
    assert verdict.eos.tolist() == [False, True, False, False]
    assert verdict.length.tolist() == [False, False, False, True]
    assert verdict.ended.tolist() == [False, True, False, True]


def test_eos_as_the_last_token_allowed_is_an_end_by_the_model() -> None:
    """A text that is complete at its limit was not cut."""
    verdict = greedy(np.array([EOS], np.int64), np.array([4], np.int64), np.array([4], np.int64), SPECIAL_IDS)

    assert verdict.eos.tolist() == [True]
    assert verdict.length.tolist() == [False]


def test_no_rows_are_no_verdict() -> None:
    """An empty step is allowed."""
    nothing = np.zeros(0, np.int64)

    assert greedy(nothing, nothing, nothing, SPECIAL_IDS).ended.tolist() == []


def test_a_masked_token_is_a_fault_and_not_a_text() -> None:
    """The graph cannot choose it unless its logits are not numbers."""
    verdict = greedy(np.array([SPECIAL_IDS.pad, 7]), np.array([4, 4]), np.array([4, 9]), SPECIAL_IDS)

    assert verdict.faulty.tolist() == [True, False]
    assert verdict.is_text.tolist() == [False, True]
    assert verdict.length.tolist() == [False, False]
    assert verdict.ended.tolist() == [True, False]


def test_a_given_token_is_taken_and_judged_by_nobody() -> None:
    """A language code that opens the target is no text, no fault and no end; the other rows choose."""
    given = forced([(9, SPECIAL_IDS.eos), (), (9, SPECIAL_IDS.eos)], np.array([1, 1, 2]))
    assert given is not None
    assert given.tolist() == [EOS, -1, -1]
    verdict = greedy(np.array([7, 7, EOS]), np.array([2, 2, 3]), np.array([2, 9, 9]), SPECIAL_IDS, given)

    assert verdict.tokens.tolist() == [EOS, 7, EOS]
    assert verdict.is_text.tolist() == [False, True, False]
    assert verdict.ended.tolist() == [False, False, True]


def test_no_row_has_to_take_anything() -> None:
    """The usual case costs no array."""
    assert forced([(), ()], np.array([1, 2])) is None
