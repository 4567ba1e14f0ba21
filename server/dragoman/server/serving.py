"""A loaded model, what its calls may ask for, and how it is described to callers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from dragoman.export.bundle import Manifest
from dragoman.model.tokenizers import Tokenizer
from dragoman.server import decoding
from dragoman.server.decoding import Allowed
from dragoman.server.replicas import Replicas
from dragoman.server.suppression import Suppressor
from dragoman.v1 import translation_pb2 as pb

# A model of 200 languages has 40,000 pairs, too many for one answer.
_MOST_PAIRS = 1000


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What one call may ask for."""

    max_texts: int
    max_message_bytes: int
    max_queued_texts: int


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model, ready to serve.

    Attributes:
        manifest: Of its bundle.
        tokenizer: Of its bundle.
        engine: Run it.
        device: What it runs on.
        requested_device: What the configuration asked for.
        allowed: What calls may ask of it.
        suppressor: Finds the tokens of words that may not appear.
    """

    manifest: Manifest
    tokenizer: Tokenizer
    engine: Replicas
    device: str
    requested_device: str
    allowed: Allowed = field(init=False)
    suppressor: Suppressor = field(init=False)

    def __post_init__(self) -> None:
        """Derive what depends on all of it; reads the whole vocabulary."""
        allowed = Allowed(
            self.manifest.name,
            self.manifest.shape.vocab_size,
            self.manifest.limits.max_target_tokens,
            self.engine.most_rows,
            self.engine.can_align,
        )
        object.__setattr__(self, "allowed", allowed)
        object.__setattr__(self, "suppressor", Suppressor(self.tokenizer))


def describe(model: Model, limits: CallLimits) -> pb.Model:
    """Return the description of a model."""
    manifest = model.manifest
    pairs = itertools.islice(manifest.languages.pairs(), _MOST_PAIRS)
    added = model.tokenizer.added_ids + manifest.languages.longest_frame
    return pb.Model(
        name=manifest.name,
        version=manifest.version,
        language_pairs=[pb.LanguagePair(source_language=one, target_language=other) for one, other in pairs],
        limits=pb.Limits(
            max_texts=limits.max_texts,
            max_source_tokens=manifest.limits.max_source_tokens - added,
            max_target_tokens=manifest.limits.max_target_tokens,
            max_message_bytes=limits.max_message_bytes,
            max_queued_texts=limits.max_queued_texts,
            max_beam_size=model.allowed.max_beam_size,
            max_num_hypotheses=decoding.MOST_SAMPLES,
            max_return_alternatives=model.allowed.max_alternatives,
            max_suppressed_texts=decoding.MOST_SUPPRESSED,
            max_stop_sequences=decoding.MOST_STOP_SEQUENCES,
            max_option_characters=decoding.MOST_CHARACTERS,
        ),
        requested_device=model.requested_device,
        device=model.device,
        precision=manifest.precision,
        alignment=model.allowed.can_align,
    )
