"""Everything one training run is told: frozen dataclasses, read from a TOML file.

All problems of a recipe are reported at once.
"""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from dragoman.model.config import ModelConfig
from dragoman.model.errors import ConfigError
from dragoman.model.presets import PRESETS
from dragoman.model.settings import build, known, raise_all, wrong_types

MAX_SEED = 2**32 - 1
"""Largest seed: torch and the processes of a run derive 64-bit seeds from it."""

MAX_VOCAB_SIZE = 2**31 - 1
"""Ids are 32-bit numbers in SentencePiece."""


@dataclass(frozen=True, slots=True)
class LanguagePair:
    """What is translated into what: the table [languages].

    Attributes:
        source: BCP-47 tag.
        target: BCP-47 tag of another language.
    """

    source: str
    target: str

    def __post_init__(self) -> None:
        """Check the tags.

        Raises:
            ConfigError: Names every wrong one.
        """
        raise_all("languages", wrong_types(self))
        problems = [
            f'{name} is {tag!r}; it must be a BCP-47 tag, for example "en" or "pt-BR"'
            for name, tag in asdict(self).items()
            if not tag or tag.split() != [tag]
        ]
        if not problems and self.source.lower() == self.target.lower():
            problems.append(
                f'source and target are both {self.target!r}; tell two kinds of one language apart, as "de" and '
                '"de-x-simple"'
            )
        raise_all("languages", problems)


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the length curriculum.

    Attributes:
        max_pieces: Pairs with a longer source or target (EOS included) are left out.
        minutes: Share of the run in minutes of wall time; the last stage lasts until the run ends.
    """

    max_pieces: int
    minutes: float = 0.0

    def __post_init__(self) -> None:
        """Check the values."""
        problems = wrong_types(self)
        if not problems and self.max_pieces < 2:
            problems.append(f"max_pieces is {self.max_pieces}; it must be at least 2")
        if not problems and self.minutes < 0:
            problems.append(f"minutes is {self.minutes}; it must not be negative")
        raise_all("stage", problems)


@dataclass(frozen=True, slots=True)
class Augmentation:
    """Shares of training pairs that are altered, anew in each epoch (see `augment`).

    Attributes:
        capitals: Both sides in CAPITALS.
        title: The source In Title Case, the target as it is.
        lower: The source in lower case, the target as it is.
        copies: A URL, number, file name, e-mail address or emoji is added to both sides.
        lone_copies: The pair is replaced by such a token alone, equal on both sides.
        numbers: The numbers that both sides have in common are replaced by others.
        bpe_dropout: Not a share of pairs: the probability that a merge of the tokenizer is left out.
    """

    capitals: float = 0.0
    title: float = 0.0
    lower: float = 0.0
    copies: float = 0.0
    lone_copies: float = 0.0
    numbers: float = 0.0
    bpe_dropout: float = 0.0

    def __post_init__(self) -> None:
        """Check that each share is a probability."""
        raise_all("augmentation", wrong_types(self))
        problems = [
            f"{name} is {value}; it must be in [0, 1]" for name, value in asdict(self).items() if not 0 <= value <= 1
        ]
        if self.capitals + self.title + self.lower > 1:
            problems.append("capitals, title and lower exclude each other; their sum must not exceed 1")
        raise_all("augmentation", problems)

    @property
    def changes_text(self) -> bool:
        """Whether any pair's text may change."""
        return any(value for name, value in asdict(self).items() if name != "bpe_dropout")


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """How to train.

    Attributes:
        batch_tokens: Upper limit of padded tokens (rows x longest side) in a batch of one process.
        accumulate: Batches of each process whose gradients are added up for one update.
        optimizer: "adam", or "muon" for the matrices inside the layers (with AdamW for the rest).
        learning_rate: Peak of the schedule; for "noam" the factor before its formula, usually 1.
        muon_learning_rate: Peak for the matrices that Muon updates.
        weight_decay: Decoupled from the gradient (AdamW); not for norms and biases.
        schedule: How the rate falls after warm-up, see `schedule`.
        warmup_steps: Steps of linear warm-up.
        label_smoothing: Probability mass spread over the whole vocabulary.
        clip_norm: Gradients are scaled down to this global L2 norm.
        precision: "fp32", "bf16" or "fp16" autocast of the matrix products; "auto" takes bf16
            where the device computes in it.
        compile: Compile the model with `torch.compile` (needs a C++ compiler on the CPU).
        ema_decay: Weights of checkpoints are an exponential moving average with this decay; 0 turns
            it off.
        max_steps: Stop after so many updates; 0 means no limit.
        max_minutes: Stop after so many minutes of training, resumed time included; 0 means no limit.
        checkpoint_minutes: Save and validate this often.
        keep_checkpoints: Newest checkpoints kept; more than one allows `dragoman average`.
        validate_pairs: Pairs of the validation file used for the periodic loss.
        validate_chrf_pairs: Pairs translated for the periodic chrF; 0 leaves it out.
        patience: Stop after so many validations without a better chrF (without chrF: loss); 0 never.
        shuffle_pairs: Pairs held in memory and shuffled at once; a larger corpus is streamed.
        seed: Of initialisation, dropout, augmentation and batch order; 0 to `MAX_SEED`.
        origin_shares: For an origin of the corpus (its third column), the share of its pairs that
            each epoch takes, drawn anew; others are taken whole.
        augmentation: Alterations of the training text.
        stages: Length curriculum; empty means one stage that covers the model's limits.
    """

    batch_tokens: int = 4096
    accumulate: int = 1
    optimizer: Literal["adam", "muon"] = "adam"
    learning_rate: float = 1e-3
    muon_learning_rate: float = 2e-2
    weight_decay: float = 0.0
    schedule: Literal["inverse_square_root", "noam", "cosine", "linear", "constant"] = "inverse_square_root"
    warmup_steps: int = 1000
    label_smoothing: float = 0.1
    clip_norm: float = 1.0
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "fp32"
    compile: bool = False
    ema_decay: float = 0.0
    max_steps: int = 0
    max_minutes: float = 0.0
    checkpoint_minutes: float = 5.0
    keep_checkpoints: int = 1
    validate_pairs: int = 500
    validate_chrf_pairs: int = 0
    patience: int = 0
    shuffle_pairs: int = 1_000_000
    seed: int = 1
    origin_shares: dict[str, float] = field(default_factory=dict)
    augmentation: Augmentation = field(default_factory=Augmentation)
    stages: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        """Check the values together.

        Raises:
            ConfigError: Names every wrong setting.
        """
        raise_all("training", wrong_types(self))
        problems = [
            f"{name} is {getattr(self, name)}; it must be greater than 0"
            for name in (
                "batch_tokens", "accumulate", "learning_rate", "muon_learning_rate", "warmup_steps", "clip_norm",
                "keep_checkpoints", "shuffle_pairs",
            )
            if getattr(self, name) <= 0
        ]  # fmt: skip
        problems += [
            f"{name} is {getattr(self, name)}; it must not be negative"
            for name in (
                "weight_decay", "max_steps", "max_minutes", "checkpoint_minutes", "validate_pairs",
                "validate_chrf_pairs", "patience",
            )
            if getattr(self, name) < 0
        ]  # fmt: skip
        problems += [
            f"{name} is {getattr(self, name)}; it must be in [0, 1)"
            for name in ("label_smoothing", "ema_decay")
            if not 0.0 <= getattr(self, name) < 1.0
        ]
        problems += [
            f"origin_shares.{origin} is {share}; it must be in [0, 1]"
            for origin, share in self.origin_shares.items()
            if not 0.0 <= share <= 1.0
        ]
        if not 0 <= self.seed <= MAX_SEED:
            problems.append(f"seed is {self.seed}; it must be from 0 to {MAX_SEED}")
        if self.patience and not self.validate_pairs and not self.validate_chrf_pairs:
            problems.append("patience needs validate_pairs or validate_chrf_pairs: what gets no better?")
        if any(not stage.minutes for stage in self.stages[:-1]):
            problems.append("a stage before the last one has no minutes; the later ones would never begin")
        if not self.max_steps and not self.max_minutes:
            problems.append("max_steps and max_minutes are both 0; set one of them so that training ends")
        raise_all("training", problems)

    def check_stages(self, max_source_tokens: int, max_target_tokens: int) -> None:
        """Compare the stages with what a model covers.

        Raises:
            ConfigError: A stage would admit pairs that are too long on both sides.
        """
        limit = max(max_source_tokens, max_target_tokens)
        raise_all(
            "training",
            [
                f"a stage has max_pieces {stage.max_pieces}, but the model's positions end at {limit}; "
                "lower it, or raise max_source_tokens or max_target_tokens in [model]"
                for stage in self.stages
                if stage.max_pieces > limit
            ],
        )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        """Read a recipe's table; an unknown key is an error."""
        values = known(cls, "training", values)
        stages = values.pop("stages", [])
        if not isinstance(stages, list):
            raise ConfigError(
                f"training configuration: stages is {stages!r}; it must be a list of tables, for example "
                "[{max_pieces = 64, minutes = 10}, {max_pieces = 256}]"
            )
        augmentation = build(Augmentation, "augmentation", values.pop("augmentation", {}))
        return cls(**values, stages=tuple(build(Stage, "stage", stage) for stage in stages), augmentation=augmentation)


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """How to train the subword vocabulary.

    Attributes:
        vocab_size: Pieces, special tokens and the 256 byte pieces included.
        sample_pairs: Upper limit of pairs read for training it.
        split_digits: Each digit is a piece of its own, which makes numbers easy to copy.
        user_symbols: Pieces that are never split, for example markup tags.
    """

    vocab_size: int = 8000
    sample_pairs: int = 1_000_000
    split_digits: bool = False
    user_symbols: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: Names every wrong setting.
        """
        raise_all("tokenizer", wrong_types(self))
        problems = [
            f"{name} is {getattr(self, name)}; it must be greater than 0"
            for name in ("vocab_size", "sample_pairs")
            if getattr(self, name) <= 0
        ]
        if self.vocab_size > MAX_VOCAB_SIZE:
            problems.append(f"vocab_size is {self.vocab_size}; it must be at most {MAX_VOCAB_SIZE}")
        if not all(self.user_symbols) or len(set(self.user_symbols)) < len(self.user_symbols):
            problems.append(f"user_symbols is {list(self.user_symbols)}; each must be a text, and another one")
        raise_all("tokenizer", problems)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TokenizerConfig:
        """Read a recipe's table; an unknown key is an error."""
        values = known(cls, "tokenizer", values)
        symbols = values.get("user_symbols", ())
        return cls(**{**values, "user_symbols": tuple(symbols) if isinstance(symbols, list) else symbols})


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything one training run needs besides its data: the content of a TOML file.

    Attributes:
        source_language: BCP-47 tag.
        target_language: BCP-47 tag.
        model: Keyword arguments of `ModelConfig` without `vocab_size`, which the tokenizer decides;
            `preset` names a set of them to start from.
        tokenizer: Vocabulary settings.
        training: Training settings.
    """

    source_language: str
    target_language: str
    model: dict[str, Any] = field(default_factory=dict)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    training: TrainConfig = field(default_factory=lambda: TrainConfig(max_steps=10_000))

    def model_config(self, vocab_size: int) -> ModelConfig:
        """Return the model's shape for a vocabulary of `vocab_size` pieces.

        Raises:
            ConfigError: A setting is unknown or wrong.
        """
        if not isinstance(self.model, dict):
            raise ConfigError(f"model configuration is {self.model!r}; it must be a table of settings: [model]")
        settings = dict(self.model)
        if "vocab_size" in settings:
            raise ConfigError(
                f"model.vocab_size is {settings['vocab_size']!r}: the vocabulary decides about it; "
                "set vocab_size in [tokenizer]"
            )
        if settings.get("source_vocab_size"):
            raise ConfigError(
                "model.source_vocab_size: training makes one vocabulary for source and target; leave it out"
            )
        preset = settings.pop("preset", None)
        if preset is not None and not (isinstance(preset, str) and preset in PRESETS):
            raise ConfigError(f"model.preset is {preset!r}; choose one of {', '.join(PRESETS)}")
        return ModelConfig.from_dict({**PRESETS.get(preset or "", {}), **settings, "vocab_size": vocab_size})

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
        languages = build(LanguagePair, "languages", content.get("languages", {}))
        recipe = cls(
            source_language=languages.source,
            target_language=languages.target,
            model=content.get("model", {}),
            tokenizer=TokenizerConfig.from_dict(content.get("tokenizer", {})),
            training=TrainConfig.from_dict(content.get("training", {})),
        )
        # Wrong settings show before any work is done.
        model = recipe.model_config(recipe.tokenizer.vocab_size)
        recipe.training.check_stages(model.max_source_tokens, model.max_target_tokens)
        return recipe
