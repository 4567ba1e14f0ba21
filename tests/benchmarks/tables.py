"""Results as Markdown. Every function takes what a benchmark wrote as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.benchmarks.machine import sentence
from tests.benchmarks.names import CTRANSLATE2, CTRANSLATE2_AWAKE, HUGGING_FACE, OURS
from tests.benchmarks.rounds import Spread, ratios

MOST_CHRF_DROP = 0.5
_RATES = (
    "Target tokens/s: median ± half the distance of the quartiles. Equal: texts with the same tokens as ours in fp32."
)
_RATIOS = "Ratios of Dragoman to the others, per round."
_SHARES = "Share of what the machine can do, greedy: bytes of weights, and multiply-adds of products with them."

Record = Mapping[str, Any]


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def engine_report(result: Mapping[str, Any]) -> str:
    """Return all tables of the engine benchmark."""
    parts = [sentence(result["machine"])]
    for model in dict.fromkeys(record["model"] for record in result["records"]):
        records = [record for record in result["records"] if record["model"] == model]
        counted = best_precisions(records, result["settings"]["best"])
        steps = next(entry for entry in result["steps"] if entry["model"] == model)
        per = "" if result["settings"]["clock"] == "wall" else "Seconds are CPU time of all threads. "
        parts += [f"### {model}", per + _RATES, _rates(records), _RATIOS, _ratios(records, counted), _counted(counted)]
        if any(record["step_s"] for record in records):
            parts += [_SHARES, _shares(records, steps, result["limits"])]
    return "\n\n".join(parts)


def best_precisions(records: Sequence[Record], otherwise: Sequence[str]) -> dict[str, list[str]]:
    """Return the precisions of each engine that cost little enough quality.

    Args:
        records: Of one model.
        otherwise: The answer where no corpus was translated.
    """
    found: dict[str, list[str]] = {}
    for side in dict.fromkeys(record["side"] for record in records):
        mine = [record for record in records if record["side"] == side]
        quality = {r["precision"]: r["chrf"] for r in mine if r["chrf"] is not None and r["beams"] == 1}
        if quality:
            found[side] = [p for p, chrf in quality.items() if chrf >= quality["fp32"] - MOST_CHRF_DROP]
        else:
            found[side] = [p for p in dict.fromkeys(r["precision"] for r in mine) if p in otherwise]
    return found


def case_key(record: Record) -> tuple[str, int, int]:
    """Return what is compared with each other."""
    return record["workload"], record["beams"], record["batch"]


def cases_of(records: Sequence[Record]) -> dict[tuple[str, int, int], list[Record]]:
    """Return the records of each case."""
    found: dict[tuple[str, int, int], list[Record]] = {}
    for record in records:
        found.setdefault(case_key(record), []).append(record)
    return found


def fastest(records: Sequence[Record], side: str, precisions: Sequence[str]) -> Record | None:
    """Return an engine's fastest record of a case, or None."""
    mine = [record for record in records if record["side"] == side and record["precision"] in precisions]
    return max(mine, key=lambda record: Spread.of(record["rates"]).median, default=None)


def ratio(one: Record | None, other: Record | None) -> Spread | None:
    """Return the ratio of two records of a case, round by round."""
    if one is None or other is None:
        return None
    return Spread.of(ratios(one["rates"], other["rates"]))


def comparisons(records: Sequence[Record], counted: Mapping[str, Sequence[str]]) -> dict[str, Spread | None]:
    """Return the ratios of one case by what they compare."""
    fp32 = fastest(records, OURS, ["fp32"])
    best = fastest(records, OURS, counted.get(OURS, ()))
    found = {}
    for side in (CTRANSLATE2, CTRANSLATE2_AWAKE):
        found[f"fp32 : {side} fp32"] = ratio(fp32, fastest(records, side, ["fp32"]))
        found[f"best : {side} best"] = ratio(best, fastest(records, side, counted.get(side, ())))
    found["fp32 : Hugging Face fp32"] = ratio(fp32, fastest(records, HUGGING_FACE, ["fp32"]))
    return found


def _rates(records: Sequence[Record]) -> str:
    columns = list(dict.fromkeys((record["side"], record["precision"]) for record in records))
    rows = []
    for (workload, beams, batch), found in cases_of(records).items():
        cells = {(record["side"], record["precision"]): _rate_cell(record) for record in found}
        rows.append([workload, str(beams), str(batch), *(cells.get(column, "") for column in columns)])
    return markdown(["work", "beam", "batch", *(f"{side} {precision}" for side, precision in columns)], rows)


def _rate_cell(record: Record) -> str:
    spread = Spread.of(record["rates"])
    notes = []
    if record["chrf"] is not None:
        notes.append(f"chrF {record['chrf']:.1f}")
    if record["precision"] == "fp32" and record["side"] != OURS:
        notes.append(f"{100 * record['equal_to_first']:.0f} % equal")
    return f"{spread.median:,.0f} ± {spread.half_iqr:,.0f}" + (f" ({', '.join(notes)})" if notes else "")


def _ratios(records: Sequence[Record], counted: Mapping[str, Sequence[str]]) -> str:
    header: list[str] = []
    rows = []
    for (workload, beams, batch), found in cases_of(records).items():
        compared = comparisons(found, counted)
        header = ["work", "beam", "batch", *compared]
        cells = [
            "" if spread is None else f"{spread.median:.2f} ± {spread.half_iqr:.2f}" for spread in compared.values()
        ]
        rows.append([workload, str(beams), str(batch), *cells])
    return markdown(header, rows)


def _counted(counted: Mapping[str, Sequence[str]]) -> str:
    of = "; ".join(f"{side}: {', '.join(precisions)}" for side, precisions in counted.items())
    return f"Best is the fastest of these, which cost at most {MOST_CHRF_DROP} chrF. {of}."


def _shares(records: Sequence[Record], steps: Mapping[str, Any], limits: Mapping[str, float]) -> str:
    """Return how near decode steps come to reading their weights once, and to the largest product's rate."""
    rows = []
    for record in records:
        if record["step_s"] is None or record["precision"] not in steps["read_gbs"] or record["beams"] != 1:
            continue
        readable = steps["read_gbs"][record["precision"]]
        read = steps["bytes_per_step"][record["precision"]] / record["step_s"] / 1e9
        computed = steps["flop_per_row"] * record["batch"] / record["step_s"] / 1e9
        peak = limits["fp32_gflops"] if record["precision"] == "fp32" else limits["int8_gops"]
        rows.append(
            [
                record["workload"], str(record["batch"]), record["precision"], f"{100 * record['decode_share']:.0f} %",
                f"{1e3 * record['step_s']:.2f}",
                f"{read:.1f} of {readable:.1f} ({limits['memory_gbs']:.1f} from memory)",
                f"{100 * read / readable:.0f} %",
                f"{computed:,.0f} of {peak:,.0f}", f"{100 * computed / peak:.0f} %",
            ]
        )  # fmt: skip
    header = [
        "work", "batch", "precision", "steps, of the call", "ms per step", "GB/s read", "share", "GFLOP/s or Gop/s",
        "share",
    ]  # fmt: skip
    return markdown(header, rows)
