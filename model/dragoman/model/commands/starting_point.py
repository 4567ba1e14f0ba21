"""Where a run begins: at a new model, at the weights of another run, or where it was stopped."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.model.checkpoint import Checkpoint, load_checkpoint
from dragoman.model.commands.vocabulary import train_vocabulary
from dragoman.model.errors import CheckpointError, ConfigError
from dragoman.model.readers import PairFiles
from dragoman.model.recipe import Recipe
from dragoman.model.run_settings import changes, vocabulary_changes
from dragoman.model.tokenizers import Tokenizer
from dragoman.model.transformer import Transformer

_TO_RESUME = "Restore the recipe, choose another --out, or begin again with --restart"
_TO_START_FROM = "Describe the same model in the recipe"
_DROPOUTS = ("dropout", "attention_dropout", "feed_forward_dropout")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """A model with its tokenizer, before the first update of this start.

    Attributes:
        model: To be trained.
        tokenizer: The model's.
        checkpoint: That the run is continued from; None for a new run.
    """

    model: Transformer
    tokenizer: Tokenizer
    checkpoint: Path | None = None


def new_model(recipe: Recipe, training: PairFiles, say: Say) -> StartingPoint:
    """Learn a vocabulary and make a model with random weights.

    Raises:
        ModelError: The data gives no such vocabulary.
    """
    say(f"training a vocabulary of {recipe.tokenizer.vocab_size} pieces")
    pairs = training.read((recipe.source_language, recipe.target_language))
    tokenizer = train_vocabulary(pairs, recipe.tokenizer)
    return StartingPoint(Transformer(recipe.model_config(tokenizer.vocab_size)), tokenizer)


def from_weights(path: Path, recipe: Recipe, settings: dict[str, Any], say: Say) -> StartingPoint:
    """Return a model of the recipe with another run's weights, and that run's tokenizer.

    Dropout may be another one, as it has no weights.

    Args:
        path: Checkpoint, or a run.
        recipe: Describes the same model.
        settings: Of this run, see `describe_run`.
        say: Is told.

    Raises:
        CheckpointError: There is no checkpoint.
        ConfigError: The recipe describes another architecture, or it is a model of several languages.
    """
    try:
        checkpoint = load_checkpoint(path)
    except CheckpointError as error:
        raise CheckpointError(f"--start-from {error}") from error
    if checkpoint.languages is not None:
        raise ConfigError(f"{checkpoint.path} translates several languages; training is for models of one pair")
    check_same(checkpoint, recipe, settings, _TO_START_FROM, ignored=_DROPOUTS)
    model = Transformer(recipe.model_config(checkpoint.tokenizer.vocab_size))
    model.load_state_dict(checkpoint.model.state_dict())
    say(f"starting from {checkpoint.path}")
    return StartingPoint(model, checkpoint.tokenizer)


def continued(folder: Path, recipe: Recipe, settings: dict[str, Any], say: Say) -> StartingPoint:
    """Return the model of a run's newest checkpoint; what is done otherwise from here on is said.

    Args:
        folder: The checkpoint.
        recipe: Describes the same model.
        settings: Of this start, see `describe_run`.
        say: Is told.

    Raises:
        CheckpointError: It cannot be loaded.
        ConfigError: The recipe describes another model.
    """
    checkpoint = load_checkpoint(folder)
    check_same(checkpoint, recipe, settings, _TO_RESUME)
    say(f"continuing {folder}")
    if found := changes(checkpoint.trained_with, settings):
        say(f"changed since the last start: {'; '.join(found)}")
    return StartingPoint(checkpoint.model, checkpoint.tokenizer, folder)


def check_same(
    checkpoint: Checkpoint, recipe: Recipe, settings: dict[str, Any], advice: str, *, ignored: Container[str] = ()
) -> None:
    """Refuse a recipe of another model than the checkpoint's: what the recipe says would be ignored.

    Raises:
        ConfigError: Names each setting that differs; ends with `advice`.
    """
    now = {
        **recipe.model_config(checkpoint.tokenizer.vocab_size).to_dict(),
        "source_language": recipe.source_language,
        "target_language": recipe.target_language,
        "vocab_size": recipe.tokenizer.vocab_size,
    }
    then = {
        **checkpoint.model.config.to_dict(),
        "source_language": checkpoint.source_language,
        "target_language": checkpoint.target_language,
    }
    differing = [
        f"{name} was {then[name]} and is {now[name]}" for name in now if name not in ignored and now[name] != then[name]
    ]
    differing += vocabulary_changes(checkpoint.trained_with, settings)
    if differing:
        raise ConfigError(f"{checkpoint.path} was trained with other settings: {'; '.join(differing)}. {advice}")
