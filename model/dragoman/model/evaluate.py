"""Evaluation of a set of samples: corpus scores, the same by groups, and faults."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.model.quality import Faults, find_faults
from dragoman.model.samples import Sample
from dragoman.model.scores import DEFAULT_TOKENIZER, Scores, corpus_scores

# First numbers of words of the groups by source length.
SOURCE_WORDS = (1, 3, 5, 10, 20, 40)
NO_ORIGIN = "(none)"


@dataclass(frozen=True, slots=True)
class Group:
    """Scores of a part of the samples."""

    name: str
    scores: Scores


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is known about a system's translations.

    Attributes:
        scores: Of all samples.
        faults: Samples to look at.
        by_source_words: Groups by white-space separated words of the source, short ones first. Each
            sample is in one group; groups without samples are left out.
        by_origin: Groups by the pair's origin, large ones first; likewise.
    """

    scores: Scores
    faults: Faults
    by_source_words: tuple[Group, ...]
    by_origin: tuple[Group, ...]

    def to_dict(self, *, examples: int = 0) -> dict[str, Any]:
        """Return everything as JSON values.

        Args:
            examples: Looping and untranslated samples to include, at most, of each kind.
        """
        faults, scores = self.faults, self.scores
        return {
            **_values(scores),
            "empty": len(faults.empty),
            "untranslated": len(faults.untranslated),
            "looping": len(faults.looping),
            "cut": None if faults.cut is None else len(faults.cut),
            "refused": len(faults.refused),
            "refused_pairs": [sample.number for sample in faults.refused],
            "bleu_signature": scores.bleu_signature,
            "chrf_signature": scores.chrf_signature,
            "by_source_words": [{"group": group.name, **_values(group.scores)} for group in self.by_source_words],
            "by_origin": [{"group": group.name, **_values(group.scores)} for group in self.by_origin],
            "examples": {
                "looping": [_example(sample) for sample in faults.looping[:examples]],
                "untranslated": [_example(sample) for sample in faults.untranslated[:examples]],
            },
        }


def evaluate(samples: Sequence[Sample], *, tokenizer: str = DEFAULT_TOKENIZER) -> Evaluation:
    """Score samples and look for faults.

    Args:
        samples: At least one.
        tokenizer: Of BLEU, one of `scores.TOKENIZERS`.
    """
    by_words = _groups(samples, lambda sample: _words_group(len(sample.source.split())), tokenizer)
    by_origin = _groups(samples, lambda sample: sample.origin or NO_ORIGIN, tokenizer)
    return Evaluation(
        scores=_scores(samples, tokenizer),
        faults=find_faults(samples),
        by_source_words=tuple(sorted(by_words, key=lambda group: _WORDS_GROUPS.index(group.name))),
        by_origin=tuple(sorted(by_origin, key=lambda group: (-group.scores.sentences, group.name))),
    )


_WORDS_GROUPS = (
    *(f"{first}-{following - 1}" for first, following in itertools.pairwise(SOURCE_WORDS)),
    f"{SOURCE_WORDS[-1]}+",
)


def _words_group(words: int) -> str:
    # A source without a word, only zero-width characters for example, is among the short ones.
    return _WORDS_GROUPS[max(0, sum(first <= words for first in SOURCE_WORDS) - 1)]


def _groups(samples: Sequence[Sample], name_of: Callable[[Sample], str], tokenizer: str) -> list[Group]:
    members: dict[str, list[Sample]] = {}
    for sample in samples:
        members.setdefault(name_of(sample), []).append(sample)
    return [Group(name, _scores(part, tokenizer)) for name, part in members.items()]


def _scores(samples: Sequence[Sample], tokenizer: str) -> Scores:
    return corpus_scores([s.output.text for s in samples], [s.reference for s in samples], tokenizer=tokenizer)


def _values(scores: Scores) -> dict[str, Any]:
    return {
        "sentences": scores.sentences,
        "bleu": scores.bleu,
        "chrf": scores.chrf,
        "length_ratio": scores.length_ratio,
    }


def _example(sample: Sample) -> dict[str, Any]:
    return {
        "number": sample.number,
        "source": sample.source,
        "reference": sample.reference,
        "translation": sample.output.text,
        "ending": sample.output.ending.value,
    }
