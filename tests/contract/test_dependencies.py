"""Which package may import which: the contracts of pyproject.toml hold."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_imports_point_one_way() -> None:
    """import-linter keeps every contract."""
    lint = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    assert lint, "install the dev group: pip install --group dev"
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
