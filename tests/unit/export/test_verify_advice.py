"""A refused bundle comes with what to try next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.export.verify import Report
from dragoman.export.verify.requirements import requirement
from tests.fakes.verification import check, held_out, one_pair


@pytest.fixture(scope="module")
def passed(fp32_bundle: Path) -> Report:
    return check(fp32_bundle, one_pair(), held_out())


def refused(passed: Report, precision: str, **values: object) -> Report:
    """Return the report with another precision, a problem, and other values of its greedy search."""
    changed = tuple(replace(search, **values) for search in passed.searches)  # type: ignore[arg-type]
    return replace(
        passed,
        bundle={**passed.bundle, "precision": precision},
        requirement=requirement(precision),
        searches=changed,
        problems=("something",),
    )


def test_a_report_that_passed_has_none(passed: Report) -> None:
    """Nothing is left to do."""
    assert passed.problems == ()
    assert "NEXT" not in passed.table()


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        ("int4", "--precision int8-weights keeps more"),
        ("int8", "--precision int8-weights or fp32 keeps more"),
        ("int8-static", "scales come from the pairs of --data behind the first --sentences"),
        ("fp16", "--precision fp32 keeps more"),
    ],
)
def test_lost_quality_names_a_precision_that_keeps_more(passed: Report, precision: str, expected: str) -> None:
    """And where the number is unsteady, more sentences; the problem stands before it."""
    steady = refused(passed, precision, chrf_model=50.0, chrf_bundle=40.0, references=2000).table()
    unsteady = refused(passed, precision, chrf_model=50.0, chrf_bundle=40.0, references=20).table()

    assert expected in steady
    assert "unsteady" not in steady
    assert "chrF of 20 references is unsteady: give --data more held-out pairs" in unsteady
    assert steady.index("FAILED") < steady.index("NEXT")
    assert "--no-verify" in steady


def test_other_problems_have_their_own_steps(passed: Report) -> None:
    """Too little learnt, no text that fits, or a bundle of another checkpoint."""
    assert "train the model further" in refused(passed, "fp32", ties=passed.sentences).table()
    assert "--data with shorter texts" in refused(passed, "fp32", sentences=0, ties=0).table()
    assert "name that one with --checkpoint" in refused(passed, "fp32", ties=0).table()
