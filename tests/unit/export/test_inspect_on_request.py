"""`dragoman inspect` on what a decoder computes on request."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from dragoman.cli.main import main
from dragoman.export import bundle
from dragoman.export.inspect import inspect_bundle
from tests.fakes.bundles import plant


def drop_outputs(*names: str) -> Callable[[onnx.ModelProto], None]:
    def drop(model: onnx.ModelProto) -> None:
        kept = [value for value in model.graph.output if value.name not in names]
        del model.graph.output[:]
        model.graph.output.extend(kept)

    return drop


def test_what_a_step_computes_on_request_is_listed(
    fp32_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server can do more with it; bundles from before there was any have nothing, or no log_normalizer."""
    assert main(["inspect", str(fp32_bundle), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["on_request"] == {
        "candidate_ids": "int64 [any, any, 16]",
        "candidate_scores": "float32 [any, any, 16]",
        "log_normalizer": "float32 [any, any]",
        "alignment": "float32 [any, any, any]",
    }

    older = plant(fp32_bundle, tmp_path / "older", bundle.DECODER, drop_outputs("log_normalizer"))
    assert main(["inspect", str(older)]) == 0
    assert "candidate_scores float32 [any, any, 16], alignment float32" in capsys.readouterr().out


def test_an_input_without_what_it_asks_for_is_a_problem(fp32_bundle: Path, tmp_path: Path) -> None:
    """Who gives `with_alignment` would wait for an alignment."""
    broken = plant(fp32_bundle, tmp_path / "broken", bundle.DECODER, drop_outputs("alignment"))

    assert inspect_bundle(broken).problems == (
        "decoder.onnx has no output alignment, which its input with_alignment promises; export the bundle again",
    )
