"""What rows have in common is what they have not to be sent again."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dragoman.server.lineages import Int64s, Lineages
from dragoman.server.row_copies import RowCopy

ROWS, LONGEST = 4, 12


def ints(*values: int) -> Int64s:
    return np.array(values, np.int64)


def test_rows_that_never_met_are_copied_from_the_start() -> None:
    """Equal lengths are no kinship."""
    lineages = Lineages(ROWS, LONGEST)
    lineages.append(ints(0, 0))
    lineages.append(ints(1, 1))

    assert lineages.follow(ints(1), ints(0), ints(2)) == [RowCopy(1, 0, 0, 2)]


def test_only_what_came_after_the_common_past_is_copied() -> None:
    """Beams part and one of them goes on from the other."""
    lineages = Lineages(ROWS, LONGEST)
    lineages.append(ints(0, 0))
    lineages.follow(ints(1), ints(0), ints(1))
    lineages.append(ints(1, 1))
    lineages.append(ints(2, 2))

    assert lineages.follow(ints(0), ints(1), ints(3)) == [RowCopy(0, 1, 1, 3)]
    assert lineages.follow(ints(0), ints(1), ints(3)) == [RowCopy(0, 1, 3, 3)]


def test_a_row_keeps_its_past_when_it_moves() -> None:
    """Its slot is another one, and what stood there is forgotten."""
    lineages = Lineages(ROWS, LONGEST)
    lineages.append(ints(0, 0, 0))
    lineages.follow(ints(2), ints(0), ints(1))
    lineages.move(ints(2), ints(1))
    lineages.append(ints(1, 1))

    assert lineages.follow(ints(1), ints(0), ints(2)) == [RowCopy(1, 0, 1, 2)]


def test_an_erased_row_has_nothing_in_common_with_its_kin() -> None:
    """Its states are zero, not those it had."""
    lineages = Lineages(ROWS, LONGEST)
    lineages.append(ints(0, 0))
    lineages.follow(ints(1), ints(0), ints(1))
    lineages.erase(1)

    assert lineages.follow(ints(1), ints(0), ints(1)) == [RowCopy(1, 0, 0, 1)]


def test_states_without_positions_have_no_lineage() -> None:
    """A cell is copied as a whole, whatever the text's length."""
    lineages = Lineages(ROWS, 0)
    lineages.append(ints(0, 99))

    assert lineages.follow(ints(1), ints(0), ints(100)) == [RowCopy(1, 0, 0, 100)]


@given(st.data())
def test_copies_are_as_short_as_they_can_be(data: st.DataObject) -> None:
    """Against rows that remember what they have read, written once: nothing equal is copied, nothing else left out."""
    lineages = Lineages(ROWS, LONGEST)
    rows: list[list[object]] = [[] for _ in range(ROWS)]
    for _ in range(LONGEST):
        lineages.append(ints(*map(len, rows)))
        for row in rows:
            row.append(object())
        parents = ints(*(data.draw(st.integers(0, ROWS - 1)) for _ in rows))
        moved = (parents != np.arange(ROWS)).nonzero()[0]
        if moved.size:
            copies = lineages.follow(moved, parents[moved], ints(*(len(rows[parent]) for parent in parents[moved])))
            for copy in copies:
                own, theirs = rows[copy.target], rows[copy.source]
                common = sum(mine is other for mine, other in zip(own, theirs, strict=True))
                assert (copy.first, copy.length) == (common, len(theirs))
        rows = [list(rows[parent]) for parent in parents.tolist()]
