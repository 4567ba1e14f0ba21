"""Remove duplicates and divide pairs into training, validation and test.

Pure functions on lists of pairs. Equality is equality of `match_key`, so
texts that differ only in case, spacing or punctuation count as one: they must
not be repeated, nor sit on both sides of the split.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dragoman.model.corpus.clean import match_key

VALID_PAIRS = 2000
# A small corpus gives up at most this share of its pairs to validation.
MAX_VALID_SHARE = 0.05

_HASH_RANGE = 1 << 64


class Record(NamedTuple):
    """Hold one pair and the name of the source it came from."""

    source: str
    target: str
    origin: str


@dataclass(frozen=True, slots=True)
class Split:
    """Hold the parts of a corpus.

    Attributes:
        train: Training pairs.
        valid: Validation pairs, of the same origins as the training pairs.
        tests: Test pairs by origin.
        leaked: Number of pairs removed from each test set because their source
            occurs in training or validation.
        withheld: Number of supplementary pairs removed from training because
            their source occurs in validation or a test set.
    """

    train: list[Record]
    valid: list[Record]
    tests: dict[str, list[Record]]
    leaked: dict[str, int]
    withheld: int


def deduplicate(records: Iterable[Record]) -> list[Record]:
    """Return the records without repeated or near-repeated pairs; the first stays."""
    seen: set[bytes] = set()
    kept: list[Record] = []
    for record in records:
        pair = f"{match_key(record.source)}\t{match_key(record.target)}"
        key = _digest(pair)
        if key not in seen:
            seen.add(key)
            kept.append(record)
    return kept


def split(
    training: Sequence[Record], tests: Mapping[str, Sequence[Record]], supplement: Sequence[Record] = ()
) -> Split:
    """Divide deduplicated pairs.

    Validation pairs are picked by a hash of the source, not by position: all
    translations of one source land on one side, and a pair keeps its side
    when other pairs come and go (up to the small change of the share).

    Args:
        training: Pairs for training and validation.
        tests: Pairs of each held-out origin.
        supplement: Pairs for training alone. They change neither validation
            nor tests: of these, not of the tests, shared sources are removed.
    """
    share = min(MAX_VALID_SHARE, VALID_PAIRS / len(training)) if training else 0.0
    train: list[Record] = []
    valid: list[Record] = []
    known: set[bytes] = set()
    for record in training:
        key = _digest(match_key(record.source))
        known.add(key)
        is_valid = int.from_bytes(key, "big") < share * _HASH_RANGE
        (valid if is_valid else train).append(record)
    clean = {
        origin: [record for record in records if _digest(match_key(record.source)) not in known]
        for origin, records in tests.items()
    }
    leaked = {origin: len(records) - len(clean[origin]) for origin, records in tests.items()}
    held_out = {_digest(match_key(record.source)) for records in (valid, *clean.values()) for record in records}
    added = [record for record in supplement if _digest(match_key(record.source)) not in held_out]
    return Split([*train, *added], valid, clean, leaked, len(supplement) - len(added))


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
