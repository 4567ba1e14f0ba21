"""Which numbers a model's activations reach on real texts: what fixed 8-bit scales are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnxscript import ir

from dragoman.export.activations import Probe, measure
from dragoman.export.errors import ExportError
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


def calibrate(
    encoder: ir.Model, decoder: ir.Model, pairs: Sequence[CalibrationPair], special: SpecialIds
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the largest magnitude of each activation in front of a product, by name, of both graphs.

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
    with (
        Probe(encoder, inputs_of_products(encoder)) as first,
        Probe(decoder, inputs_of_products(decoder)) as second,
    ):
        for start in range(0, len(ordered), _BATCH):
            batch = ordered[start : start + _BATCH]
            found = measure(first, second, [pair.source for pair in batch], [pair.target for pair in batch], special)
            for total, part in zip((of_encoder, of_decoder), found, strict=True):
                _raise_to(total, part)
    return of_encoder, of_decoder


def _raise_to(total: dict[str, float], part: Mapping[str, float]) -> None:
    for name, magnitude in part.items():
        if magnitude != magnitude:  # NaN
            raise ExportError(f"the model computes what is no number ({name}) in fp32; it cannot be calibrated")
        total[name] = max(total.get(name, 0.0), magnitude)
