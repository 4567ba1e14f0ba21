"""Texts of a bundle against PyTorch's: greedy and beam search, in a batch and alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sacrebleu
import torch
from numpy.typing import NDArray

from dragoman.export.decode import BundleSession
from dragoman.export.verify.cases import Case
from dragoman.export.verify.report import MAX_EXAMPLES, Example, SearchReport
from dragoman.export.verify.ties import Disturb, NextLogProbs, Repeat, is_beam_tie, margin
from dragoman.model.cached_search import beam_cached, greedy_cached
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.scores import corpus_scores
from dragoman.model.search import next_log_probs

# Of the texts, a quarter, but no fewer and no more than so many, is decoded alone, token by token: that costs most.
LEAST_ALONE, MOST_ALONE = 8, 50
_ROWS = 25

# Sources, limits and first tokens to the tokens of the best text.
Search = Callable[[Sequence[Sequence[int]], Sequence[int], Sequence[int]], list[list[int]]]
# Of a number of beams and what changes the log-probabilities that they see.
SearchOf = Callable[[int, Disturb | None], Search]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A bundle beside its model.

    Attributes:
        session: The bundle.
        checkpoint: The model.
        cases: Texts to translate, those with the same first tokens side by side.
        tie: See `Requirement.tie`.
        same_texts: See `Requirement.same_texts`; otherwise nobody asks for the ties of different texts.
    """

    session: BundleSession
    checkpoint: Checkpoint
    cases: Sequence[Case]
    tie: float
    same_texts: bool

    def run(self, beams: int) -> SearchReport:
        """Compare the texts of one kind of search; one beam is greedy search."""
        model = _in_batches(self._model_search(beams), self.cases)
        bundle = _in_batches(self._bundle_search(beams), self.cases)
        alone = self._alone(beams, bundle)

        different = [i for i, (a, b) in enumerate(zip(model, bundle, strict=True)) if a != b]
        different.sort(key=lambda i: self._similarity(model[i], bundle[i]))
        likeliest_first = different[::-1] if self.same_texts else []
        candidates = {i: (model[i], bundle[i]) for i in likeliest_first}
        ties = set(self._ties(self._model_next, self._model_search, beams, candidates))
        moved = {i: (own, bundle[i]) for i, own in alone.items() if own != bundle[i]}
        alone_ties = len(list(self._ties(self._bundle_next, self._bundle_search, beams, moved)))
        references, scores = self._scores(model, bundle)
        return SearchReport(
            name="greedy" if beams == 1 else f"beam-{beams}",
            beams=beams,
            sentences=len(self.cases),
            identical=len(self.cases) - len(different),
            ties=len(ties),
            alone=len(alone),
            alone_identical=len(alone) - len(moved),
            alone_ties=alone_ties,
            references=references,
            chrf_model=scores[0],
            chrf_bundle=scores[1],
            different=tuple(self._example(i, model[i], bundle[i], i in ties) for i in different[:MAX_EXAMPLES]),
        )

    def _model_search(self, beams: int, disturb: Disturb | None = None) -> Search:
        model, special = self.checkpoint.model, self.checkpoint.tokenizer.special
        if beams == 1:
            return lambda sources, limits, first: greedy_cached(model, sources, limits, special, first)
        return lambda sources, limits, first: [
            found[0].tokens if found else []
            for found in beam_cached(model, sources, limits, special, beams=beams, first=first, disturb=disturb)
        ]

    def _bundle_search(self, beams: int, disturb: Disturb | None = None) -> Search:
        if beams == 1:
            return self.session.greedy
        return lambda sources, limits, first: [
            found[0].tokens if found else []
            for found in self.session.beam(sources, limits, beams=beams, first=first, disturb=disturb)
        ]

    def _alone(self, beams: int, batched: list[list[int]]) -> dict[int, list[int]]:
        """Return what the bundle finds for cases that share their batch with no other.

        A sample is searched token by token. Of the others, greedy search has found in a batch what it finds alone if
        each token is the best behind those before it, which one call says for all of them.
        """
        search = self._bundle_search(beams)
        sample = self._sample()
        alone = {}
        for i in range(len(self.cases)) if beams == 1 else sample:
            if i not in sample and self._is_greedy(self.cases[i], batched[i]):
                alone[i] = batched[i]
            else:
                alone[i] = _in_batches(search, [self.cases[i]])[0]
        return alone

    def _sample(self) -> list[int]:
        """Return cases of all source lengths, the shortest, which has most padding in a batch, and the longest too."""
        count = min(len(self.cases), max(LEAST_ALONE, min(len(self.cases) // 4, MOST_ALONE)))
        by_length = sorted(range(len(self.cases)), key=lambda i: len(self.cases[i].source))
        return sorted({by_length[int(place)] for place in np.linspace(0, len(by_length) - 1, count)})

    def _is_greedy(self, case: Case, tokens: list[int]) -> bool:
        special = self.session.manifest.special
        if special.eos in tokens[:-1] or (tokens[-1] != special.eos and len(tokens) < case.limit):
            return False
        read = np.array([[special.start, *case.first, *tokens[:-1]]], np.int64)
        # With one position to spare: a cache that is written one step late shall give wrong texts, not an error.
        encoded, states = self.session.encode([case.source]), self.session.initial_states(1, read.shape[1] + 1)
        best, _, _ = self.session.step(read, np.zeros(1, np.int64), states, encoded)
        found: list[int] = best[0, len(case.first) :].tolist()
        return found == tokens

    def _model_next(self, index: int) -> NextLogProbs:
        """Return PyTorch's full pass over a case."""
        case, model, special = self.cases[index], self.checkpoint.model, self.checkpoint.tokenizer.special

        @torch.inference_mode()
        def run(target: Sequence[int]) -> NDArray[Any]:
            ids = torch.tensor([[special.start, *case.first, *target]])
            states = model(torch.tensor([case.source]), torch.tensor([len(case.source)]), ids)
            log_probs: NDArray[Any] = next_log_probs(model, states[0, -1], special).numpy()
            return log_probs

        return run

    def _bundle_next(self, index: int) -> NextLogProbs:
        """Return the bundle's pass over a case, the whole target in one call."""
        case, session = self.cases[index], self.session

        def run(target: Sequence[int]) -> NDArray[Any]:
            input_ids = np.array([[session.manifest.special.start, *case.first, *target]], np.int64)
            encoded, states = session.encode([case.source]), session.initial_states(1, input_ids.shape[1] + 1)
            logits, normalizer, _ = session.normalized_step(input_ids, np.zeros(1, np.int64), states, encoded)
            log_probs: NDArray[Any] = logits[0, -1] - normalizer[0, -1]
            return log_probs

        return run

    def _ties(
        self,
        next_of: Callable[[int], NextLogProbs],
        search_of: SearchOf,
        beams: int,
        texts: Mapping[int, tuple[list[int], list[int]]],
    ) -> Iterator[int]:
        """Yield the cases whose two texts are a tie, until there is one that is none: then the bundle has failed."""
        for index, (expected, found) in texts.items():
            if beams == 1:
                is_tie = abs(margin(next_of(index), expected, found)) < self.tie
            else:
                is_tie = is_beam_tie(self._repeat(search_of, beams, self.cases[index]), found, noise=self.tie)
            if not is_tie:
                return
            yield index

    @staticmethod
    def _repeat(search_of: SearchOf, beams: int, case: Case) -> Repeat:
        return lambda times, disturb: search_of(beams, disturb)([case.source] * times, [case.limit] * times, case.first)

    def _scores(self, model: list[list[int]], bundle: list[list[int]]) -> tuple[int, tuple[float | None, float | None]]:
        """Return how many texts have a reference, and chrF of both."""
        known = [(i, case.reference) for i, case in enumerate(self.cases) if case.reference is not None]
        if not known:
            return 0, (None, None)
        decode = self.checkpoint.tokenizer.decode
        references = [reference for _, reference in known]
        of_model, of_bundle = (
            corpus_scores([decode(texts[i]) for i, _ in known], references).chrf for texts in (model, bundle)
        )
        return len(known), (of_model, of_bundle)

    def _similarity(self, one: list[int], other: list[int]) -> float:
        decode = self.checkpoint.tokenizer.decode
        score: float = sacrebleu.sentence_chrf(decode(other), [decode(one)]).score
        return score

    def _example(self, index: int, model: list[int], bundle: list[int], tie: bool) -> Example:
        case, decode = self.cases[index], self.checkpoint.tokenizer.decode
        position = next((i for i, (a, b) in enumerate(zip(model, bundle, strict=False)) if a != b), len(bundle))
        return Example(
            case.languages, case.text, decode(model), decode(bundle), position,
            margin(self._model_next(index), model, bundle), tie,
        )  # fmt: skip


def _in_batches(search: Search, cases: Sequence[Case]) -> list[list[int]]:
    """Run a search over batches of mixed lengths."""
    found: list[list[int]] = []
    for first, group in itertools.groupby(cases, key=lambda case: case.first):
        members = list(group)
        for start in range(0, len(members), _ROWS):
            part = members[start : start + _ROWS]
            found += search([case.source for case in part], [case.limit for case in part], first)
    return found
