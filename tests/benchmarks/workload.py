"""What is translated: sources with a mix of lengths as texts have it, and real texts with their references."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.model.generated import examples

SEED = 20
FIRST_WORD = 4  # ids below it are special in every model here
# Lognormal with these tokens as its median; a sentence of a manual has about so many, a few have four times as many.
_MEDIAN, _SIGMA, _LONGEST = 25, 0.6, 100
EQUAL = 30


@dataclass(frozen=True, slots=True)
class Pairs:
    """Texts to translate, and translations of people.

    Attributes:
        sources: Texts.
        references: One each.
    """

    sources: list[str]
    references: list[str]


def lengths(kind: str, count: int) -> list[int]:
    """Return source lengths in tokens, EOS included.

    Args:
        kind: "equal" for all the same, "mixed" for those of texts.
        count: How many; the same every time.

    Raises:
        ValueError: `kind` is not known.
    """
    if kind == "equal":
        return [EQUAL] * count
    if kind != "mixed":
        raise ValueError(f"workload {kind!r} is not known; choose equal or mixed")
    generator = random.Random(SEED)
    drawn = (round(generator.lognormvariate(math.log(_MEDIAN), _SIGMA)) for _ in range(count))
    return [min(_LONGEST, max(2, length)) for length in drawn]


def random_sources(sizes: Sequence[int], vocab_size: int, *, first: int, eos: int) -> list[list[int]]:
    """Return random ids with EOS at the end, the same every time.

    Args:
        sizes: Length of each, EOS included.
        vocab_size: Ids are below it.
        first: Ids are not below it.
        eos: The last one.
    """
    generator = random.Random(SEED)
    return [[*generator.choices(range(first, vocab_size), k=size - 1), eos] for size in sizes]


def load_pairs(path: Path | None, count: int) -> Pairs:
    """Return a random but fixed selection of the pairs of a TSV file.

    Args:
        path: The file; None makes numbers, dates and amounts in words instead, for a trial run.
        count: How many pairs, at most.

    Raises:
        ValueError: There is no line with two columns.
    """
    if path is None:
        return _generated_pairs(count)
    rows = [line.split("\t")[:2] for line in path.read_text("utf-8").splitlines() if "\t" in line]
    rows = [row for row in rows if row[0].strip() and row[1].strip()]
    if not rows:
        raise ValueError(f"{path} has no line with a text, a tab and a translation")
    random.Random(SEED).shuffle(rows)
    chosen = rows[:count]
    return Pairs([row[0] for row in chosen], [row[1] for row in chosen])


def _generated_pairs(count: int) -> Pairs:
    generator, made = random.Random(SEED), examples(seed=SEED)
    groups = [[next(made) for _ in range(generator.randint(1, 4))] for _ in range(count)]
    return Pairs(
        [", ".join(example.source for example in group) for group in groups],
        [", ".join(example.target for example in group) for group in groups],
    )
