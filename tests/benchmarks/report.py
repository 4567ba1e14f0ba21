"""Tables and pictures of results that lie in a folder: what `make bench` ends with.

python -m tests.benchmarks.report build/bench
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks.cost_report import cost_report
from tests.benchmarks.pictures import draw_cost, draw_engine, draw_service
from tests.benchmarks.service_report import service_report
from tests.benchmarks.tables import engine_report

Report = Callable[[Mapping[str, Any]], str]
Draw = Callable[[Mapping[str, Any], Path], list[Path]]
_PARTS: dict[str, tuple[str, Report, Draw]] = {
    "engine": ("Engine", engine_report, draw_engine),
    "service": ("Service", service_report, draw_service),
    "cost": ("Cost", cost_report, draw_cost),
}


def write_report(folder: Path) -> list[Path]:
    """Write report.md and the pictures of every result that is there.

    Args:
        folder: With engine.json, service.json, cost.json, or some of them.

    Returns:
        What was written.

    Raises:
        FileNotFoundError: There is none of them.
    """
    written: list[Path] = []
    parts: list[str] = []
    for name, (title, report, draw) in _PARTS.items():
        file = folder / f"{name}.json"
        if file.exists():
            result = json.loads(file.read_text("utf-8"))
            pictures = draw(result, folder)
            written += pictures
            parts += [f"## {title}", report(result), f"![{title}]({pictures[0].name})"]
    if not parts:
        raise FileNotFoundError(f"{folder} has none of {', '.join(f'{name}.json' for name in _PARTS)}")
    page = folder / "report.md"
    page.write_text("\n\n".join(parts) + "\n", "utf-8")
    return [page, *written]


def main() -> None:
    """Write the report and say where it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for path in write_report(parser.parse_args().folder):
        print(path)


if __name__ == "__main__":
    main()
