"""The real search on a model that is a function, without pool and engine, one step at a time.

A slot holds the tokens that its row has read, and the model scores nothing but those: a search that goes on from a
wrong parent, mixes up slots or reads stale tokens finds other texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.model.vocab import SPECIAL_IDS, SpecialIds
from dragoman.server.options import SearchOptions
from dragoman.server.request import Request, RequestStatus, Times
from dragoman.server.search import Decision, Search
from dragoman.server.step import StepOutputs, Wanted

Tokens = tuple[int, ...]
Logits = NDArray[np.float32]
# Logits [V] of the next token, nothing masked, from a source and all that the target has, start token first.
Model = Callable[[Tokens, Tokens], Logits]


class Quiet:
    """A listener that wants nothing."""

    wants_tokens = False

    def token(self, token: int) -> None:
        """Do nothing."""

    def ended(self, request: Request) -> None:
        """Do nothing."""


def request(
    source: Sequence[int] = (10, 11, 3), *, first_target: Sequence[int] = (), max_new_tokens: int = 12, **options: Any
) -> Request:
    """Return a request with these options."""
    chosen = SearchOptions(max_new_tokens=max_new_tokens, **options)
    return Request(tuple(source), chosen, Quiet(), Times(0.0), first_target=tuple(first_target))


class Told(Quiet):
    """A listener that wants tokens, and does nothing with them."""

    wants_tokens = True


@dataclass
class RandomModel:
    """Logits and attention drawn from source and target: many hypotheses are close, and EOS comes now and then.

    Attributes:
        vocab_size: V.
        special: Ids with a meaning.
        spread: Standard deviation of logits.
        eos: Grows with the target's length and is added to EOS.
        step: Logits are multiples of it, so that there are ties; 0 if they need not.
    """

    vocab_size: int = 40
    special: SpecialIds = SPECIAL_IDS
    spread: float = 1.5
    eos: float = 0.2
    step: float = 0.0
    known: dict[tuple[Tokens, Tokens], Logits] = field(default_factory=dict)

    def __call__(self, source: Tokens, target: Tokens) -> Logits:
        """Return [V] float32."""
        found = self.known.get((source, target))
        if found is None:
            generator = np.random.default_rng([len(source), *source, *target])
            found = (generator.normal(size=self.vocab_size) * self.spread).astype(np.float32)
            found[self.special.eos] += self.eos * len(target)
            if self.step:
                found = np.round(found / self.step).astype(np.float32) * np.float32(self.step)
            self.known[source, target] = found
        return found


def attention(source: Tokens, target: Tokens) -> NDArray[np.float32]:
    """Return weights over the source [S], drawn from source and target."""
    weights = np.random.default_rng([1, len(source), *source, *target]).exponential(size=len(source)) ** 3
    found: NDArray[np.float32] = (weights / weights.sum()).astype(np.float32)
    return found


def step_outputs(
    model: Model, rows: Sequence[tuple[Tokens, Tokens]], wanted: Wanted, special: SpecialIds, candidates: int
) -> StepOutputs:
    """Return what a graph would return for rows of (source, target), and nothing that was not wanted."""
    raw = np.stack([model(source, target) for source, target in rows])
    logits = raw.copy()
    logits[:, list(special.never_generated)] = -np.inf
    outputs = StepOutputs(np.where(np.isnan(logits).any(axis=1), special.pad, logits.argmax(axis=1)))
    if Wanted.CANDIDATES in wanted:
        assert candidates, "candidates of a graph that has none"
        # As numbers of 32 bits, like the rest.
        most = raw.max(axis=1).astype(np.float64)
        normalizer = (most + np.log(np.exp(raw - most[:, None]).sum(axis=1))).astype(np.float32)
        outputs.candidate_ids = (-logits).argsort(axis=1, kind="stable")[:, :candidates]
        scores = logits - normalizer[:, None]
        outputs.candidate_scores = np.take_along_axis(scores, outputs.candidate_ids, axis=1)
        outputs.log_normalizer = normalizer
    if Wanted.LOGITS in wanted:
        outputs.logits = logits
    if Wanted.ALIGNMENT in wanted:
        outputs.alignment = np.zeros((len(rows), max(len(source) for source, _ in rows) + 3), np.float32)
        for row, (source, target) in enumerate(rows):
            outputs.alignment[row, : len(source)] = attention(source, target)
    return outputs


class SearchBench:
    """A search, and the tokens that each slot has read. With `all_logits`, steps return these unasked.

    Attributes:
        search: The one under test.
        slots: (source, what the row has read and reads now) of each live row.
        ended: How requests ended.
        emitted: Tokens that became text, by request.
        first: Requests in the order of their first tokens.
        wanted: What each step was asked for.
        before_step: Called with the outputs of each step; may change them.
    """

    def __init__(
        self,
        model: Model,
        *,
        slots: int = 16,
        longest: int = 40,
        vocab_size: int = 40,
        candidates: int = 16,
        special: SpecialIds = SPECIAL_IDS,
        all_logits: bool = False,
    ) -> None:
        self._all_logits = Wanted.LOGITS if all_logits else Wanted.NOTHING
        self.model, self.special, self.candidates = model, special, min(candidates, vocab_size)
        self.search = Search(slots, longest, special, vocab_size, candidates=self.candidates)
        self.slots: list[tuple[Tokens, Tokens]] = []
        self.capacity = slots
        self.ended: dict[Request, RequestStatus] = {}
        self.emitted: dict[Request, list[int]] = {}
        self.first: list[Request] = []
        self.wanted: list[Wanted] = []
        self.before_step: Callable[[StepOutputs], None] = _nothing

    def admit(self, *requests: Request) -> None:
        """Let requests begin, and tell of their tokens."""
        for each in requests:
            each.listener = Told()
        self.search.admit(requests)
        for each in requests:
            self.slots += [(tuple(each.source), (self.special.start,))] * each.width
            self.emitted[each] = []

    def step(self) -> Decision:
        """Run a step as the engine does."""
        wanted = self.search.wanted()
        self.wanted.append(wanted)
        outputs = step_outputs(self.model, self.slots, wanted | self._all_logits, self.special, self.candidates)
        self.before_step(outputs)
        given = None if outputs.logits is None else outputs.logits.copy()
        decision = self.search.decide(outputs)
        if given is not None:
            np.testing.assert_array_equal(outputs.logits, given)
        assert decision.tokens.shape == (len(self.slots),)
        if decision.parents is not None:
            parents = decision.parents.tolist()
            assert all(parents[parent] == parent for parent in parents), "a state is moved after it was overwritten"
            self.slots = [self.slots[parent] for parent in parents]
        rows = zip(self.slots, decision.tokens.tolist(), strict=True)
        self.slots = [(source, (*target, token)) for (source, target), token in rows]
        for each, token in decision.emitted:
            self.emitted[each].append(token)
        self.first += decision.first
        for each, status in decision.ended:
            assert each not in self.ended
            self.ended[each] = status
            self.leave(each)
        return decision

    def leave(self, request: Request) -> None:
        """Take a request out of its slots."""
        for slot in sorted(self.search.slots_of(request), reverse=True):
            last = self.search.release(slot)
            assert last == len(self.slots) - 1
            self.slots[slot] = self.slots[last]
            self.slots.pop()
        assert self.search.live == len(self.slots)

    def run(self, *requests: Request) -> list[Request]:
        """Run requests together to their end."""
        self.admit(*requests)
        while self.search.live:
            self.step()
        return list(requests)


def _nothing(_outputs: StepOutputs) -> None:
    pass


def solo(model: Model, request: Request, **sizes: Any) -> tuple[Request, RequestStatus]:
    """Run a request alone, as a copy."""
    copy = Request(request.source, request.options, Quiet(), Times(0.0), first_target=request.first_target)
    bench = SearchBench(model, **sizes)
    bench.run(copy)
    return copy, bench.ended[copy]
