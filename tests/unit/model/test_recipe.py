"""Recipes: every wrong setting is named, with its value and what it must be."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from dragoman.model.config import ModelConfig
from dragoman.model.errors import ConfigError
from dragoman.model.recipe import Augmentation, Recipe, TrainConfig

STEPS = "[training]\nmax_steps = 1\n"
HEAD = '[languages]\nsource = "en"\ntarget = "de"\n'


def load(folder: Path, text: str) -> Recipe:
    path = folder / "recipe.toml"
    path.write_text(HEAD + text, "utf-8")
    return Recipe.load(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[training]\nmax_steps = "10"', "max_steps is '10'; it must be a whole number"),
        ("[training]\nmax_steps = 1\naccumulate = 1.5", "accumulate is 1.5; it must be a whole number"),
        ("[training]\nmax_steps = true", "max_steps is True; it must be a whole number"),
        ('[training]\nmax_steps = 1\nlearning_rate = "x"', "learning_rate is 'x'; it must be a number"),
        ('[training]\nmax_steps = 1\nschedule = "step"', "schedule is 'step'; choose one of inverse_square_root, noam"),
        ("[training]\nmax_steps = 1\nstages = [{minutes = 3}]", "stage configuration: max_pieces must be given"),
        (
            "[training]\nmax_steps = 1\nstages = [{max_pieces = 9}, {max_pieces = 20}]",
            "the later ones would never begin",
        ),
        ('[training]\nmax_steps = 1\norigin_shares = {dict = "a"}', "it must be a table of numbers"),
        ("[training]\nmax_steps = 1\norigin_shares = {dict = 2}", "origin_shares.dict is 2; it must be in"),
        ("[training]\nmax_steps = 1\naugmentation = 3", "it must be a table of settings"),
        ("[training]\nmax_steps = 1\n[training.augmentation]\nshout = 1.0", "unknown augmentation setting ['shout']"),
        ("[training]\nmax_steps = 1\npatience = 3\nvalidate_pairs = 0", "patience needs validate_pairs"),
        ("[training]\nbatch_tokens = 5", "set one of them so that training ends"),
        ("[tokenizer]\nvocab_size = 0", "vocab_size is 0; it must be greater than 0"),
        ('[tokenizer]\nuser_symbols = "<b>"', "user_symbols is '<b>'; it must be a list"),
        (STEPS + "[model]\npositions = 3", "positions is 3; choose one of sinusoidal"),
        (STEPS + '[model]\ngated = "no"', "gated is 'no'; it must be true or false"),
        (STEPS + '[model]\npreset = "decoder-only-small"', "choose one of transformer-base"),
        (STEPS + "[model]\nsource_vocab_size = 44", "training makes one vocabulary for source and target"),
        ("[modle]\nd_model = 3", "unknown table ['modle']"),
        (STEPS + "[model]\nvocab_size = 900", "set vocab_size in [tokenizer]"),
        (STEPS + "[[model]]\nd_model = 8", "it must be a table of settings: [model]"),
        (STEPS + "[model]\npreset = []", "model.preset is []; choose one of"),
        (STEPS + "[[tokenizer]]\nvocab_size = 900", "it must be a table of settings"),
        ("[[training]]\nmax_steps = 1", "it must be a table of settings"),
        (STEPS + "stages = 5", "stages is 5; it must be a list of tables"),
        (STEPS + "stages = {max_pieces = 5}", "it must be a list of tables"),
        (STEPS + "stages = [5]", "stage configuration is 5; it must be a table of settings"),
        (STEPS + "stages = [{max_pieces = 300}]", "max_pieces 300, but the model's positions end at 256"),
        (STEPS + "seed = -1", "seed is -1; it must be from 0 to 4294967295"),
        (STEPS + "seed = 18446744073709551617", "it must be from 0 to 4294967295"),
        ("[tokenizer]\nvocab_size = 4294967296", "it must be at most 2147483647"),
        ('[tokenizer]\nuser_symbols = ["<b>", "<b>"]', "each must be a text, and another one"),
        ('[tokenizer]\nuser_symbols = [""]', "each must be a text, and another one"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, said: str) -> None:
    """Instead of a crash, or of a training that does something else."""
    with pytest.raises(ConfigError) as error:
        load(tmp_path, text)
    assert said in str(error.value)


def float_settings() -> list[tuple[str, str]]:
    """Return table and name of each setting that is a fraction."""
    tables = {"training": TrainConfig, "training.augmentation": Augmentation, "model": ModelConfig}
    return [
        (table, field.name)
        for table, cls in tables.items()
        for field in fields(cls)
        if field.type in ("float", "float | None")
    ]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1" + "0" * 400])
@pytest.mark.parametrize(("table", "name"), float_settings())
def test_a_number_that_is_not_finite_is_refused(tmp_path: Path, table: str, name: str, value: str) -> None:
    """It passes every comparison with a limit, and ends a run hours later, or never."""
    head = "" if table == "training" else STEPS
    steps = "max_steps = 1\n" if table == "training" else ""
    with pytest.raises(ConfigError, match=rf"{name} is .*; it must be finite"):
        load(tmp_path, f"{head}[{table}]\n{steps}{name} = {value}")


def test_there_are_settings_to_test() -> None:
    """The list above is made by looking at types."""
    assert len(float_settings()) > 15


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("languages = 5", "languages configuration is 5; it must be a table of settings"),
        ('[languages]\nsource = "en"', "languages configuration: target must be given"),
        ('[languages]\nsource = "en"\ntarget = "de"\nthird = "fr"', "unknown languages setting ['third']"),
        ('[languages]\nsource = 1\ntarget = "de"', "source is 1; it must be a text"),
        ('[languages]\nsource = "en"\ntarget = ""', "target is ''; it must be a BCP-47 tag"),
        ('[languages]\nsource = "en "\ntarget = "de"', "source is 'en '; it must be a BCP-47 tag"),
        ('[languages]\nsource = "en"\ntarget = "EN"', "source and target are both 'EN'"),
    ],
)
def test_wrong_languages_are_named(tmp_path: Path, table: str, said: str) -> None:
    """They are what callers will have to give."""
    path = tmp_path / "recipe.toml"
    path.write_text(f"{table}\n{STEPS}")
    with pytest.raises(ConfigError) as error:
        Recipe.load(path)
    assert said in str(error.value)


def test_whole_numbers_will_do_for_fractions(tmp_path: Path) -> None:
    """TOML tells 1 from 1.0, people do not."""
    recipe = load(tmp_path, '[training]\nmax_minutes = 5\nlearning_rate = 1\n[model]\npreset = "tiny"\ndropout = 0')

    assert recipe.training.max_minutes == 5
    assert recipe.model_config(100).decoder_layer == "ssru"
