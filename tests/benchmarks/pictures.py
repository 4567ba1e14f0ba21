"""Pictures of results: ratios to CTranslate2 by batch, latency by offered load, growth of a step's cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.benchmarks.names import CTRANSLATE2, CTRANSLATE2_AWAKE
from tests.benchmarks.tables import best_precisions, cases_of, comparisons

_SUFFIXES = ("png", "svg")
_COMPARED = tuple(f"{p} : {side} {p}" for side in (CTRANSLATE2, CTRANSLATE2_AWAKE) for p in ("fp32", "best"))
_MARKS = "os^Dv"
# Equal results give equal files.
mpl.rcParams["svg.hashsalt"] = "dragoman"


def draw_engine(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw the ratios of all models, one row of axes per model, a column per comparison."""
    models = list(dict.fromkeys(record["model"] for record in result["records"]))
    figure = Figure(figsize=(5 * len(_COMPARED), 3.4 * len(models)), layout="constrained")
    axes = figure.subplots(len(models), len(_COMPARED), squeeze=False)
    for row, model in enumerate(models):
        records = [record for record in result["records"] if record["model"] == model]
        counted = best_precisions(records, result["settings"]["best"])
        for column, compared in enumerate(_COMPARED):
            _ratios(axes[row][column], records, counted, compared)
            axes[row][column].set_title(f"{model}\n{compared}", fontsize=9)
    return _save(figure, folder / "engine")


def _ratios(
    axes: Axes, records: Sequence[Mapping[str, Any]], counted: Mapping[str, Sequence[str]], compared: str
) -> None:
    curves: dict[str, list[tuple[int, float, float]]] = {}
    for (workload, beams, batch), found in cases_of(records).items():
        spread = comparisons(found, counted)[compared]
        if spread is not None:
            curves.setdefault(f"{workload}, beam {beams}", []).append((batch, spread.median, spread.half_iqr))
    for mark, (label, points) in zip(_MARKS * 2, curves.items(), strict=False):
        batches, medians, spreads = zip(*sorted(points), strict=True)
        axes.errorbar(batches, medians, yerr=spreads, marker=mark, capsize=3, label=label)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle="--")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({point[0] for points in curves.values() for point in points}))
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("batch")
    axes.set_ylabel("tokens/s, ratio")
    axes.legend(fontsize=7)


def draw_service(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw p50 and p99 of every server by offered load."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("p50_s", "p99_s"), strict=True):
        for mark, server in zip(_MARKS, result["servers"], strict=False):
            points = [(point["rate"], 1e3 * point[name]) for point in server["points"] if point[name] is not None]
            if points:
                axes.plot(*zip(*points, strict=True), marker=mark, label=server["title"])
        if name == "p99_s":
            objective = 1e3 * result["settings"]["objective_s"]
            axes.axhline(objective, color="black", linewidth=0.8, linestyle="--", label="objective")
        axes.set_yscale("log")
        axes.set_xlabel("offered load, texts/s")
        axes.set_ylabel(f"{name.removesuffix('_s')}, ms")
        axes.legend(fontsize=8)
    return _save(figure, folder / "service")


def draw_cost(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw how a step's time grows along each axis."""
    names = list(next(iter(result["growth"].values())))
    figure = Figure(figsize=(4.2 * len(names), 3.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for mark, (precision, curves) in zip(_MARKS, result["growth"].items(), strict=False):
            points = curves[name]
            axes.errorbar(
                [point["at"] for point in points],
                [point["ms"] for point in points],
                yerr=[point["half_iqr"] for point in points],
                marker=mark, capsize=3, label=precision,
            )  # fmt: skip
        axes.set_ylim(bottom=0)
        axes.set_xlabel(name)
        axes.set_ylabel("decode step, ms")
        axes.legend(fontsize=8)
    return _save(figure, folder / "cost")


def _save(figure: Figure, path: Path) -> list[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [path.with_suffix(f".{suffix}") for suffix in _SUFFIXES]
    for file in written:
        figure.savefig(file, dpi=120)
    return written
