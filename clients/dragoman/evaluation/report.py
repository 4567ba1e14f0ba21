"""An evaluation as text: aligned tables and examples."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.client.commands.output import on_one_line
from dragoman.model.evaluate import Evaluation, Group
from dragoman.model.samples import Sample

_SHOWN_CHARACTERS = 300
_SHOWN_REFUSALS = 3
_COLUMNS = ("sentences", "BLEU", "chrF", "length ratio")


def text_report(evaluation: Evaluation, *, system: str, data: str, examples: int) -> str:
    """Return the report for people.

    Args:
        evaluation: What to report.
        system: Its name.
        data: Name of the test set.
        examples: Looping and untranslated samples to show, at most, of each kind.
    """
    parts = [
        _summary(evaluation, system, data),
        _table("source words", evaluation.by_source_words),
        _table("origin", evaluation.by_origin),
    ]
    if examples:
        parts += _examples("looping", evaluation.faults.looping, examples)
        parts += _examples("untranslated", evaluation.faults.untranslated, examples)
    return "\n\n".join(parts)


def refusals(evaluation: Evaluation) -> str:
    """Say which sources the system refused; empty if none."""
    refused = evaluation.faults.refused
    if not refused:
        return ""
    shown = "; ".join(f"pair {sample.number}: {sample.output.reason}" for sample in refused[:_SHOWN_REFUSALS])
    more = f"; and {len(refused) - _SHOWN_REFUSALS} more" if len(refused) > _SHOWN_REFUSALS else ""
    return (
        f"{len(refused)} of {evaluation.scores.sentences} sources were refused and count as empty translations: "
        f"{shown}{more}"
    )


def _summary(evaluation: Evaluation, system: str, data: str) -> str:
    scores, faults = evaluation.scores, evaluation.faults

    def share(found: Sequence[Sample] | None) -> str:
        return "unknown" if found is None else f"{len(found)} ({len(found) / scores.sentences:.1%})"

    rows = [
        ("system", system),
        ("data", data),
        ("sentences", str(scores.sentences)),
        ("BLEU", f"{_score(scores.bleu):<6} {scores.bleu_signature}"),
        ("chrF", f"{_score(scores.chrf):<6} {scores.chrf_signature}"),
        ("length ratio", f"{scores.length_ratio:.3f}"),
        ("empty", share(faults.empty)),
        ("untranslated", share(faults.untranslated)),
        ("looping", share(faults.looping)),
        ("cut at limit", share(faults.cut)),
        ("refused", share(faults.refused)),
    ]
    return "\n".join(f"{name:<13} {value}" for name, value in rows)


def _table(title: str, groups: Sequence[Group]) -> str:
    rows = [(title, *_COLUMNS)]
    for group in groups:
        scores = group.scores
        rows.append(
            (
                group.name,
                str(scores.sentences),
                _score(scores.bleu),
                _score(scores.chrf),
                f"{scores.length_ratio:.3f}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    )


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _examples(kind: str, samples: Sequence[Sample], most: int) -> list[str]:
    if not samples:
        return []
    shown = samples[:most]
    return [
        f"{kind}: the worst {len(shown)} of {len(samples)}",
        *(
            f"  pair {sample.number}\n"
            f"    source       {_shown(sample.source)}\n"
            f"    reference    {_shown(sample.reference)}\n"
            f"    translation  {_shown(sample.output.text)}"
            for sample in shown
        ),
    ]


def _shown(text: str) -> str:
    text = on_one_line(text)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
