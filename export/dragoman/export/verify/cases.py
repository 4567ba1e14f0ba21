"""The fixed set of texts that a bundle and its model translate."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dragoman.export.bundle import Manifest
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.languages import Languages
from dragoman.model.readers import Pair
from dragoman.model.vocab import SpecialIds

LanguagePair = tuple[str, str]
# Of a model of several languages, so many pairs are tried.
MAX_PAIRS = 4
_CHOICES = 10
# Longest random source; sentences are rarely longer.
_LONGEST = 60


@dataclass(frozen=True, slots=True)
class Case:
    """One source.

    Attributes:
        source: Ids with EOS and the tokens of its languages.
        limit: Most new tokens.
        languages: Of source and target.
        first: What the target begins with.
        text: The source; random ids stand there as numbers.
        reference: A right translation, or None.
    """

    source: list[int]
    limit: int
    languages: LanguagePair
    first: tuple[int, ...]
    text: str
    reference: str | None = None


def choose_cases(
    checkpoint: Checkpoint,
    manifest: Manifest,
    pairs: Sequence[Pair] | None,
    *,
    languages: LanguagePair,
    sentences: int,
    generator: random.Random,
) -> list[Case]:
    """Choose sources, those of one language pair side by side.

    At least three of four are in `languages`, the rest in up to `MAX_PAIRS` - 1 other pairs, if there are any.

    Args:
        checkpoint: Encodes texts.
        manifest: Knows limits and languages.
        pairs: Sentences with translations in `languages`; None for random ids.
        languages: Of the sentences.
        sentences: How many.
        generator: Of the choice.

    Returns:
        Fewer than `sentences` if there are no more that the model takes.
    """
    texts = _random_texts(checkpoint, manifest, sentences, generator) if pairs is None else _texts(checkpoint, pairs)
    texts = generator.sample(texts, len(texts))
    others = _other_pairs(manifest.languages, languages, generator)
    of_each = sentences // 4 // len(others) if others else 0
    cases = _cases(manifest, languages, texts, sentences - of_each * len(others))
    for other in others:
        # Nobody has translated the sentences into this language.
        cases += [replace(case, reference=None) for case in _cases(manifest, other, texts, of_each)]
    return cases


def random_pair(manifest: Manifest, generator: random.Random) -> LanguagePair:
    """Return one of the language pairs."""
    return generator.choice(list(itertools.islice(manifest.languages.pairs(), 1000)))


def random_ids(generator: random.Random, vocab_size: int, length: int, special: SpecialIds) -> list[int]:
    """Return `length` ids that may occur in a text, the last one EOS."""
    reserved = {special.eos, *special.never_generated}
    ids: list[int] = []
    while len(ids) < length - 1:
        token = generator.randrange(vocab_size)
        if token not in reserved:
            ids.append(token)
    return [*ids, special.eos]


_Text = tuple[list[int], str, str | None]  # ids, source, reference


def _texts(checkpoint: Checkpoint, pairs: Iterable[Pair]) -> list[_Text]:
    return [(checkpoint.tokenizer.encode(pair.source), pair.source, pair.target) for pair in pairs]


def _random_texts(checkpoint: Checkpoint, manifest: Manifest, count: int, generator: random.Random) -> list[_Text]:
    config, special = checkpoint.model.config, checkpoint.tokenizer.special
    size = config.source_vocab_size or config.vocab_size
    longest = min(_LONGEST, manifest.limits.max_source_tokens - manifest.languages.longest_frame)
    ids = [random_ids(generator, size, generator.randint(1, longest), special) for _ in range(count)]
    return [(row, " ".join(map(str, row)), None) for row in ids]


def _cases(manifest: Manifest, languages: LanguagePair, texts: Iterable[_Text], count: int) -> list[Case]:
    """Return the first `count` texts that the model takes."""
    limits = manifest.limits
    first = manifest.languages.first_target(languages[1])
    cases: list[Case] = []
    for ids, text, reference in texts:
        source = manifest.languages.frame(ids, *languages)
        limit = min(limits.max_target_tokens - len(first), limits.default_max_new_tokens(len(ids)))
        if len(source) <= limits.max_source_tokens and len(cases) < count:
            cases.append(Case(source, limit, languages, first, text, reference))
    return cases


def _other_pairs(languages: Languages, chosen: LanguagePair, generator: random.Random) -> list[LanguagePair]:
    """Return up to `MAX_PAIRS` - 1 more pairs, of several random choices the one with most languages."""
    choices = [_some_pairs(languages, chosen, generator) for _ in range(_CHOICES)]
    best = max(choices, key=lambda pairs: sum(len(set(tags)) for tags in zip(*pairs, strict=True)))
    return best[1:]


def _some_pairs(languages: Languages, chosen: LanguagePair, generator: random.Random) -> list[LanguagePair]:
    """Return up to `MAX_PAIRS` pairs, the chosen one first."""
    pairs: list[LanguagePair] = [chosen]
    sources, targets = (
        [*generator.sample(tags, len(tags))] for tags in (list(languages.sources), list(languages.targets))
    )
    for number in range(max(len(sources), len(targets))):
        source, target = sources[number % len(sources)], targets[number % len(targets)]
        if source == target:
            target = targets[(number + 1) % len(targets)]
        if (source, target) not in pairs:
            pairs.append((source, target))
    return pairs[:MAX_PAIRS]
