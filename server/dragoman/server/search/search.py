"""The search over all live rows: admit, decide, release."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dragoman.model.vocab import SpecialIds
from dragoman.server.request import Request, RequestStatus
from dragoman.server.search.adjust import Registry
from dragoman.server.search.best import best
from dragoman.server.search.decision import Decision
from dragoman.server.search.ending import hypothesis_of
from dragoman.server.search.logits import normalizer_of
from dragoman.server.search.plan import Model, Plan, wants
from dragoman.server.search.rows import Rows
from dragoman.server.search.running import Running
from dragoman.server.step import StepOutputs, Wanted


class Search:
    """What is known of every slot's hypothesis; mirrors the slots of the cache pool.

    A step is `wanted`, the runtime's step, `decide`. Between steps, `admit` and `release` do what the pool's methods
    of the same names do.

    Attributes:
        live: Slots in use; they are the first ones.
        requests: Texts that own them, in order of admission.
    """

    def __init__(
        self, slots: int, longest_target: int, special: SpecialIds, vocab_size: int, *, candidates: int
    ) -> None:
        """Allocate everything.

        Args:
            slots: Of the pool.
            longest_target: Most tokens of a target, forced ones included.
            special: Ids with a meaning.
            vocab_size: V.
            candidates: K, how many candidates the graph returns; 0 if it has no such output.
        """
        never = np.zeros(vocab_size + 1, np.bool_)
        never[[*special.never_generated, vocab_size]] = True
        ends = never.copy()
        ends[special.eos] = True
        self._model = Model(special.eos, vocab_size, candidates, never, ends)
        self._rows = Rows(slots, longest_target, special.start)
        self.live = 0
        self.requests: list[Request] = []
        self._owners: list[Running] = []
        self._texts: dict[Request, Running] = {}
        self._banned = Registry(special.eos, vocab_size)
        self._serial = 0
        self._plan: Plan | None = None

    def admit(self, requests: Sequence[Request]) -> None:
        """Begin texts; each takes the next `request.width` slots."""
        for request in requests:
            if self.live + request.width > self._rows.slots or request.longest_target > self._rows.longest:
                raise AssertionError(
                    f"a text of {request.width} rows and {request.longest_target} target tokens does not fit into "
                    f"{self._rows.slots - self.live} slots of {self._rows.longest}"
                )
            self._serial += 1
            banned = self._banned.add(request.options.suppressed)
            wanted = wants(request.options, banned=banned > 0, candidates=self._model.candidates)
            self._rows.admit(self.live, request, serial=self._serial, banned=banned, wants=wanted)
            self._texts[request] = text = Running(request, self.live)
            self._owners += [text] * request.width
            self.live += request.width
            self.requests.append(request)
        self._plan = None

    def wanted(self) -> Wanted:
        """Return what the next step has to return for these rows."""
        return self._current().wanted

    def decide(self, outputs: StepOutputs) -> Decision:
        """Choose every live row's next token.

        Logits are changed while this runs and are the same again afterwards.

        Args:
            outputs: Of the step, with all that was wanted.
        """
        plan, rows = self._current(), self._rows
        decision = Decision(np.full(self.live, self._model.eos, np.int64))
        if plan.calculates:
            with np.errstate(all="ignore"):  # infinite and missing numbers are expected, and judged
                self._choose(plan, outputs, decision)
        else:
            self._choose(plan, outputs, decision)
        if plan.first:
            failed = {request for request, status in decision.ended if status is RequestStatus.FAILED}
            decision.first = [text.request for text, _ in plan.first if text.request not in failed]
            plan.first = []
        rows.length[: self.live] += 1
        plan.steps -= 1
        if not plan.steps:
            self._plan = None
        return decision

    def _choose(self, plan: Plan, outputs: StepOutputs, decision: Decision) -> None:
        rows = self._rows
        self._watch(plan, outputs)
        found = plan.logits.read(outputs) if plan.logits is not None else None
        try:
            choice = plan.singles.choose(outputs, found) if plan.singles is not None else None
        finally:
            if found is not None:
                found.restore()
        self._note_alternatives(plan, outputs)
        if plan.forced.size:
            decision.tokens[plan.forced] = rows.history[plan.forced, rows.length[plan.forced]]
        if plan.singles is not None and choice is not None:
            plan.singles.commit(choice, outputs, found, decision)
        for group in plan.groups:
            group.advance(outputs, found, decision)

    def slots_of(self, request: Request) -> list[int]:
        """Return the slots that a text owns, ascending."""
        return sorted(self._texts[request].slots)

    def release(self, slot: int) -> int:
        """Free a slot; the last live row moves into it. Returns the slot it comes from."""
        last = self.live - 1
        text = self._owners[slot]
        text.slots.remove(slot)
        if not text.slots:
            self.requests.remove(text.request)
            del self._texts[text.request]
            self._banned.drop(text.request.options.suppressed)
        if slot != last:
            self._rows.move(last, slot)
            self._owners[slot] = moved = self._owners[last]
            moved.slots[moved.slots.index(last)] = slot
        self._owners.pop()
        self.live = last
        self._plan = None
        return last

    def conclude(self, request: Request) -> None:
        """Hand a running text what it has so far, the best first, as it is when its listener has seen enough."""
        text = self._texts[request]
        if not text.ended:
            best_slot = min(text.slots, key=self._rows.rank.__getitem__)
            end = int(self._rows.length[best_slot])
            text.ended = [hypothesis_of(self._rows, text, best_slot, end)]
        text.conclude()

    def clear(self) -> None:
        """Forget all rows."""
        for request in self.requests:
            self._banned.drop(request.options.suppressed)
        self.requests.clear()
        self._owners.clear()
        self._texts.clear()
        self.live = 0
        self._plan = None

    def _current(self) -> Plan:
        if self._plan is None:
            with np.errstate(all="ignore"):  # of extreme options
                self._plan = Plan(self._rows, self._owners, self._banned, self._model)
        return self._plan

    def _watch(self, plan: Plan, outputs: StepOutputs) -> None:
        if outputs.alignment is None:
            return
        for text, slots, free in plan.watched:
            if text.attention is not None:
                text.attention.look(outputs.alignment[slots], free=free)

    def _note_alternatives(self, plan: Plan, outputs: StepOutputs) -> None:
        """Keep the model's own best tokens of first free positions: no option changes their log-probabilities."""
        for text, slot in plan.first:
            count = text.request.options.alternatives
            if not count:
                continue
            if count <= self._model.candidates and outputs.candidate_ids is not None:
                ids, scores = outputs.candidate_ids[slot, :count], outputs.candidate_scores[slot, :count]  # type: ignore[index]  # both or none
            else:
                logits = outputs.logits[[slot]].astype(np.float32)  # type: ignore[index]  # they were wanted
                [ids], values = best(logits, min(count, logits.shape[1]))
                scores = values[0] - normalizer_of(outputs, np.array([slot]), logits)
            pairs = zip(ids.tolist(), scores.tolist(), strict=True)
            text.request.alternatives = [(token, score) for token, score in pairs if score > -np.inf]
