"""What the options of a Marian model say about its computation, and which of them we can follow.

Options are the YAML that Marian keeps in a model file ("special:model.yml") or beside it. An option that changes
the computation in a way that our Transformer has no place for is refused by name, all at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from dragoman.model.config import ModelConfig
from dragoman.model.errors import ConfigError, ImportFailed

# Option: the values under which Marian computes what we compute. The first one is Marian's default.
_ALLOWED: dict[str, tuple[str, ...]] = {
    "right-left": ("false",),
    "ulr": ("false",),
    "lemma-dim-emb": ("0",),
    "lemma-dependency": ("",),
    "transformer-ffn-depth": ("2",),
    "transformer-decoder-ffn-depth": ("0", "2"),
    "transformer-pool": ("false",),
    "transformer-rnn-projection": ("false",),
    "transformer-train-position-embeddings": ("false",),
    "transformer-train-positions": ("false",),
    "transformer-disable-position-embeddings": ("false",),
    "transformer-attention-mask": ("default", ""),
    "transformer-no-bias": ("false",),
    "transformer-no-affine": ("false",),
}
# Read elsewhere in this module, or without a say in what a trained model computes.
_KNOWN = re.compile(
    "transformer-(heads|dim-ffn|decoder-dim-ffn|ffn-activation|preprocess|postprocess|postprocess-emb|postprocess-top|"
    "decoder-autoreg|no-projection|tied-layers|guided-alignment-layer|depth-scaling|"
    "dropout.*|.*aan.*|alibi-.*)"
)
# Before and behind a sublayer, without dropout: where its norm stands and what kind it is.
_NORMS: dict[tuple[str, str], tuple[Literal["pre", "post"], Literal["layer", "rms"]]] = {
    ("", "an"): ("post", "layer"),
    ("", "ar"): ("post", "rms"),
    ("n", "a"): ("pre", "layer"),
    ("r", "a"): ("pre", "rms"),
}
_TOPS = {"layer": ("", "n"), "rms": ("", "r")}
_ACTIVATIONS: dict[str, Literal["relu", "silu", "gelu"]] = {"relu": "relu", "swish": "silu", "gelu": "gelu"}
# Until then, self-attention behind a norm took its keys and values from in front of it.
_NORMED_KEYS_SINCE = (1, 10, 25)
NORM_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Layout:
    """What the names of a model's tensors depend on, besides its configuration.

    Attributes:
        config: Ours, for the same computation.
        attention_output: Attention has a matrix behind its heads.
        output_bias: The logits have a bias.
        decoder_layers: Per decoder layer, the number of the one whose tensors it uses, from 1.
    """

    config: ModelConfig
    attention_output: bool
    output_bias: bool
    decoder_layers: tuple[int, ...]


class Options:
    """Marian's options, by name."""

    def __init__(self, values: Mapping[str, Any], origin: Path) -> None:
        """Wrap them.

        Args:
            values: Texts, and lists and tables of them.
            origin: For messages.
        """
        self._values = values
        self.origin = origin

    def names(self) -> list[str]:
        """Return all that are given."""
        return list(self._values)

    def text(self, name: str, default: str = "") -> str:
        """Return a value as written; that of a list is its items, joined by a space."""
        value = self._values.get(name, default)
        return " ".join(map(str, value)) if isinstance(value, list) else str(value)

    def flag(self, name: str) -> bool:
        """Whether an option is on."""
        return self.text(name).lower() in ("true", "yes", "on", "1")

    def number(self, name: str, default: int) -> int:
        """Return a whole number.

        Raises:
            ImportFailed: It is none.
        """
        text = self.text(name, str(default))
        if not re.fullmatch("-?[0-9]+", text):
            raise ImportFailed(f"{self.origin}: option {name} is {text!r}; it must be a whole number")
        return int(text)

    def items(self, name: str) -> list[str]:
        """Return a list; a single value is a list of one."""
        value = self._values.get(name, [])
        return [str(item) for item in (value if isinstance(value, list) else [value])]


def parse_options(content: bytes, origin: Path) -> Options:
    """Read options from YAML.

    All values stay texts: PyYAML would make a truth value of `no` and a number of `1e3`, yaml-cpp does not.

    Raises:
        ImportFailed: It is no YAML, or holds no table.
    """
    try:
        values = yaml.load(content.rstrip(b"\0").decode(), yaml.BaseLoader)  # noqa: S506  # makes texts only
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ImportFailed(f"{origin}: cannot be read as YAML: {error}") from error
    if not isinstance(values, dict):
        raise ImportFailed(f"{origin}: holds no options, but {type(values).__name__}")
    return Options(values, origin)


def read_layout(
    options: Options, *, source_size: int, target_size: int, max_source_tokens: int, max_target_tokens: int
) -> Layout:
    """Return what a model computes.

    Args:
        options: Of the model.
        source_size: Number of source ids of our model; of both where they are shared.
        target_size: Number of target ids of our model, the start token included.
        max_source_tokens: Longest source; Marian itself has no limit.
        max_target_tokens: Longest target, likewise.

    Raises:
        ImportFailed: Names every option that we cannot follow.
    """
    problems = _refused(options)
    norm, problem = _norm(options)
    problems += problem
    activation = options.text("transformer-ffn-activation", "swish")
    if activation not in _ACTIVATIONS:
        problems.append(f"transformer-ffn-activation is {activation!r}; supported are {', '.join(_ACTIVATIONS)}")
    layers, problem = _decoder_layers(options)
    problems += problem
    if problems:
        raise ImportFailed(f"{options.origin}: this model cannot be imported: {'; '.join(problems)}")
    tied = _tied(options)
    position, kind, final = norm
    try:
        config = ModelConfig(
            vocab_size=target_size,
            source_vocab_size=0 if tied in ("all", "source-target") else source_size,
            d_model=options.number("dim-emb", 512),
            d_ff=options.number("transformer-dim-ffn", 2048),
            num_heads=options.number("transformer-heads", 8),
            num_encoder_layers=options.number("enc-depth", 1),
            num_decoder_layers=len(layers),
            norm_position=position,
            norm=kind,
            final_norm=final,
            norm_epsilon=NORM_EPSILON,
            max_source_tokens=max_source_tokens,
            max_target_tokens=max_target_tokens,
            positions="sinusoidal-half",
            activation=_ACTIVATIONS[activation],
            tied_embeddings=tied,
            # Always: it keeps the start token, which Marian has no id for, out of the softmax.
            output_bias=True,
            decoder_layer="ssru" if _is_recurrent(options) else "self-attention",
        )
    except ConfigError as error:
        raise ImportFailed(f"{options.origin}: {error}") from error
    return Layout(config, not options.flag("transformer-no-projection"), not options.flag("output-omit-bias"), layers)


def _refused(options: Options) -> list[str]:
    problems = []
    for name, allowed in _ALLOWED.items():
        value = options.text(name, allowed[0])
        if (value.lower() if value.lower() in ("true", "false") else value) not in allowed:
            problems.append(f"{name} is {value!r}; supported is {' or '.join(v for v in allowed if v) or 'none'}")
    if (kind := options.text("type")) != "transformer":
        problems.append(f"type is {kind!r}; supported is transformer")
    inputs = options.items("input-types")
    if inputs not in ([], ["sequence", "sequence"]):
        problems.append(f"input-types is {inputs}; supported is one source and one target sequence")
    if (sides := len(options.items("dim-vocabs"))) > 2:
        problems.append(f"dim-vocabs has {sides} numbers; supported are one source and one target")
    # "d" is dropout.
    if embedding := options.text("transformer-postprocess-emb", "d").replace("d", ""):
        problems.append(f"transformer-postprocess-emb has {embedding!r}; supported is dropout alone")
    ours, theirs = options.number("transformer-dim-ffn", 2048), options.number("transformer-decoder-dim-ffn", 0)
    if theirs not in (0, ours):
        problems.append(f"transformer-decoder-dim-ffn is {theirs}; it must be 0 or equal transformer-dim-ffn, {ours}")
    unknown = [
        name
        for name in options.names()
        if name.startswith("transformer-") and name not in _ALLOWED and not _KNOWN.fullmatch(name)
    ]
    problems += [
        f"{name} is not known here" for name in unknown if options.text(name).lower() not in ("", "false", "0")
    ]
    return problems


def _norm(options: Options) -> tuple[tuple[Literal["pre", "post"], Literal["layer", "rms"], bool], list[str]]:
    before, behind, top = (
        options.text(f"transformer-{name}", default).replace("d", "")
        for name, default in (("preprocess", ""), ("postprocess", "dan"), ("postprocess-top", ""))
    )
    if (before, behind) not in _NORMS:
        combinations = ", ".join(f"{pre!r} with {post!r}" for pre, post in _NORMS)
        return ("post", "layer", False), [
            f"transformer-preprocess is {before!r} and transformer-postprocess {behind!r} (without dropout); "
            f"supported are {combinations}"
        ]
    position, kind = _NORMS[before, behind]
    problems = []
    if top not in _TOPS[kind]:
        problems.append(f"transformer-postprocess-top has {top!r}; supported is {' or '.join(map(repr, _TOPS[kind]))}")
    version = options.text("version")
    numbers = tuple(map(int, found.groups())) if (found := re.search(r"(\d+)\.(\d+)\.(\d+)", version)) else None
    if position == "pre" and (numbers is None or numbers < _NORMED_KEYS_SINCE):
        since = ".".join(map(str, _NORMED_KEYS_SINCE))
        problems.append(
            f"transformer-preprocess is {before!r} and version is {version or 'not given'}: before Marian {since}, "
            "keys and values of self-attention were not normalised with it, which we cannot do"
        )
    return (position, kind, bool(top)), problems


def _decoder_layers(options: Options) -> tuple[tuple[int, ...], list[str]]:
    problems = []
    kind = options.text("transformer-decoder-autoreg", "self-attention")
    if kind == "rnn":
        if (cell := options.text("dec-cell", "gru")) != "ssru":
            problems.append(f"dec-cell is {cell!r}; supported is ssru")
        if options.flag("layer-normalization"):
            problems.append("layer-normalization is on; supported is a cell without")
    elif kind != "self-attention":
        problems.append(f"transformer-decoder-autoreg is {kind!r}; supported are self-attention and rnn")
    depth = options.number("dec-depth", 1)
    tied = [int(number) for number in options.items("transformer-tied-layers") if number.isdigit()]
    if tied and len(tied) != depth:
        problems.append(f"transformer-tied-layers has {len(tied)} numbers for {depth} layers")
    return tuple(tied or range(1, depth + 1)), problems


def _is_recurrent(options: Options) -> bool:
    return options.text("transformer-decoder-autoreg", "self-attention") == "rnn"


def _tied(options: Options) -> Literal["all", "source-target", "target-output", "none"]:
    source = options.flag("tied-embeddings-src")
    output = options.flag("tied-embeddings")
    if options.flag("tied-embeddings-all") or (source and output):
        return "all"
    if source:
        return "source-target"
    return "target-output" if output else "none"
