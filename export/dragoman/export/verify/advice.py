"""What to try next with a bundle that was refused. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dragoman.export.verify.requirements import MAX_TIES

if TYPE_CHECKING:
    from dragoman.export.verify.report import Report

# What keeps more of the model's quality, on the same devices.
_KEEPS_MORE = {
    "int4": "int8-weights",
    "int8-static": "int8 or int8-weights",
    "int8": "int8-weights or fp32",
    "int8-weights": "fp32",
    "fp16": "fp32",
}
_FEW_REFERENCES = 200


def next_steps(report: Report) -> Iterator[str]:
    """Yield what a user can do about a report's problems; nothing if there are none."""
    if not report.problems:
        return
    other = _KEEPS_MORE.get(report.precision)
    drops = [
        search
        for search in report.searches
        if search.chrf_model is not None
        and search.chrf_bundle is not None
        and search.chrf_model - search.chrf_bundle > report.requirement.max_chrf_drop
    ]
    undecided = any(search.ties > MAX_TIES * search.sentences for search in report.searches)
    if drops:
        yield from _about_quality(report, min(search.references for search in drops))
    elif undecided and report.requirement.same_texts:
        yield "train the model further, or give --data with real sentences: random sources hang on ties more often"
    elif not report.sentences:
        yield "give --data with shorter texts, or leave --data out to compare random ones"
    elif other is not None and not report.requirement.same_texts and report.logits.max_difference != 0:
        yield f"try --precision {other}"
    else:
        yield (
            "if the bundle was made from another checkpoint or step, name that one with --checkpoint; if not, the "
            "export is at fault: report it, with what --report FILE writes"
        )
    yield "--report FILE keeps all numbers and the worst texts; --no-verify of `dragoman export` compares nothing"


def _about_quality(report: Report, references: int) -> Iterator[str]:
    other = _KEEPS_MORE.get(report.precision)
    if references < _FEW_REFERENCES:
        yield (
            f"chrF of {references} references is unsteady: give --data more held-out pairs of the model's domain, and "
            f"--sentences {_FEW_REFERENCES} or more"
        )
    if report.precision == "int8-static":
        yield "its scales come from the pairs of --data behind the first --sentences: more of them make better scales"
    if other is not None:
        yield f"--precision {other} keeps more of the quality"
