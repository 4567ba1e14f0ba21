"""Word translations by IBM model 1, and the shortlists that are made of them: pure arithmetic on token ids.

Model 1 (Brown et al. 1993, section 4.1) says how probable a target token is for each source token, by expectation
maximisation over the pairs of a corpus. A shortlist is what a text's tokens may be translated with, together with the
most frequent tokens and the text's own ones, which may be copied: as in Marian.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
IdPair = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Lexicon:
    """What shortlists are made of.

    Attributes:
        translations: By source token, its most probable target tokens, the best first.
        frequent: Target tokens that every shortlist has.
    """

    translations: dict[int, Array]
    frequent: Array

    def shortlist(self, sources: Sequence[Sequence[int]]) -> Array:
        """Return the sorted ids [n] that some texts may be translated with."""
        tokens = np.unique(np.concatenate([np.asarray(source, np.int64) for source in sources]))
        found = [self.translations[token] for token in tokens.tolist() if token in self.translations]
        return np.unique(np.concatenate([self.frequent, tokens, *found]))


def learn_lexicon(pairs: Sequence[IdPair], vocab_size: int, *, best: int, frequent: int, rounds: int = 5) -> Lexicon:
    """Return the lexicon of a corpus.

    Args:
        pairs: Source and target ids, EOS included, which so becomes frequent.
        vocab_size: V; ids are below it.
        best: Translations kept of each source token.
        frequent: Most frequent target tokens kept.
        rounds: Of expectation maximisation.
    """
    keys, probabilities = translation_probabilities(pairs, vocab_size, rounds)
    sources, targets = np.divmod(keys, vocab_size)
    order = np.lexsort((-probabilities, sources))
    sources, targets = sources[order], targets[order]
    starts = np.flatnonzero(np.r_[True, sources[1:] != sources[:-1]])
    groups = np.split(targets, starts[1:])
    translations = {int(sources[start]): group[:best] for start, group in zip(starts, groups, strict=True)}
    translations.pop(vocab_size, None)  # of the empty word
    counts = np.bincount(np.concatenate([np.asarray(target, np.int64) for _, target in pairs]), minlength=vocab_size)
    return Lexicon(translations, np.argsort(-counts, kind="stable")[:frequent])


def translation_probabilities(pairs: Sequence[IdPair], vocab_size: int, rounds: int) -> tuple[Array, Array]:
    """Return p(target | source) of all that occur together.

    Args:
        pairs: Source and target ids.
        vocab_size: V.
        rounds: Of expectation maximisation.

    Returns:
        Keys [n] int64, source * V + target, where source V is the empty word; and probabilities [n].
    """
    together, positions, seen = [], [], 0
    for source, target in pairs:
        words = np.append(np.asarray(source, np.int64), vocab_size)
        together.append((words[:, None] * vocab_size + np.asarray(target, np.int64)).ravel())
        positions.append(np.tile(np.arange(seen, seen + len(target)), len(words)))
        seen += len(target)
    keys, where = np.unique(np.concatenate(together), return_inverse=True)
    position = np.concatenate(positions)
    sources = keys // vocab_size
    probabilities = np.ones(len(keys))
    for _ in range(rounds):
        shares = probabilities[where]
        shares /= np.bincount(position, shares, minlength=seen)[position]
        counts = np.bincount(where, shares, minlength=len(keys))
        probabilities = counts / np.bincount(sources, counts)[sources]
    return keys, probabilities


@dataclass(frozen=True, slots=True)
class Coverage:
    """How large shortlists are, and what they miss.

    Attributes:
        texts: That share a shortlist.
        size: Ids in it, mean.
        tokens_outside: Share of output tokens that are not in it.
        texts_outside: Share of texts that have such a token, and would become another text.
    """

    texts: int
    size: float
    tokens_outside: float
    texts_outside: float


def coverage(
    lexicon: Lexicon, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], texts: int
) -> Coverage:
    """Look at groups of `texts` neighbours; a last group that is smaller is left out unless it is the only one."""
    starts = range(0, max(1, len(sources) - texts + 1), texts)
    sizes, outside = [], []
    for start in starts:
        allowed = lexicon.shortlist(sources[start : start + texts])
        sizes.append(len(allowed))
        outside += [np.isin(target, allowed, invert=True) for target in targets[start : start + texts]]
    tokens = np.concatenate(outside)
    return Coverage(texts, float(np.mean(sizes)), float(tokens.mean()), float(np.mean([o.any() for o in outside])))
