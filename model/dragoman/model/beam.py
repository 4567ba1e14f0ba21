"""Beam search as a policy: which hypotheses go on, which have ended, when a row is done. Standard library only.

The caller runs the model; whatever it is made of, it hands over the best next tokens of each live
hypothesis and gets back which hypotheses to go on with. The rules are those of Hugging Face's `generate`:

- Of all continuations of a row's live hypotheses the 2k best by the sum of log-probabilities are looked at.
- The k best of them that do not end go on. One that ends, by EOS or at the limit, is kept only if it is
  among the first k.
- A hypothesis that has ended scores `log_prob / length ** length_penalty`. The length counts every token
  behind the start token: those that were forced, and EOS. Only the k best are kept.
- A row is done at its limit; or when k have ended and, `early_stopping` being False, the best one alive would
  not beat the worst of them if it ended now. True does not ask that, "never" asks for the best that it could
  reach by the limit.

Equal sums go to the hypothesis that was better before, then to the smaller token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, slots=True)
class BeamSettings:
    """What a beam search can be told.

    Attributes:
        beams: k, hypotheses that are alive at a time, and that a row ends with. 1 is greedy search.
        length_penalty: Power of the length that a sum of log-probabilities is divided by: 0 prefers short
            texts, 1 compares means, more prefers long texts.
        early_stopping: When a row with k ended hypotheses is done; see the module.
    """

    beams: int = 4
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: Says which one is wrong and what is allowed.
        """
        if self.beams < 1:
            raise ValueError(f"beams is {self.beams}; it must be at least 1")
        if not math.isfinite(self.length_penalty):
            raise ValueError(f"length_penalty is {self.length_penalty}; it must be a finite number")
        if self.early_stopping not in (True, False, "never"):
            raise ValueError(f'early_stopping is {self.early_stopping!r}; choose True, False or "never"')

    @property
    def candidates(self) -> int:
        """How many next tokens of each live hypothesis are enough."""
        return 2 * self.beams


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One translation that was found.

    Attributes:
        tokens: Without the start token and those that were forced behind it; EOS is included where it was reached.
        score: What hypotheses of one row are ranked by.
        log_prob: Sum of the tokens' log-probabilities; those of forced tokens count as 0.
    """

    tokens: list[int]
    score: float
    log_prob: float


@dataclass(frozen=True, slots=True)
class Live:
    """A hypothesis that goes on.

    Attributes:
        tokens: Chosen so far, as in `Hypothesis`.
        log_prob: Their sum.
    """

    tokens: list[int] = field(default_factory=list)
    log_prob: float = 0.0


class BeamRow:
    """The search for one source.

    Attributes:
        live: Hypotheses to compute next tokens for, the best first: one at the beginning, then k. Fewer only if
            there are not enough tokens to choose from.
        done: Nothing can be added any more.
    """

    def __init__(self, settings: BeamSettings, *, limit: int, eos: int, forced: int = 0) -> None:
        """Begin.

        Args:
            settings: Of the search.
            limit: Most new tokens, at least 1, EOS included; a hypothesis ends there even without EOS.
            eos: Id that ends a hypothesis.
            forced: How many tokens the target begins with; they are part of its length but not of the limit.
        """
        self.live = [Live()]
        self.done = False
        self._settings = settings
        self._limit = limit
        self._eos = eos
        self._forced = forced
        self._ended: list[Hypothesis] = []

    @property
    def hypotheses(self) -> list[Hypothesis]:
        """What has ended so far, the best first; when done, k of them if there were enough tokens to choose from."""
        return list(self._ended)

    def advance(self, tokens: Sequence[Sequence[int]], log_probs: Sequence[Sequence[float]]) -> list[int]:
        """Choose how the live hypotheses go on.

        Args:
            tokens: Per live hypothesis its `BeamSettings.candidates` best next tokens, in any order. More do no harm.
            log_probs: Of each of them. A token whose log-probability is -inf or not a number is not chosen.

        Returns:
            Per new live hypothesis, the index of the one that it continues. Empty when the row is done.
        """
        beams = self._settings.beams
        found = [
            (-(live.log_prob + log_prob), parent, token)
            for parent, live in enumerate(self.live)
            for token, log_prob in zip(tokens[parent], log_probs[parent], strict=True)
            if log_prob > -math.inf
        ]
        generated = len(self.live[0].tokens) + 1
        at_limit = generated >= self._limit
        going: list[Live] = []
        parents: list[int] = []
        for rank, (cost, parent, token) in enumerate(sorted(found)[: self._settings.candidates]):
            chosen = [*self.live[parent].tokens, token]
            if not at_limit and token != self._eos:
                if len(going) < beams:
                    going.append(Live(chosen, -cost))
                    parents.append(parent)
            elif rank < beams:
                self._ended.append(Hypothesis(chosen, self._score(-cost, generated), -cost))
        self._ended.sort(key=lambda hypothesis: -hypothesis.score)
        del self._ended[beams:]
        self.live = going
        self.done = not going or self._cannot_improve(generated)
        if self.done:
            self.live = []
            return []
        return parents

    def _score(self, log_prob: float, generated: int) -> float:
        return float(log_prob / (generated + self._forced) ** self._settings.length_penalty)

    def _cannot_improve(self, generated: int) -> bool:
        """Whether enough have ended and the live ones have no chance, as far as the settings want to know."""
        if len(self._ended) < self._settings.beams:
            return False
        if self._settings.early_stopping is True:
            return True
        if self._settings.early_stopping == "never" and self._settings.length_penalty > 0:
            generated = self._limit
        return self._score(self.live[0].log_prob, generated) <= self._ended[-1].score


class BeamSearch:
    """The searches for several sources that begin together, as one flat batch of live hypotheses.

    Attributes:
        rows: One per source.
    """

    def __init__(self, settings: BeamSettings, limits: Sequence[int], *, eos: int, forced: int = 0) -> None:
        """Begin.

        Args:
            settings: Of the search.
            limits: Per source, as `BeamRow`'s.
            eos: As `BeamRow`'s.
            forced: As `BeamRow`'s.
        """
        self.rows = [BeamRow(settings, limit=limit, eos=eos, forced=forced) for limit in limits]

    @property
    def sources(self) -> list[int]:
        """Per live hypothesis, the index of its source; empty when all are done."""
        return [index for index, row in enumerate(self.rows) for _ in row.live]

    @property
    def newest(self) -> list[int]:
        """Per live hypothesis, the token it was continued by."""
        return [live.tokens[-1] for row in self.rows for live in row.live]

    @property
    def hypotheses(self) -> list[list[Hypothesis]]:
        """Per source, what was found, the best first."""
        return [row.hypotheses for row in self.rows]

    def advance(self, tokens: Sequence[Sequence[int]], log_probs: Sequence[Sequence[float]]) -> list[int]:
        """Choose how the live hypotheses go on.

        Args:
            tokens: Per live hypothesis its best next tokens, see `BeamRow.advance`.
            log_probs: Of each of them.

        Returns:
            Per new live hypothesis, the index in the batch of the one that it continues.
        """
        parents: list[int] = []
        start = 0
        for row in self.rows:
            end = start + len(row.live)
            if end > start:
                parents += [start + parent for parent in row.advance(tokens[start:end], log_probs[start:end])]
            start = end
        return parents
