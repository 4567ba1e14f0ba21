"""Which numbers a model's activations reach on real texts: what fixed 8-bit scales are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnxscript import ir

from dragoman.export.activations import Probe, measure
from dragoman.export.cache_scales import largest_by_channel, scales_of
from dragoman.export.errors import ExportError
from dragoman.export.rewriting import Array
from dragoman.export.static import inputs_of_products
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.languages import Languages
from dragoman.model.readers import Pair
from dragoman.model.vocab import SpecialIds

# More texts hardly raise the maxima.
MOST_TEXTS = 512
_BATCH = 16


@dataclass(frozen=True, slots=True)
class CalibrationPair:
    """A text and its translation.

    Attributes:
        source: Token ids with EOS and what names the languages.
        target: Token ids with what the target begins with and EOS, without the start token.
    """

    source: Sequence[int]
    target: Sequence[int]


def tokenize(checkpoint: Checkpoint, pairs: Iterable[Pair], languages: tuple[str, str]) -> list[CalibrationPair]:
    """Return the pairs as tokens, as a server would give them to the graphs; those that are too long are left out.

    Args:
        checkpoint: Whose tokenizer and limits.
        pairs: Texts.
        languages: Of source and target, BCP-47 tags.
    """
    own = checkpoint.languages or Languages.pair(checkpoint.source_language, checkpoint.target_language)
    config, tokenizer = checkpoint.model.config, checkpoint.tokenizer
    found = []
    for pair in pairs:
        source = own.frame(tokenizer.encode(pair.source), *languages)
        target = [*own.first_target(languages[1]), *tokenizer.encode_target(pair.target)]
        if len(source) <= config.max_source_tokens and len(target) < config.max_target_tokens:
            found.append(CalibrationPair(source, target))
    return found


@dataclass(frozen=True, slots=True)
class Calibration:
    """What two graphs reached on texts.

    Attributes:
        encoder: Largest magnitude of each activation in front of a product, by name.
        decoder: Likewise.
        scales: Of the keys and values, [H, D] float32 by name (see `cache_scales`).
    """

    encoder: dict[str, float]
    decoder: dict[str, float]
    scales: dict[str, Array]


def calibrate(
    encoder: ir.Model, decoder: ir.Model, pairs: Sequence[CalibrationPair], special: SpecialIds
) -> Calibration:
    """Read texts, and say how large the graphs' numbers become.

    Args:
        encoder: fp32 graph; not changed.
        decoder: fp32 graph; not changed.
        pairs: The first `MOST_TEXTS` are read.
        special: What pads and starts.

    Raises:
        ExportError: There are no texts, or the model computes what is no number.
    """
    if not pairs:
        raise ExportError("there is no text to calibrate with; give --data FILE.tsv with pairs")
    ordered = sorted(pairs[:MOST_TEXTS], key=lambda pair: (len(pair.source), len(pair.target)))
    of_encoder: dict[str, float] = {}
    of_decoder: dict[str, float] = {}
    channels: dict[str, Array] = {}
    with (
        Probe(encoder, inputs_of_products(encoder)) as first,
        Probe(decoder, inputs_of_products(decoder)) as second,
    ):
        for start in range(0, len(ordered), _BATCH):
            batch = ordered[start : start + _BATCH]
            found = measure(first, second, [pair.source for pair in batch], [pair.target for pair in batch], special)
            _raise_to(of_encoder, found.encoder)
            _raise_to(of_decoder, found.decoder)
            for name, largest in _channels(decoder, batch, found.outputs).items():
                channels[name] = np.maximum(channels.get(name, largest), largest)
    return Calibration(of_encoder, of_decoder, scales_of(channels))


def _channels(decoder: ir.Model, batch: Sequence[CalibrationPair], outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the largest magnitude of each channel of keys and values, [H, D] by name, without padding."""
    sources = np.array([len(pair.source) for pair in batch])
    targets = np.array([1 + len(pair.target) for pair in batch])  # behind the start token
    largest = {}
    for name in (str(value.name) for value in decoder.graph.inputs):
        if name in outputs:  # the encoder's: those of the source
            largest[name] = largest_by_channel(outputs[name], sources)
        elif (written := outputs.get(f"updated_{name}")) is not None and written.ndim == 4:  # not cells
            largest[name] = largest_by_channel(written, targets)
    return largest


def _raise_to(total: dict[str, float], part: Mapping[str, float]) -> None:
    for name, magnitude in part.items():
        if magnitude != magnitude:  # NaN
            raise ExportError(f"the model computes what is no number ({name}) in fp32; it cannot be calibrated")
        total[name] = max(total.get(name, 0.0), magnitude)
