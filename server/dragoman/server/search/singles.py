"""Rows with one hypothesis: the best token, a drawn one, or the next one of a given target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dragoman.server.request import RequestStatus
from dragoman.server.search.decision import Decision
from dragoman.server.search.ending import hypothesis_of
from dragoman.server.search.logits import Found, LogitRows
from dragoman.server.search.rows import Rows
from dragoman.server.search.running import Running
from dragoman.server.search.sampling import LEAST_TEMPERATURE, LISTED, draw, draw_from_all, uniforms
from dragoman.server.step import Floats, Int64s, StepOutputs

Bools = NDArray[np.bool_]
_NONE = np.zeros(0, np.int64)


@dataclass(slots=True)
class Choice:
    """A step's tokens of the rows with one hypothesis.

    Attributes:
        tokens: [n] int64.
        which: [n] int64, which candidate it is; 0 where it is not drawn from candidates. None if nowhere.
        faulty: [n] bool, where there is no number to choose by. None if nowhere.
        stuck: [n] bool, where all tokens are forbidden. None if nowhere.
    """

    tokens: Int64s
    which: Int64s | None = None
    faulty: Bools | None = None
    stuck: Bools | None = None


class Draws:
    """Some of the rows, which draw their tokens, with what they need for it."""

    def __init__(self, rows: Rows, slots: Int64s, at: Int64s, source: Int64s) -> None:
        """Gather the options.

        Args:
            rows: Of the search.
            slots: [n], of the rows.
            at: [n], where they are among the rows with one hypothesis.
            source: [n], where they are in the array that they draw from.
        """
        self.at, self.source = at, source
        self.temperature = np.maximum(rows.temperature[slots], LEAST_TEMPERATURE)
        self.top_p = rows.top_p[slots]
        self.top_k, self._seed = rows.top_k[slots], rows.seed[slots]
        self._base = rows.base[slots]
        self._length, self._slots = rows.length, slots

    def numbers(self) -> NDArray[np.float64]:
        """Return a number for each row; its position is counted from the first free token on."""
        return uniforms(self._seed, self._length[self._slots] - self._base)


class Singles:
    """Free rows of texts without beams, as long as no row comes or goes."""

    def __init__(
        self, rows: Rows, slots: Int64s, running: Sequence[Running], logits: LogitRows | None, wide: Bools,
        *, never: Bools, ends: Bools, eos: int,
    ) -> None:  # fmt: skip
        """Prepare.

        Args:
            rows: Of the search.
            slots: [n] int64, ascending.
            running: Their n texts.
            logits: The rows that need logits.
            wide: [n], which ones do.
            never: [V + 1], ids that must not be chosen; the last stands for all that are no ids.
            ends: The same, and EOS.
            eos: Id of it.
        """
        self._rows, self._slots, self._running = rows, slots, running
        self._told = [row for row, text in enumerate(running) if text.tells]
        self._never, self._ends, self._eos = never, ends, eos
        self._no_id = np.array(len(never) - 1, np.uint64)
        self._last = rows.last[slots]
        self._place = logits.place[slots] if logits is not None else slots
        self._candidate_draws: Draws | None = None
        self._listed_draws: Draws | None = None
        self._full_draws: Draws | None = None
        self._wide = self._given = self._scored_by_candidates = self._scored_by_logits = _NONE
        greedy = not (np.count_nonzero(wide) or np.count_nonzero(rows.wants[slots]))
        self._steps_left = int((self._last - rows.length[slots]).min()) if greedy else 0
        if not greedy:
            self._distinguish(wide)

    def _distinguish(self, wide: Bools) -> None:
        """Find the rows that are more than greedy."""
        rows, slots = self._rows, self._slots
        given, sampled, scored = (column[slots] != 0 for column in (rows.given, rows.sampled, rows.scored))
        listed = wide & (rows.top_k[slots] > 0) & (rows.top_k[slots] <= LISTED)
        self._candidate_draws = self._draws(sampled & ~wide, slots)
        self._listed_draws = self._draws(sampled & listed, self._place)
        self._full_draws = self._draws(sampled & wide & ~listed, self._place)
        self._wide = wide.nonzero()[0]
        self._given = given.nonzero()[0]
        self._scored_by_candidates = (scored & ~wide).nonzero()[0]
        self._scored_by_logits = (scored & wide).nonzero()[0]

    def _draws(self, mask: Bools, source: Int64s) -> Draws | None:
        at = mask.nonzero()[0]
        return Draws(self._rows, self._slots[at], at, source[at]) if at.size else None

    def choose(self, outputs: StepOutputs, found: Found | None) -> Choice:
        """Choose a token for each row, while logits are adjusted."""
        choice = Choice(outputs.next_ids.take(self._slots))
        if self._wide.size and found is not None:
            self._choose_by_logits(found, choice)
        if self._candidate_draws is not None:
            self._draw_from_candidates(self._candidate_draws, outputs, choice)
        if self._given.size:
            slots = self._slots[self._given]
            choice.tokens[self._given] = self._rows.history[slots, self._rows.length[slots]]
        return choice

    def _choose_by_logits(self, found: Found, choice: Choice) -> None:
        at, place = self._wide, self._place[self._wide]
        values = found.values[place, 0]
        choice.faulty, choice.stuck = np.zeros((2, len(choice.tokens)), np.bool_)
        choice.faulty[at], choice.stuck[at] = np.isnan(values), values == -np.inf
        choice.stuck[self._given] = False
        choice.tokens[at] = found.ids[place, 0]
        if self._listed_draws is not None:
            draws = self._listed_draws
            ids, scores = found.ids[draws.source], found.values[draws.source]
            which = draw(scores, draws.numbers(), draws.temperature, draws.top_k, draws.top_p)
            choice.tokens[draws.at] = ids[np.arange(len(ids)), which]
        if self._full_draws is not None:
            draws = self._full_draws
            columns = (draws.numbers(), draws.temperature, draws.top_k, draws.top_p)
            for row in (~(choice.faulty | choice.stuck)[draws.at]).nonzero()[0].tolist():
                place = draws.source[row]
                listed = found.ids[place, :LISTED], found.values[place, :LISTED]
                options = (column[row].item() for column in columns)
                choice.tokens[draws.at[row]] = draw_from_all(found.scores[place], listed, *options)

    def _draw_from_candidates(self, draws: Draws, outputs: StepOutputs, choice: Choice) -> None:
        scores = outputs.candidate_scores[draws.source]  # type: ignore[index]  # they were wanted
        top_k = np.minimum(draws.top_k, scores.shape[1])
        which = draw(scores, draws.numbers(), draws.temperature, top_k, draws.top_p)
        choice.tokens[draws.at] = outputs.candidate_ids[draws.source, which]  # type: ignore[index]
        choice.which = np.zeros(len(choice.tokens), np.int64)
        choice.which[draws.at] = which
        if choice.faulty is None:
            choice.faulty = np.zeros(len(choice.tokens), np.bool_)
        choice.faulty[draws.at] = ~(scores < np.inf).all(axis=1) | (scores[:, 0] == -np.inf)

    def commit(self, choice: Choice, outputs: StepOutputs, found: Found | None, decision: Decision) -> None:
        """Write down what was chosen and end rows; the logits are again what the graph gave."""
        rows, slots, tokens = self._rows, self._slots, choice.tokens
        length = rows.length.take(slots)
        rows.history[slots, length] = tokens
        decision.tokens[slots] = tokens
        ids = np.minimum(tokens.view(np.uint64), self._no_id).view(np.int64)
        if self._nobody_ends(ids, outputs):
            decision.new_tokens += len(tokens)
            self._tell(self._told, tokens, decision)
            return
        faulty = self._faults(choice, ids, outputs, found, length)
        is_last = length >= self._last
        is_eos = tokens == self._eos
        if self._given.size:  # only at its end: what is inside does not end it
            is_eos[self._given] &= is_last[self._given]
        ends, nothing = is_eos | is_last | faulty, faulty
        if choice.stuck is not None:
            ends |= choice.stuck
            nothing = faulty | choice.stuck
        is_text = ~(is_eos | nothing)
        decision.new_tokens += int(np.count_nonzero(is_text))
        self._tell([row for row in self._told if is_text[row]], tokens, decision)
        for row in ends.nonzero()[0].tolist():
            self._end(row, decision, faulty=bool(faulty[row]), chose=not nothing[row], eos=bool(is_eos[row]))

    def _nobody_ends(self, ids: Int64s, outputs: StepOutputs) -> bool:
        """Whether all rows are greedy and go on, as in most steps; False where that takes a closer look."""
        self._steps_left -= 1
        if self._steps_left < 0 or np.count_nonzero(self._ends.take(ids)):
            return False
        return outputs.logits is None or np.count_nonzero(self._are_numbers(outputs.logits, ids)) == len(ids)

    def _are_numbers(self, logits: Floats, ids: Int64s) -> Bools:
        """Return [n], whether the logits of these tokens are finite."""
        finite: Bools = np.isfinite(logits.take(self._slots * logits.shape[1] + ids))
        return finite

    def _tell(self, rows: Sequence[int], tokens: Int64s, decision: Decision) -> None:
        decision.emitted += [(self._running[row].request, int(tokens[row])) for row in rows]

    def _faults(self, choice: Choice, ids: Int64s, outputs: StepOutputs, found: Found | None, length: Int64s) -> Bools:
        """Keep log-probabilities that are wanted; return whose choice is none. `ids` are the tokens, V for no id."""
        faulty: Bools = self._never[ids]
        if outputs.logits is not None:
            # Where all are NaN, the graph's argmax may be any id, EOS too.
            faulty |= ~self._are_numbers(outputs.logits, np.minimum(ids, outputs.logits.shape[1] - 1))
        if choice.stuck is not None:
            faulty &= ~choice.stuck
            for row in choice.stuck.nonzero()[0].tolist():  # by the graph, if not by the options
                faulty[row] = not self._running[row].request.options.adjusts_scores
        faulty[self._given] = False
        if choice.faulty is not None:
            faulty |= choice.faulty
        at = self._scored_by_candidates
        if at.size:
            which = 0 if choice.which is None else choice.which[at]
            scores = outputs.candidate_scores[self._slots[at], which]  # type: ignore[index]  # they were wanted
            self._rows.scores[self._slots[at], length[at]] = scores
            faulty[at] |= ~np.isfinite(scores)
        at = self._scored_by_logits
        if at.size and found is not None and found.normalizer is not None and outputs.logits is not None:
            slots, normalizer = self._slots[at], found.normalizer[self._place[at]]
            logits = outputs.logits[slots, np.minimum(ids[at], outputs.logits.shape[1] - 1)].astype(np.float64)
            self._rows.scores[slots, length[at]] = logits - normalizer
            faulty[at] |= ~np.isfinite(normalizer) | ~(logits < np.inf)
        return faulty

    def _end(self, row: int, decision: Decision, *, faulty: bool, chose: bool, eos: bool) -> None:
        text, slot = self._running[row], int(self._slots[row])
        if faulty:
            text.request.hypotheses = []
            status = RequestStatus.FAILED
            decision.tokens[slot] = self._eos
        else:
            end = int(self._rows.length[slot]) + chose
            text.request.hypotheses = [hypothesis_of(self._rows, text, slot, end, eos=eos and chose)]
            by_eos = chose and (eos or bool(self._rows.given[slot]))
            status = RequestStatus.EOS if by_eos else RequestStatus.LENGTH
        decision.ended.append((text.request, status))
