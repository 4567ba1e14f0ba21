"""Copies in an order that overwrites nothing which is still to be read."""

from hypothesis import given
from hypothesis import strategies as st

from dragoman.server.row_copies import SPARE, RowCopy, in_sequence


def copies_of(parents: dict[int, int]) -> list[RowCopy]:
    return [RowCopy(row, parent, row, row + parent) for row, parent in parents.items()]


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 9)))
def test_each_row_gets_what_its_parent_had(parents: dict[int, int]) -> None:
    """For any rows and parents: chains, circles, many children of one."""
    slots = {row: row for row in range(10)}

    for target, source, *_ in in_sequence(copies_of(parents)):
        slots[target] = slots[source]

    assert {row: slots[row] for row in range(10)} == {row: parents.get(row, row) for row in range(10)}


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 9)))
def test_each_row_is_copied_once_and_with_its_own_positions(parents: dict[int, int]) -> None:
    """A detour through the spare place has the positions of the row that goes on from there."""
    copies = in_sequence(copies_of(parents))

    assert sorted(copy.target for copy in copies if copy.target != SPARE) == sorted(parents)
    for copy in copies:
        if copy.target != SPARE:
            assert (copy.first, copy.length) == (copy.target, copy.target + parents[copy.target])
    saved = [copy[2:] for copy in copies if copy.target == SPARE]
    assert saved == [copy[2:] for copy in copies if copy.source == SPARE]


def test_copies_that_do_not_meet_stay_in_order() -> None:
    """As nearly always: what others continue continues itself."""
    copies = copies_of({3: 0, 1: 0, 2: 5})

    assert in_sequence(copies) == copies
