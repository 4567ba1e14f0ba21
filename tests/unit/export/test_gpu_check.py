"""tests/gpu/export_check.py on a machine without a GPU: it says so, and what it compares can differ."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from dragoman.export import bundle
from tests.gpu import export_check

SCRIPT = Path(export_check.__file__)


def test_help_says_what_it_needs() -> None:
    """Before anything is exported."""
    shown = subprocess.run([sys.executable, SCRIPT, "--help"], check=True, capture_output=True, text=True).stdout

    assert "--dry-run" in shown
    assert shown.index("pip uninstall --yes onnxruntime") < shown.index("pip install 'onnxruntime-gpu")
    assert "server" not in shown  # its runtime and that of the export are two packages
    assert "Exits with 1 if anything is" in shown


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="this machine may have a GPU"
)
def test_without_a_gpu_it_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    """So that nobody takes a check that did not take place for one that passed."""
    with pytest.raises(SystemExit) as ended:
        export_check.device_or_exit(dry=False)

    assert ended.value.code == 2
    said = capsys.readouterr().out
    assert said.index("pip uninstall --yes onnxruntime") < said.index("pip install 'onnxruntime-gpu[cuda,cudnn]")
    assert export_check.device_or_exit(dry=True) == "cpu"


def test_what_is_computed_on_request_is_compared() -> None:
    """A score, a normalizer, an attention or a best id that is wrong is a problem; a tie of ids is none."""
    right = {
        bundle.CANDIDATE_IDS: np.array([[[7, 8]]]),
        bundle.CANDIDATE_SCORES: np.array([[[-0.1, -2.5]]], np.float32),
        bundle.LOG_NORMALIZER: np.array([[3.0]], np.float32),
        bundle.ALIGNMENT: np.array([[[0.5, 0.5]]], np.float32),
    }
    assert export_check.on_request_problems(right, right, 0.01) == []
    for name in (bundle.CANDIDATE_SCORES, bundle.LOG_NORMALIZER, bundle.ALIGNMENT):
        for wrong in (right[name] + np.float32(0.1), right[name] * np.float32(np.nan)):
            (problem,) = export_check.on_request_problems({**right, name: wrong}, right, 0.01)
            assert problem.startswith(f"{name} differs by")

    swapped = {**right, bundle.CANDIDATE_IDS: np.array([[[8, 7]]])}
    assert export_check.on_request_problems(swapped, right, 0.01) == ["the best candidates differ"]
    tied = {**right, bundle.CANDIDATE_SCORES: np.array([[[-0.1, -0.101]]], np.float32)}
    assert export_check.on_request_problems({**tied, bundle.CANDIDATE_IDS: np.array([[[8, 7]]])}, tied, 0.01) == []
