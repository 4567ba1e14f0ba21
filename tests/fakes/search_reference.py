"""Searches written as plainly as can be, one text at a time, to compare with: slow, no arrays of rows, no state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dragoman.model.vocab import SpecialIds
from dragoman.server.options import Sampling
from dragoman.server.request import Request, RequestStatus
from tests.fakes.search_bench import Model, attention

_MASK = 2**64 - 1


@dataclass
class Outcome:
    """A hypothesis, as `Hypothesis` has it, with `ids` that include EOS."""

    ids: list[int] = field(default_factory=list)
    log_prob: float = 0.0
    score: float = 0.0
    token_scores: list[float] = field(default_factory=list)
    alignment: list[list[float]] = field(default_factory=list)
    covered: list[float] = field(default_factory=list)


def log_softmax(logits: Sequence[float]) -> list[float]:
    most = max(logits)
    total = most + math.log(sum(math.exp(x - most) for x in logits))
    return [x - total for x in logits]


class Reference:
    """The search for one request.

    Args of `__init__`:
        model: It.
        request: It.
        special: Ids with a meaning.
        whole: Whether masked ids keep their share of the probability, as they do where a graph has candidates.
    """

    def __init__(self, model: Model, request: Request, special: SpecialIds, *, whole: bool = True) -> None:
        self.model, self.special, self.whole = model, special, whole
        self.source = tuple(request.source)
        self.options = request.options
        self.known = [special.start, *request.first_target]
        self.masked = set(special.never_generated)

    def log_probs(self, ids: Sequence[int]) -> list[float]:
        """Return the model's own log-probabilities of what follows; masked ids keep their share."""
        logits = [float(x) for x in self.model(self.source, (*self.known, *ids))]
        shown = [-math.inf if token in self.masked else x for token, x in enumerate(logits)]
        values = log_softmax(logits if self.whole else shown)
        return [-math.inf if token in self.masked else value for token, value in enumerate(values)]

    def adjusted(self, values: list[float], ids: Sequence[int]) -> list[float]:
        """Apply penalties and bans, in the order of Hugging Face's processors."""
        options, read = self.options, [*self.known, *ids]
        values = list(values)
        for token in set(read):
            if options.repetition_penalty != 1.0 and values[token] > -math.inf:
                value = values[token]
                values[token] = value * options.repetition_penalty if value < 0 else value / options.repetition_penalty
        banned: set[int] = set()
        size = options.no_repeat_ngram_size
        if size and len(read) >= size:
            begins = read[len(read) - size + 1 :]
            for place in range(len(read) - size + 1):
                if read[place : place + size - 1] == begins:
                    banned.add(read[place + size - 1])
        for sequence in options.suppressed:
            before = list(sequence[:-1])
            if (
                sequence != (self.special.eos,)
                and len(before) <= len(read)
                and read[len(read) - len(before) :] == before
            ):
                banned.add(sequence[-1])
        if len(ids) < options.min_new_tokens:
            banned.add(self.special.eos)
        return [-math.inf if token in banned else value for token, value in enumerate(values)]

    def coverage(self, ids: Sequence[int]) -> list[float]:
        """Return how much each source token is attended to by all steps up to the one that follows."""
        read = [*self.known, *ids]
        total = np.zeros(len(self.source))
        for length in range(1, len(read) + 1):
            total += attention(self.source, tuple(read[:length]))
        return [float(value) for value in total]

    def score(self, log_prob: float, new: int, ids: Sequence[int]) -> float:
        """Return the score of a hypothesis of `new` tokens whose last one follows `ids`."""
        options = self.options
        length = new + len(self.known) - 1
        base = float(length) if options.normalization == "length" else (5 + length) / 6
        score: float = log_prob / base**options.length_penalty
        if options.coverage_penalty:
            score += options.coverage_penalty * sum(math.log(min(max(c, 1e-30), 1.0)) for c in self.coverage(ids))
        return score

    def outcome(self, ids: list[int]) -> Outcome:
        """Return a hypothesis of a search without beams."""
        options = self.options
        found = Outcome(ids, alignment=self.alignment(ids))
        if options.with_token_scores:
            found.token_scores = [self.log_probs(ids[:place])[token] for place, token in enumerate(ids)]
            found.log_prob = sum(found.token_scores)
            found.score = self.score(found.log_prob, len(ids), ids[:-1])
        return found

    def alignment(self, ids: list[int]) -> list[list[float]]:
        """Return the attention of each token, if asked for."""
        if not self.options.with_alignment:
            return []
        tokens = ids[:-1] if ids and ids[-1] == self.special.eos else ids
        return [attention(self.source, (*self.known, *ids[:place])).tolist() for place in range(len(tokens))]

    def alternatives(self) -> list[tuple[int, float]]:
        """Return the best tokens of the first free position."""
        values = self.log_probs([])
        best = sorted(range(len(values)), key=lambda token: (-values[token], token))[: self.options.alternatives]
        return [(token, values[token]) for token in best if values[token] > -math.inf]

    def run(self) -> tuple[list[Outcome], RequestStatus]:
        """Return hypotheses, the best first, and how the text ends."""
        found = self.beam() if self.options.beams > 1 else [self.single()]
        found = found[: self.options.hypotheses]
        ends = found[0].ids and found[0].ids[-1] == self.special.eos
        return found, RequestStatus.EOS if ends else RequestStatus.LENGTH

    def single(self) -> Outcome:
        """Search without beams."""
        ids: list[int] = []
        while len(ids) < self.options.max_new_tokens:
            # Penalties apply to logits here; what they are shifted by matters to them.
            logits = [float(x) for x in self.model(self.source, (*self.known, *ids))]
            logits = [-math.inf if token in self.masked else x for token, x in enumerate(logits)]
            values = self.adjusted(logits, ids)
            if max(values) == -math.inf:
                break
            if self.options.sampling:
                ids.append(drawn(values, self.options.sampling, len(ids)))
            else:
                ids.append(values.index(max(values)))
            if ids[-1] == self.special.eos:
                break
        return self.outcome(ids)

    def beam(self) -> list[Outcome]:
        """Search with beams: the rules of `dragoman.model.beam`, and what goes beyond them."""
        options, beams = self.options, self.options.beams
        enough = max(options.hypotheses, math.ceil(beams * options.patience))
        live, ended = [Outcome()], list[Outcome]()
        for new in range(1, options.max_new_tokens + 1):
            found = [
                (-(one.log_prob + value), rank, token)
                for rank, one in enumerate(live)
                for token, value in enumerate(self.adjusted(self.log_probs(one.ids), one.ids))
                if value > -math.inf
            ]
            going: list[Outcome] = []
            for place, (cost, rank, token) in enumerate(sorted(found)[: 2 * beams]):
                before = live[rank]
                score = self.score(-cost, new, before.ids)
                step = -cost - before.log_prob
                made = Outcome([*before.ids, token], -cost, score, [*before.token_scores, step])
                if token != self.special.eos and new < options.max_new_tokens:
                    going = [*going, made][:beams]
                elif place < beams:
                    ended = sorted([*ended, made], key=lambda one: -one.score)[:enough]
            if not going:
                ended = ended or [live[0]]
                break
            live = going
            if len(ended) == enough and not self.may_improve(live, ended[-1].score, new):
                break
        for one in ended:
            one.alignment = self.alignment(one.ids)
            if not options.with_token_scores:
                one.token_scores = []
        return ended

    def may_improve(self, live: list[Outcome], worst: float, new: int) -> bool:
        """Return whether a search goes on that has enough ended hypotheses."""
        options = self.options
        if options.early_stopping is True:
            return False
        if options.early_stopping == "never":
            if options.length_penalty > 0:
                new = options.max_new_tokens
            hopes = max(self.without_coverage(one.log_prob, new) for one in live)
        else:
            hopes = max(self.score(one.log_prob, new, one.ids[:-1]) for one in live)
        return hopes > worst

    def without_coverage(self, log_prob: float, new: int) -> float:
        """Return the score of a hypothesis that covers everything."""
        length = new + len(self.known) - 1
        base = float(length) if self.options.normalization == "length" else (5 + length) / 6
        return float(log_prob / base**self.options.length_penalty)


def warped(values: Sequence[float], sampling: Sampling) -> list[tuple[int, float]]:
    """Return tokens that may be drawn and their probabilities, the best first."""
    order = sorted((token for token, x in enumerate(values) if x > -math.inf), key=lambda t: (-values[t], t))
    if sampling.top_k:
        order = order[: sampling.top_k]
    most = values[order[0]]
    weights = [math.exp((values[token] - most) / sampling.temperature) for token in order]
    total, before, kept = sum(weights), 0.0, []
    for token, weight in zip(order, weights, strict=True):
        if before < sampling.top_p * total:
            kept.append((token, weight))
        before += weight
    mass = sum(weight for _, weight in kept)
    return [(token, weight / mass) for token, weight in kept]


def uniform(seed: int, position: int) -> float:
    """Return the number in [0, 1) of a token: SplitMix64 on Python's integers."""

    def mixed(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
        return z ^ (z >> 31)

    return float(mixed((mixed(seed) + 0x9E3779B97F4A7C15 * (position + 1)) & _MASK) >> 11) / 2**53


def drawn(values: Sequence[float], sampling: Sampling, position: int) -> int:
    """Draw a token."""
    number, below = uniform(sampling.seed, position), 0.0
    options = warped(values, sampling)
    for token, probability in options:
        below += probability
        if number < below:
            return token
    return options[-1][0]


def without_eos(ids: list[int], eos: int) -> list[int]:
    """Return the tokens of a hypothesis as `Hypothesis` has them."""
    return ids[:-1] if ids and ids[-1] == eos else ids
