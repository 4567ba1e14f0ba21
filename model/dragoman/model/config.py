"""Model and training configuration: frozen dataclasses, read from TOML, saved as JSON.

Standard library only, so that export and tests can read a configuration without torch.
All problems of a configuration are reported at once.
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from dragoman.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of one encoder-decoder Transformer.

    Attributes:
        vocab_size: V, shared by source and target.
        d_model: E, width of the residual stream.
        d_ff: F, width of the feed-forward layer.
        num_heads: H; head_dim is d_model / num_heads.
        num_encoder_layers: Depth of the encoder.
        num_decoder_layers: Depth of the decoder; its cost is paid once per generated token.
        norm_position: "post" is the paper's LayerNorm(x + f(x)); "pre" is x + f(LayerNorm(x)) with
            a final norm, which trains without care about warm-up.
        dropout: On attention weights, feed-forward activations and sublayer outputs.
        max_source_tokens: Longest source the positions cover, EOS included.
        max_target_tokens: Longest target the positions cover, EOS included.
    """

    vocab_size: int
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    norm_position: Literal["pre", "post"] = "pre"
    dropout: float = 0.1
    max_source_tokens: int = 256
    max_target_tokens: int = 256

    def __post_init__(self) -> None:
        """Check the values together.

        Raises:
            ConfigError: Names every wrong setting.
        """
        problems = [
            f"{name} is {getattr(self, name)}; it must be at least 1"
            for name in (
                "d_model", "d_ff", "num_heads", "num_encoder_layers", "num_decoder_layers",
                "max_source_tokens", "max_target_tokens",
            )
            if getattr(self, name) < 1
        ]  # fmt: skip
        if self.vocab_size < 5:
            problems.append(f"vocab_size is {self.vocab_size}; the four special tokens need 5 or more")
        if self.num_heads >= 1 and self.d_model % self.num_heads:
            problems.append(f"d_model {self.d_model} is not a multiple of num_heads {self.num_heads}")
        if self.d_model % 2:
            problems.append(f"d_model is {self.d_model}; sinusoidal positions need an even number")
        if self.norm_position not in ("pre", "post"):
            problems.append(f"norm_position is {self.norm_position!r}; choose 'pre' or 'post'")
        if not 0.0 <= self.dropout < 1.0:
            problems.append(f"dropout is {self.dropout}; it must be in [0, 1)")
        _raise_all("model", problems)

    @property
    def head_dim(self) -> int:
        """D, width of one attention head."""
        return self.d_model // self.num_heads

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelConfig:
        """Read what `to_dict` wrote; an unknown key is an error."""
        return cls(**_known(cls, "model", values))


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the length curriculum.

    Attributes:
        max_pieces: Pairs with a longer source or target (EOS included) are left out.
        minutes: Share of the run in minutes of wall time; 0 means until the run ends.
    """

    max_pieces: int
    minutes: float = 0.0

    def __post_init__(self) -> None:
        """Check the values."""
        problems = []
        if self.max_pieces < 2:
            problems.append(f"max_pieces is {self.max_pieces}; it must be at least 2")
        if self.minutes < 0:
            problems.append(f"minutes is {self.minutes}; it must not be negative")
        _raise_all("stage", problems)


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """How to train.

    Attributes:
        batch_tokens: Upper limit of padded tokens (rows x longest side) in a batch.
        learning_rate: Peak of the inverse-square-root schedule.
        warmup_steps: Steps of linear warm-up.
        label_smoothing: Probability mass spread over the whole vocabulary.
        clip_norm: Gradients are scaled down to this global L2 norm.
        max_steps: Stop after so many updates; 0 means no limit.
        max_minutes: Stop after so many minutes of training, resumed time included; 0 means no limit.
        checkpoint_minutes: Save this often.
        validate_pairs: Pairs of the validation file used for the periodic loss.
        seed: Of initialisation, dropout and batch order.
        stages: Length curriculum; empty means one stage that covers the model's limits.
    """

    batch_tokens: int = 4096
    learning_rate: float = 1e-3
    warmup_steps: int = 1000
    label_smoothing: float = 0.1
    clip_norm: float = 1.0
    max_steps: int = 0
    max_minutes: float = 0.0
    checkpoint_minutes: float = 5.0
    validate_pairs: int = 500
    seed: int = 1
    stages: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        """Check the values together.

        Raises:
            ConfigError: Names every wrong setting.
        """
        problems = [
            f"{name} is {getattr(self, name)}; it must be greater than 0"
            for name in ("batch_tokens", "learning_rate", "warmup_steps", "clip_norm")
            if getattr(self, name) <= 0
        ]
        problems += [
            f"{name} is {getattr(self, name)}; it must not be negative"
            for name in ("max_steps", "max_minutes", "checkpoint_minutes", "validate_pairs")
            if getattr(self, name) < 0
        ]
        if not 0.0 <= self.label_smoothing < 1.0:
            problems.append(f"label_smoothing is {self.label_smoothing}; it must be in [0, 1)")
        if not self.max_steps and not self.max_minutes:
            problems.append("max_steps and max_minutes are both 0; set one of them so that training ends")
        _raise_all("training", problems)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        """Read what `to_dict` wrote; an unknown key is an error."""
        known = _known(cls, "training", values)
        stages = tuple(Stage(**_known(Stage, "stage", stage)) for stage in known.pop("stages", ()))
        return cls(**known, stages=stages)


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """How to train the subword vocabulary.

    Attributes:
        vocab_size: Pieces, special tokens and the 256 byte pieces included.
        sample_pairs: Upper limit of pairs read for training it.
    """

    vocab_size: int = 8000
    sample_pairs: int = 1_000_000


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything one training run needs besides its data: the content of a TOML file.

    Attributes:
        source_language: BCP-47 tag.
        target_language: BCP-47 tag.
        model: Keyword arguments of `ModelConfig` without `vocab_size`, which the tokenizer decides.
        tokenizer: Vocabulary settings.
        training: Training settings.
    """

    source_language: str
    target_language: str
    model: dict[str, Any] = field(default_factory=dict)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    training: TrainConfig = field(default_factory=lambda: TrainConfig(max_steps=10_000))

    def model_config(self, vocab_size: int) -> ModelConfig:
        """Return the model's shape for a vocabulary of `vocab_size` pieces."""
        return ModelConfig.from_dict({**self.model, "vocab_size": vocab_size})

    @classmethod
    def load(cls, path: Path) -> Recipe:
        """Read a recipe.

        Args:
            path: TOML file with the tables `languages`, `model`, `tokenizer` and `training`.

        Raises:
            ConfigError: The file cannot be read or a setting is unknown or wrong.
        """
        try:
            content = tomllib.loads(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"cannot read the recipe {path}: {error}") from error
        tables = {"languages", "model", "tokenizer", "training"}
        unknown = sorted(set(content) - tables)
        if unknown:
            raise ConfigError(f"{path}: unknown table {unknown}; allowed are {sorted(tables)}")
        languages = content.get("languages", {})
        missing = sorted({"source", "target"} - set(languages))
        if missing:
            raise ConfigError(f'{path}: [languages] lacks {missing}; for example source = "en"')
        recipe = cls(
            source_language=languages["source"],
            target_language=languages["target"],
            model=content.get("model", {}),
            tokenizer=TokenizerConfig(**_known(TokenizerConfig, "tokenizer", content.get("tokenizer", {}))),
            training=TrainConfig.from_dict(content.get("training", {})),
        )
        recipe.model_config(recipe.tokenizer.vocab_size)  # wrong settings show before any work is done
        return recipe


def _known(cls: type, what: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `values`, or raise for keys that `cls` has no field for."""
    allowed = {f.name for f in fields(cls)}
    unknown = sorted(set(values) - allowed)
    if unknown:
        raise ConfigError(f"unknown {what} setting {unknown}; allowed are {sorted(allowed)}")
    return dict(values)


def _raise_all(what: str, problems: list[str]) -> None:
    if problems:
        raise ConfigError(f"{what} configuration: " + "; ".join(problems))
