"""The walk through the model names files and lines; they must be right."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = re.compile(r"`(\w+\.py):(\d+)` (\w+)")


def test_lines_of_the_walk_are_right() -> None:
    """Each named line defines the named class or function."""
    places = PLACE.findall((ROOT / "model" / "README.md").read_text("utf-8"))
    assert len(places) > 15
    wrong = []
    for file, number, name in places:
        lines = (ROOT / "model" / "dragoman" / "model" / file).read_text("utf-8").splitlines()
        right = [i for i, line in enumerate(lines, 1) if re.match(rf"\s*(class|def) {name}\b", line)]
        if int(number) not in right:
            wrong.append(f"{file}:{number} should be {right}: {name}")
    assert wrong == []
