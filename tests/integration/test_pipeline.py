"""The whole path, shorter: train on the generated task, export, verify, serve, translate."""

from __future__ import annotations

import re
from pathlib import Path

from tests.pipeline import RECIPE, run_pipeline


def test_generated_task_from_corpus_to_served_translation(tmp_path: Path) -> None:
    """A third of the full training gives almost every unseen number exactly."""
    recipe = tmp_path / "short.toml"
    recipe.write_text(re.sub(r"max_steps = \d+", "max_steps = 700", RECIPE.read_text("utf-8")), "utf-8")
    result = run_pipeline(tmp_path, recipe=recipe, sentences=100, train=30_000)

    assert result.sentences == 100
    assert result.exact >= 85, result.wrong
