"""Recipes: every wrong setting is named, with its value and what it must be."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.model.errors import ConfigError
from dragoman.model.recipe import Recipe

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
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, said: str) -> None:
    """Instead of a crash, or of a training that does something else."""
    with pytest.raises(ConfigError) as error:
        load(tmp_path, text)
    assert said in str(error.value)


def test_whole_numbers_will_do_for_fractions(tmp_path: Path) -> None:
    """TOML tells 1 from 1.0, people do not."""
    recipe = load(tmp_path, '[training]\nmax_minutes = 5\nlearning_rate = 1\n[model]\npreset = "tiny"\ndropout = 0')

    assert recipe.training.max_minutes == 5
    assert recipe.model_config(100).decoder_layer == "ssru"
