"""The recipe that describes an imported model, so that training can go on from it."""

from __future__ import annotations

from dataclasses import fields

from dragoman.model.checkpoint import Checkpoint
from dragoman.model.config import ModelConfig

# The vocabulary decides about them.
_SIZES = ("vocab_size", "source_vocab_size")


def fine_tuning_recipe(checkpoint: Checkpoint) -> str | None:
    """Return a recipe for `dragoman train --start-from`, TOML; None for a model that training cannot go on from.

    That is one of several languages, or with a source vocabulary of its own.
    """
    config = checkpoint.model.config
    if checkpoint.languages is not None or config.source_vocab_size:
        return None
    defaults = {field.name: field.default for field in fields(ModelConfig)}
    settings = {
        name: value for name, value in config.to_dict().items() if name not in _SIZES and value != defaults[name]
    }
    return "\n".join(
        [
            "# For `dragoman train --start-from`. [model] describes what was imported; [training] is yours to choose.",
            "[languages]",
            f'source = "{checkpoint.source_language}"',
            f'target = "{checkpoint.target_language}"',
            "[tokenizer]",
            f"vocab_size = {config.vocab_size}",
            "[model]",
            *(f"{name} = {_toml(value)}" for name, value in settings.items()),
            "[training]",
            "learning_rate = 1e-4",
            "warmup_steps = 200",
            "max_minutes = 30",
            "",
        ]
    )


def _toml(value: str | float) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else repr(value)
