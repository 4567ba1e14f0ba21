"""Results of the service benchmark as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.benchmarks.machine import sentence
from tests.benchmarks.names import OURS
from tests.benchmarks.tables import markdown


def service_report(result: Mapping[str, Any]) -> str:
    """Return both tables of the service benchmark."""
    settings, servers = result["settings"], result["servers"]
    rates = sorted({point["rate"] for server in servers for point in server["points"]})
    rows = []
    for rate in rates:
        cells = []
        for server in servers:
            point = next((point for point in server["points"] if point["rate"] == rate), None)
            cells.append(_cell(point))
        rows.append([f"{rate:.1f}", *cells])
    objective_ms = 1e3 * settings["objective_s"]
    return "\n\n".join(
        [
            sentence(result["machine"]),
            f"{settings['model']}, {settings['precision']}, beam {settings['beams']}; p50 / p95 / p99 in milliseconds "
            f"by offered load in texts/s, medians of {settings['repeats']} runs of {settings['seconds']:.0f} s.",
            markdown(["offered", *(server["title"] for server in servers)], rows),
            markdown(
                ["server", "most, 64 calls open", f"goodput, p99 within {objective_ms:.0f} ms", "Dragoman : this"],
                [
                    [
                        server["title"], f"{server['most']:.1f} texts/s", f"{server['goodput']:.1f} texts/s",
                        _ratio(goodput_of(result, OURS), server["goodput"]),
                    ]
                    for server in servers
                ],
            ),
        ]
    )  # fmt: skip


def goodput_of(result: Mapping[str, Any], title: str) -> float:
    """Return a server's goodput in texts/s."""
    return next(float(server["goodput"]) for server in result["servers"] if server["title"] == title)


def _cell(point: Mapping[str, Any] | None) -> str:
    if point is None:
        return ""
    if point["p99_s"] is None:
        return "no answers"
    failed = sum(sum(repeat["failures"].values()) for repeat in point["repeats"])
    times = " / ".join(f"{1e3 * point[name]:.0f}" for name in ("p50_s", "p95_s", "p99_s"))
    return f"{times}, {failed} failed" if failed else times


def _ratio(one: float, other: float) -> str:
    return f"{one / other:.2f}" if other else "-"
