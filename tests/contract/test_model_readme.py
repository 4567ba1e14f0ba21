"""The walk through the model names files and lines, and tables name settings; they must be right."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import pytest

from dragoman.model.config import ModelConfig
from dragoman.model.presets import PRESETS
from dragoman.model.recipe import Augmentation, LanguagePair, Stage, TokenizerConfig, TrainConfig

ROOT = Path(__file__).parents[2]
PLACE = re.compile(r"`(\w+\.py):(\d+)` (\w+)")
SETTING = re.compile(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
TABLES = {
    "`[languages]`: ": LanguagePair,
    "`[tokenizer]`: ": TokenizerConfig,
    "`[training]`: ": TrainConfig,
    "Each of `stages = ": Stage,
    "`[training.augmentation]`: ": Augmentation,
    "`[model]`: ": ModelConfig,
}
VOCABULARY = {"vocab_size", "source_vocab_size"}  # the tokenizer decides


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


def toml(field: Field[Any]) -> str:
    """Return a field's default as a recipe would say it."""
    if field.default_factory is not MISSING:
        return "`{}`"
    if field.default is MISSING:
        return "must be given"
    if field.default is None:
        return "none"
    return f"`{json.dumps(field.default)}`"


@pytest.mark.parametrize("heading", TABLES)
def test_every_setting_is_in_its_table(heading: str) -> None:
    """With its default, and nothing that is no setting."""
    readme = (ROOT / "model" / "README.md").read_text("utf-8")
    assert readme.count(f"\n{heading}") == 1
    table = readme.partition(f"\n{heading}")[2].split("\n\n")[1]
    found = {name: default for name, default, _ in SETTING.findall(table)}
    preset = found.pop("preset", None)

    cls = TABLES[heading]
    assert found == {
        field.name: toml(field) for field in fields(cls) if cls is not ModelConfig or field.name not in VOCABULARY
    }
    if cls is ModelConfig:
        assert preset == "none"
        assert all(f"`{name}`" in table for name in PRESETS)
