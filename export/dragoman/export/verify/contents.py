"""What a bundle says besides its graphs: special ids, languages, tokenizer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dragoman.export.bundle import Manifest
from dragoman.export.verify.cases import Case, random_ids
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.tokenizers import Tokenizer

# Each of random ids, so that pieces occur that no sentence has.
_RANDOM_TEXTS = 100
_RANDOM_TOKENS = 20


@dataclass(frozen=True, slots=True)
class Tokenization:
    """What the comparison of both tokenizers found.

    Attributes:
        texts: That were compared.
        read_differently: Texts that are other ids for the bundle.
        written_differently: Ids that are another text for the bundle.
    """

    texts: int
    read_differently: int
    written_differently: int


def compare_tokenizers(
    found: Tokenizer, expected: Tokenizer, cases: Sequence[Case], generator: random.Random
) -> Tokenization:
    """Let both read the sources and write random ids.

    Args:
        found: The bundle's.
        expected: The checkpoint's.
        cases: Sources.
        generator: Of the ids.
    """
    ids = [random_ids(generator, expected.vocab_size, _RANDOM_TOKENS, expected.special) for _ in range(_RANDOM_TEXTS)]
    texts = [case.text for case in cases] + [expected.decode(row) for row in ids]
    return Tokenization(
        texts=len(texts),
        read_differently=sum(found.encode(text) != expected.encode(text) for text in texts),
        written_differently=sum(found.decode(row) != expected.decode(row) for row in ids),
    )


def manifest_problems(manifest: Manifest, checkpoint: Checkpoint) -> Iterator[str]:
    """Say what the manifest has that the checkpoint has not."""
    if manifest.special != checkpoint.tokenizer.special:
        yield f"special ids are {manifest.special}, the checkpoint's are {checkpoint.tokenizer.special}"
    if manifest.several != checkpoint.languages:
        yield "languages and their tokens are not the checkpoint's"
    config, limits = checkpoint.model.config, manifest.limits
    for side, allowed, most in (
        ("source", limits.max_source_tokens, config.max_source_tokens),
        ("target", limits.max_target_tokens, config.max_target_tokens),
    ):
        if allowed > most:
            yield f"{side}s of up to {allowed} tokens are allowed, the model takes {most}"
