"""Texts of a bundle against PyTorch's: greedy and beam search, in a batch and alone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sacrebleu
import torch
from numpy.typing import NDArray

from dragoman.export.decode import BundleSession, log_softmax
from dragoman.export.verify.cases import Case
from dragoman.export.verify.report import MAX_EXAMPLES, Example, SearchReport
from dragoman.export.verify.ties import NextLogProbs, is_beam_tie, margin
from dragoman.model.beam import BeamSettings
from dragoman.model.cached_search import beam_cached, greedy_cached
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.scores import corpus_scores
from dragoman.model.search import next_log_probs

# Beam search costs more, and most of what can be wrong shows in greedy search as well.
MAX_ALONE_BEAM = 50
_ROWS = 25

# Sources, limits and first tokens to the tokens of the best text.
Search = Callable[[Sequence[Sequence[int]], Sequence[int], Sequence[int]], list[list[int]]]


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
        settings = BeamSettings(beams)
        model = _in_batches(self._model_search(beams), self.cases)
        bundle = _in_batches(self._bundle_search(beams), self.cases)
        tried = list(range(len(self.cases)))
        if beams > 1:  # across all language pairs
            tried = sorted(random.Random(0).sample(tried, min(MAX_ALONE_BEAM, len(tried))))  # noqa: S311  # no secret
        alone = [_in_batches(self._bundle_search(beams), [self.cases[i]])[0] for i in tried]

        different = [i for i, (a, b) in enumerate(zip(model, bundle, strict=True)) if a != b]
        different.sort(key=lambda i: self._similarity(model[i], bundle[i]))
        likeliest_first = different[::-1] if self.same_texts else []
        ties = set(self._ties(self._model_next, settings, {i: (model[i], bundle[i]) for i in likeliest_first}))
        moved = {i: (own, bundle[i]) for i, own in zip(tried, alone, strict=True) if own != bundle[i]}
        alone_ties = len(list(self._ties(self._bundle_next, settings, moved)))
        references, scores = self._scores(model, bundle)
        return SearchReport(
            name="greedy" if beams == 1 else f"beam-{beams}",
            beams=beams,
            sentences=len(self.cases),
            identical=len(self.cases) - len(different),
            ties=len(ties),
            alone=len(tried),
            alone_identical=len(tried) - len(moved),
            alone_ties=alone_ties,
            references=references,
            chrf_model=scores[0],
            chrf_bundle=scores[1],
            different=tuple(self._example(i, model[i], bundle[i], i in ties) for i in different[:MAX_EXAMPLES]),
        )

    def _model_search(self, beams: int) -> Search:
        model, special = self.checkpoint.model, self.checkpoint.tokenizer.special
        if beams == 1:
            return lambda sources, limits, first: greedy_cached(model, sources, limits, special, first)
        return lambda sources, limits, first: [
            found[0].tokens if found else []
            for found in beam_cached(model, sources, limits, special, beams=beams, first=first, renormalise=True)
        ]

    def _bundle_search(self, beams: int) -> Search:
        if beams == 1:
            return self.session.greedy
        return lambda sources, limits, first: [
            found[0].tokens if found else [] for found in self.session.beam(sources, limits, beams=beams, first=first)
        ]

    def _model_next(self, index: int) -> NextLogProbs:
        """Return PyTorch's full pass over a case."""
        case, model, special = self.cases[index], self.checkpoint.model, self.checkpoint.tokenizer.special

        @torch.inference_mode()
        def run(targets: Sequence[Sequence[int]]) -> NDArray[Any]:
            sources = torch.tensor([case.source] * len(targets))
            lengths = torch.tensor([len(case.source)] * len(targets))
            states = model(sources, lengths, torch.tensor([[special.start, *case.first, *ids] for ids in targets]))
            log_probs: NDArray[Any] = next_log_probs(model, states[:, -1], special, renormalise=True).numpy()
            return log_probs

        return run

    def _bundle_next(self, index: int) -> NextLogProbs:
        """Return the bundle's pass over a case, the whole target in one call."""
        case, session = self.cases[index], self.session
        start = session.manifest.special.start

        def run(targets: Sequence[Sequence[int]]) -> NDArray[Any]:
            input_ids = np.array([[start, *case.first, *ids] for ids in targets], np.int64)
            encoded = session.encode([case.source] * len(targets))
            states = session.initial_states(*input_ids.shape)
            _, logits, _ = session.step(input_ids, np.zeros(len(targets), np.int64), states, encoded)
            return log_softmax(logits[:, -1])

        return run

    def _ties(
        self,
        next_of: Callable[[int], NextLogProbs],
        settings: BeamSettings,
        texts: Mapping[int, tuple[list[int], list[int]]],
    ) -> Iterator[int]:
        """Yield the cases whose two texts are a tie, until there is one that is none: then the bundle has failed."""
        for index, (expected, found) in texts.items():
            case = self.cases[index]
            if settings.beams == 1:
                is_tie = abs(margin(next_of(index), expected, found)) < self.tie
            else:
                is_tie = is_beam_tie(
                    next_of(index), settings, found,
                    limit=case.limit, eos=self.session.manifest.special.eos, forced=len(case.first), noise=self.tie,
                )  # fmt: skip
            if not is_tie:
                return
            yield index

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
