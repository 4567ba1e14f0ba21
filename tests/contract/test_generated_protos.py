"""The committed gRPC code is what the pinned generator makes of the .proto files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTOS = ROOT / "protos"


def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    """Regenerating changes no file; `make proto` repairs it."""
    python = os.environ.get("DRAGOMAN_PROTO_PYTHON")
    if not python:
        pytest.skip("DRAGOMAN_PROTO_PYTHON is not set; `make test` sets it to an environment with the pinned generator")
    path = os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])
    subprocess.run([python, PROTOS / "generate.py", tmp_path], check=True, env={**os.environ, "PATH": path})
    made = {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert len(made) == 4

    committed = {p: (PROTOS / p).read_bytes() for p in made}
    assert [str(p) for p in made if made[p] != committed[p]] == []
