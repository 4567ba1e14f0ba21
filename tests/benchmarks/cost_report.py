"""Results of the cost benchmark as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.benchmarks.machine import sentence
from tests.benchmarks.tables import markdown

_STEP_LIMIT_US = 200
_SERVED_LIMIT = 0.1


def cost_report(result: Mapping[str, Any]) -> str:
    """Return all tables of the cost benchmark."""
    settings = result["settings"]
    parts = [sentence(result["machine"])]
    for axis, what in (
        ("rows", settings["model"]),
        ("cache length", f"{settings['model']}, {settings['at']} rows"),
        ("vocabulary", f"shape of the built-in model, {settings['at']} rows"),
    ):
        parts.append(f"Milliseconds of a decode step by {axis} ({what}).\n\n{_curve(result['growth'], axis)}")
    parts.append(f"Memory of the slot pool ({settings['model']}, {settings['precisions'][0]}).\n\n{_memory(result)}")
    parts.append(_per_step(result))
    parts.append(_served(result["served"]))
    return "\n\n".join(parts)


def _curve(growth: Mapping[str, Any], axis: str) -> str:
    points = next(iter(growth.values()))[axis]
    header = ["", *(f"{point['at']:,}" for point in points)]
    rows = [
        [precision, *(f"{point['ms']:.2f} ± {point['half_iqr']:.2f}" for point in curves[axis])]
        for precision, curves in growth.items()
    ]
    return markdown(header, rows)


def _memory(result: Mapping[str, Any]) -> str:
    header = ["slots", "MB if each may hold the longest text", "MB that texts of 32 source and 32 target tokens use"]
    rows = [[str(row["slots"]), f"{row['longest_mb']:.1f}", f"{row['short_mb']:.1f}"] for row in result["memory"]]
    return markdown(header, rows)


def _per_step(result: Mapping[str, Any]) -> str:
    rows = [
        [
            entry["kind"], str(entry["rows"]), f"{entry['median_us']:.0f}", f"{entry['p90_us']:.0f}",
            "; ".join(f"{f['function']} {f['us_per_step']:.0f}" for f in _ours(entry["profile"])),
        ]
        for entry in result["per_step"]
    ]  # fmt: skip
    header = ["search", "rows", "median, µs", "90th percentile, µs", "most of it (own time under the profiler, µs)"]
    return (
        f"CPU time of an iteration of the engine outside ONNX Runtime: plan and commit; aim {_STEP_LIMIT_US} µs.\n\n"
        f"{markdown(header, rows)}"
    )


def _ours(profile: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the largest entries that are neither the computation nor the clock around it."""
    return [f for f in profile if "run_with_iobinding" not in f["function"] and "thread_time" not in f["function"]][:5]


def _served(served: Mapping[str, Any]) -> str:
    client = served["client"]
    rows = [[what, f"{cpu:.2f}", f"{100 * cpu / served['compute_cpu_s']:.1f} %"]
            for what, cpu in served["overhead_cpu_s"].items()]  # fmt: skip
    rows.append(
        ["together", f"{sum(served['overhead_cpu_s'].values()):.2f}", f"{100 * served['overhead_share']:.1f} %"]
    )
    return (
        f"Serving {client['texts_per_s']:.0f} texts/s, {served['rows_per_step']:.0f} rows per step on average: CPU "
        f"seconds beside the {served['compute_cpu_s']:.1f} of ONNX Runtime; aim {100 * _SERVED_LIMIT:.0f} %. (The "
        f"client took {served['client_cpu_s']:.1f} of the same CPUs.)\n\n"
        f"{markdown(['what', 'CPU seconds', 'of the computation'], rows)}"
    )
