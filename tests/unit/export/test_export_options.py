"""`dragoman export`: what a bundle is for can be said, and what cannot work is refused before anything is read."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from dragoman.cli.main import main
from dragoman.export import bundle
from dragoman.model.checkpoint import save_checkpoint
from tests.fakes.bundles import make_checkpoint


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--precision", "fp16", "--device", "cpu"), "fp16 cannot run on 'cpu', it is for cuda; for cpu take"),
        (("--precision", "int4", "--device", "cuda"), "int4 cannot run on 'cuda', it is for cpu; for cuda take"),
        (("--format", "ctranslate2", "--device", "cpu"), "--device is about bundles"),
    ],
)
def test_a_device_that_cannot_be_is_refused_before_the_checkpoint_is_read(
    options: tuple[str, ...], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no checkpoint here, and nobody says so."""
    code = main(["export", "--checkpoint", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out"), *options])

    assert code == 1
    assert reason in capsys.readouterr().err


def test_a_bundle_for_cpus_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In its manifest and on the screen; its decoder has what only CPUs have."""
    made, run, out = make_checkpoint(), tmp_path / "run", tmp_path / "out"
    run.mkdir()
    save_checkpoint(run, made.model, made.tokenizer, languages=("en", "de"), step=1)
    code = main(["export", "--checkpoint", str(run), "--out", str(out), "--device", "cpu", "--no-verify"])

    assert code == 0
    assert "fp32 for cpu, version" in capsys.readouterr().out
    assert bundle.load_manifest(out).devices == ("cpu",)
    assert "GroupQueryAttention" in {node.op_type for node in onnx.load(out / bundle.DECODER).graph.node}
