"""Beam search of all texts with equally many beams at once; the rules are those of `dragoman.model.beam`.

Arrays are [n texts, k beams, C next tokens], beams in order of rank. What goes beyond those rules: GNMT's
normalisation, the coverage penalty, patience.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dragoman.server.request import Hypothesis, RequestStatus
from dragoman.server.search.decision import Decision
from dragoman.server.search.ending import hypothesis_of
from dragoman.server.search.logits import Found, LogitRows
from dragoman.server.search.rows import NEVER, Rows, norm
from dragoman.server.search.running import Running
from dragoman.server.step import Int64s, StepOutputs

Bools = NDArray[np.bool_]
Reals = NDArray[np.float64]


@dataclass(slots=True)
class Continuations:
    """The 2k best continuations [n, 2k] of each text's hypotheses, best first.

    Attributes:
        sums: Log-probabilities of the hypotheses that they make; -inf where there is none.
        tokens: Their tokens.
        parents: Rank of the hypothesis that they continue.
        scores: Log-probability of the token alone.
        faulty: [n], whose outputs are no numbers.
    """

    sums: Reals
    tokens: Int64s
    parents: Int64s
    scores: Reals
    faulty: Bools | None


class BeamGroup:
    """Texts with k beams whose next tokens come from the same output, as long as no row comes or goes."""

    def __init__(
        self, rows: Rows, slots: Int64s, running: Sequence[Running], logits: LogitRows | None, *, never: Bools, eos: int
    ) -> None:
        """Prepare.

        Args:
            rows: Of the search.
            slots: [n, k] int64, of each text in order of rank.
            running: The n texts.
            logits: The rows that need logits, if these do; None if they choose from candidates.
            never: [V + 1], ids that must not be chosen; the last stands for all that are no ids.
            eos: Id of it.
        """
        self._rows, self._slots, self._running, self._logits = rows, slots, running, logits
        self._never, self._no_id, self._eos = never, np.array(len(never) - 1, np.uint64), eos
        count, beams = slots.shape
        self._beams = beams
        first = slots[:, 0]
        self._last, self._early, self._enough = rows.last[first], rows.early[first], rows.enough[first]
        self._normalization = rows.penalty[first], rows.offset[first], rows.scale[first]
        self._reaches = (self._early == NEVER) & (rows.penalty[first] > 0)
        self._norm_at_last = norm(self._last, *self._normalization)
        self._scored = bool(rows.scored[first].any())
        self._attentive = [row for row, text in enumerate(running) if text.attention is not None]
        self._coverage = rows.coverage[first] > 0
        self._covers = bool(self._coverage.any())
        self._row = np.arange(count)[:, None]
        self._ranks = np.arange(beams)

    def advance(self, outputs: StepOutputs, found: Found | None, decision: Decision) -> None:
        """Choose how all hypotheses go on."""
        rows, beams = self._rows, self._beams
        length = rows.length[self._slots[:, 0]]
        best = self._continuations(outputs, found)
        if self._attentive and outputs.alignment is not None:
            for row in self._attentive:
                self._running[row].attention.look(outputs.alignment[self._slots[row]], free=True)  # type: ignore[union-attr]
        ends = best.tokens == self._eos
        ends |= (length >= self._last)[:, None]
        real = best.sums > -np.inf
        goes = real & ~ends
        number = goes.cumsum(axis=1)
        goes &= number <= beams
        ended = (ends & real)[:, :beams]
        faulty = self._faults(best, goes, ended)
        divisor = norm(length, *self._normalization)
        if np.count_nonzero(ended):  # `any` takes four times as long
            self._keep(best, ended, divisor, length)
        alive = np.minimum(number[:, -1], beams)
        sums, tokens, parents, scores = self._select(best, goes, alive)
        for row in self._attentive:
            self._running[row].attention.follow(parents[row])  # type: ignore[union-attr]
        done = alive == 0
        full = rows.ended[self._slots[:, 0]] >= self._enough
        if np.count_nonzero(full):
            done |= full & self._cannot_improve(sums, divisor)
        if faulty is not None:
            done |= faulty
            tokens[faulty] = self._eos  # theirs may be no ids
        if np.count_nonzero(done):
            self._end(done, faulty, length, decision)
        self._move(sums, tokens, parents, scores, done, length, decision)

    def _continuations(self, outputs: StepOutputs, found: Found | None) -> Continuations:
        slots, beams = self._slots, self._beams
        count = 2 * beams
        if self._logits is None or found is None or found.normalizer is None:
            ids = outputs.candidate_ids[slots][:, :, :count]  # type: ignore[index]  # they were wanted
            scores = outputs.candidate_scores[slots][:, :, :count].astype(np.float64)  # type: ignore[index]
        else:
            place = self._logits.place[slots]
            ids = found.ids[place][:, :, :count]
            scores = found.values[place][:, :, :count] - found.normalizer[place][:, :, None]
        width = scores.shape[2]
        sums = (scores + self._rows.sum[slots][:, :, None]).reshape(len(slots), -1)
        faulty = None
        if not sums.max() < np.inf:  # NaN spreads
            faulty = ~(sums.max(axis=1) < np.inf)
            sums[faulty] = -np.inf
        order = (-sums).argsort(axis=1, kind="stable")[:, :count]
        row = self._row
        return Continuations(
            sums[row, order],
            ids.reshape(sums.shape)[row, order],
            order // width,
            scores.reshape(sums.shape)[row, order],
            faulty,
        )

    def _faults(self, best: Continuations, goes: Bools, ended: Bools) -> Bools | None:
        """Return whose outputs are no numbers or choose what is masked."""
        ids = np.minimum(best.tokens.view(np.uint64), self._no_id).view(np.int64)
        masked: Bools = self._never[ids]
        if not np.count_nonzero(masked):
            return best.faulty
        masked[best.sums == -np.inf] = False
        faulty: Bools = np.asarray((masked & goes).any(axis=1))
        faulty |= (masked[:, : self._beams] & ended).any(axis=1)
        if best.faulty is not None:
            faulty |= best.faulty
        return faulty

    def _keep(self, best: Continuations, ended: Bools, divisor: Reals, length: Int64s) -> None:
        """Keep hypotheses that end now, if they are good enough."""
        rows, first = self._rows, self._slots[:, 0]
        values = best.sums[:, : self._beams] / divisor[:, None]
        if self._covers:
            for row in self._coverage.nonzero()[0].tolist():
                attention = self._running[row].attention
                values[row] += attention.penalties()[best.parents[row, : self._beams]]  # type: ignore[union-attr]
        ended &= (rows.ended[first] < self._enough)[:, None] | (values > rows.worst[first][:, None])
        touched = set()
        for row, place in zip(*(axis.tolist() for axis in ended.nonzero()), strict=True):
            text, rank = self._running[row], int(best.parents[row, place])
            slot, end = int(self._slots[row, rank]), int(length[row])
            base, token = int(rows.base[slot]), int(best.tokens[row, place])
            is_eos = token == self._eos
            tokens = rows.history[slot, base:end].tolist()
            if not is_eos:
                tokens.append(token)
            hypothesis = Hypothesis(
                tokens, float(best.sums[row, place]), float(values[row, place]), ended_by_eos=is_eos
            )
            if rows.scored[slot]:
                hypothesis.token_scores = [*rows.scores[slot, base:end].tolist(), float(best.scores[row, place])]
            if text.attention is not None:
                hypothesis.alignment = text.attention.path(rank, len(tokens))
            text.add(hypothesis, int(self._enough[row]))
            touched.add(row)
        for row in touched:
            kept = self._running[row].ended
            rows.ended[self._slots[row]] = len(kept)
            rows.worst[self._slots[row]] = kept[-1].score

    def _select(self, best: Continuations, goes: Bools, alive: Int64s) -> tuple[Reals, Int64s, Int64s, Reals]:
        """Return sums, tokens, parents and scores [n, k] of the hypotheses that go on."""
        beams, row = self._beams, self._row
        whole = np.count_nonzero(alive == beams) == len(alive)
        if whole:
            place = goes.nonzero()[1].reshape(-1, beams)
        else:
            place = (~goes).argsort(axis=1, kind="stable")[:, :beams]
            # There are not enough to choose from. Rows without a hypothesis do as the best one does.
            place = np.where(self._ranks < alive[:, None], place, place[:, :1])
        sums = best.sums[row, place]
        if not whole:
            sums[self._ranks >= alive[:, None]] = -np.inf
        return sums, best.tokens[row, place], best.parents[row, place], best.scores[row, place]

    def _cannot_improve(self, sums: Reals, divisor: Reals) -> Bools:
        """Return which texts have no chance of something better, as far as their options want to know."""
        reach = np.where(self._reaches, self._norm_at_last, divisor)
        hopes = sums[:, 0] / reach
        for row in (self._coverage & (self._early != NEVER)).nonzero()[0].tolist():  # else all may yet be covered
            penalties = self._running[row].attention.penalties()
            hopes[row] = (sums[row] / reach[row] + penalties).max()
        cannot: Bools = (self._early == 1) | (hopes <= self._rows.worst[self._slots[:, 0]])
        return cannot

    def _end(self, done: Bools, faulty: Bools | None, length: Int64s, decision: Decision) -> None:
        for row in done.nonzero()[0].tolist():
            text = self._running[row]
            failed = faulty is not None and bool(faulty[row])
            if not failed and not text.ended:  # nothing was left to choose from
                failed = not text.request.options.adjusts_scores
                text.ended = [hypothesis_of(self._rows, text, int(self._slots[row, 0]), int(length[row]))]
            if failed:
                text.ended = []
            text.conclude()
            by_eos = bool(text.ended) and text.ended[0].ended_by_eos
            status = RequestStatus.EOS if by_eos else RequestStatus.LENGTH
            decision.ended.append((text.request, RequestStatus.FAILED if failed else status))

    def _move(
        self, sums: Reals, tokens: Int64s, parents: Int64s, scores: Reals, done: Bools, length: Int64s,
        decision: Decision,
    ) -> None:  # fmt: skip
        """Give each hypothesis a slot, that of its parent if no better one has it: few states have to move."""
        rows, slots, row = self._rows, self._slots, self._row
        heir = np.full(slots.shape, -1)
        heir[row, parents[:, ::-1]] = self._ranks[::-1]  # of several children the best, which is written last
        moves = heir[row, parents] != self._ranks
        new = slots[row, parents]
        if np.count_nonzero(moves):
            origin = new[moves]
            new[moves] = slots[heir < 0]  # as many in each text, in the same order
            moved = (moves & ~done[:, None])[moves]
            if np.count_nonzero(moved):
                origin, target = origin[moved], new[moves][moved]
                if decision.parents is None:
                    decision.parents = np.arange(len(decision.tokens))
                decision.parents[target] = origin
                rows.continue_from(origin, target, scored=self._scored)
        rows.history[new, length[:, None]] = tokens
        if self._scored:
            rows.scores[new, length[:, None]] = scores
        rows.sum[new] = sums
        rows.rank[new] = self._ranks
        decision.tokens[new] = tokens
        self._slots = new
