"""Which rows a step handles how: index arrays that hold as long as no row comes, goes or changes its kind.

A row changes its kind when its forced tokens are used up, when it has chosen a first token whose alternatives are
wanted, and when EOS becomes allowed; a plan knows after how many steps the first of these happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dragoman.server.options import SearchOptions
from dragoman.server.search.adjust import Adjustments, Registry
from dragoman.server.search.attention import needs_attention
from dragoman.server.search.beam import BeamGroup
from dragoman.server.search.logits import LogitRows
from dragoman.server.search.rows import Rows
from dragoman.server.search.running import Running
from dragoman.server.search.sampling import LISTED
from dragoman.server.search.singles import Singles
from dragoman.server.step import Int64s, Wanted

Bools = NDArray[np.bool_]
_FOR_EVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Model:
    """What a search knows of its model.

    Attributes:
        eos: Id of it.
        vocab_size: V.
        candidates: How many the graph returns; 0 if none.
        never: [V + 1] bool, ids that must not be chosen; the last stands for all that are no ids.
        ends: [V + 1] bool, the same and EOS: a text whose row chooses one is done.
    """

    eos: int
    vocab_size: int
    candidates: int
    never: Bools
    ends: Bools


class Plan:
    """How the live rows are handled.

    Attributes:
        wanted: What a step has to return.
        calculates: Whether anything is done with it but to take the best ids.
        steps: After so many the plan is no longer right.
        forced: [m] int64, rows that take a given token which is no part of their text.
        logits: Rows that need logits.
        singles: Free rows of texts without beams.
        groups: Free rows of texts with beams.
        watched: Texts whose attention is of use, their rows in order of rank, and whether they are free; the groups
            look after their own.
        first: Texts that choose their first free token in the plan's first step, and their best rows.
    """

    def __init__(self, rows: Rows, owners: Sequence[Running], banned: Registry, model: Model) -> None:
        """Look at the live rows.

        Args:
            rows: Of the search.
            owners: Text of each live row.
            banned: Suppressed sequences of the texts.
            model: What is searched.
        """
        self._rows, self._owners, self._model = rows, owners, model
        self._live = live = slice(0, len(owners))
        length, base, wants = rows.length[live], rows.base[live], rows.wants[live]
        free = length >= base
        no_eos = length < rows.least[live]
        if np.count_nonzero(no_eos):  # `any` takes four times as long
            no_eos &= rows.given[live] == 0
        wide = no_eos & free
        wanting = bool(np.count_nonzero(wants))
        if wanting:
            wide |= ((wants & Wanted.LOGITS.value) > 0) & free
        self.forced = (~free).nonzero()[0]
        self.first = [(owners[s], s) for s in ((length == base) & (rows.rank[live] == 0)).nonzero()[0].tolist()]
        self._alternatives = max((text.request.options.alternatives for text, _ in self.first), default=0)
        self.steps = 1 if self._alternatives else self._lasts(free, no_eos)
        looking = bool(np.count_nonzero(wide))
        self.logits = self._logit_rows(wide.nonzero()[0], banned) if looking else None
        single = rows.beams[live] == 1
        slots = (free & single).nonzero()[0]
        self.singles = self._singles(slots, wide[slots]) if slots.size else None
        self.groups = self._beam_groups(free & ~single, wide) if np.count_nonzero(single) < len(single) else []
        self.watched = self._watched(free) if wanting else []
        self.wanted = self._wanted(free, wanting=wanting, looking=looking)
        self.calculates = bool(self.wanted)

    def _lasts(self, free: Bools, no_eos: Bools) -> int:
        """Return after how many steps a row changes its kind."""
        if np.count_nonzero(free) == len(free) and not np.count_nonzero(no_eos):
            return _FOR_EVER
        rows, live = self._rows, self._live
        length, base = rows.length[live], rows.base[live]
        changes = np.where(free, np.where(no_eos, rows.least[live] - length, _FOR_EVER), base - length)
        return int(changes.min())

    def _logit_rows(self, slots: Int64s, banned: Registry) -> LogitRows:
        rows = self._rows
        beams, top_k = rows.beams[slots], rows.top_k[slots]
        drawn = np.where((top_k == 0) | (top_k > LISTED), LISTED, top_k)
        count = np.where(beams > 1, 2 * beams, np.where(rows.sampled[slots] != 0, drawn, 1))
        normalized = bool(((beams > 1) | (rows.scored[slots] != 0)).any())
        adjustments = Adjustments(rows, slots, beams > 1, banned, self._model.eos)
        return LogitRows(
            slots, len(self._owners), count=int(count.max()), normalized=normalized, adjustments=adjustments
        )

    def _singles(self, slots: Int64s, wide: Bools) -> Singles:
        running = [self._owners[slot] for slot in slots.tolist()]
        model = self._model
        return Singles(self._rows, slots, running, self.logits, wide, never=model.never, ends=model.ends, eos=model.eos)

    def _beam_groups(self, free: Bools, wide: Bools) -> list[BeamGroup]:
        """Group texts by how many beams they have and where they choose from."""
        if not free.any():
            return []
        rows, live, model = self._rows, self._live, self._model
        groups = []
        kind = np.where(free, 2 * rows.beams[live] + wide, 0)
        for each in np.unique(kind[free]).tolist():
            slots = (kind == each).nonzero()[0]
            slots = slots[np.lexsort((rows.rank[slots], rows.serial[slots]))].reshape(-1, each // 2)
            running = [self._owners[slot] for slot in slots[:, 0].tolist()]
            logits = self.logits if each % 2 else None
            groups.append(BeamGroup(rows, slots, running, logits, never=model.never, eos=model.eos))
        return groups

    def _watched(self, free: Bools) -> list[tuple[Running, list[int], bool]]:
        rows, live = self._rows, self._live
        looks = (rows.wants[live] & Wanted.ALIGNMENT.value) > 0
        if not looks.any():
            return []
        looks &= ~free | (rows.beams[live] == 1)
        found: dict[Running, list[int]] = {}
        slots = looks.nonzero()[0]
        for slot in slots[rows.rank[slots].argsort(kind="stable")].tolist():
            found.setdefault(self._owners[slot], []).append(slot)
        return [(text, of_text, bool(free[of_text[0]])) for text, of_text in found.items()]

    def _wanted(self, free: Bools, *, wanting: bool, looking: bool) -> Wanted:
        rows, live = self._rows, self._live
        wanted = Wanted.NOTHING
        if wanting:
            # Forced tokens, too, cover the source.
            looks = np.where(rows.coverage[live] > 0, rows.wants[live] & Wanted.ALIGNMENT.value, 0)
            wanted = Wanted(int(np.bitwise_or.reduce(np.where(free, rows.wants[live], looks))))
        if looking:
            wanted |= Wanted.LOGITS
        if self._alternatives and self._model.candidates:
            wanted |= Wanted.CANDIDATES
        if self._alternatives > self._model.candidates:
            wanted |= Wanted.LOGITS
        return wanted


def wants(options: SearchOptions, *, banned: bool, candidates: int) -> Wanted:
    """Return what a text needs of a step besides the best ids when it is free and EOS allowed.

    Args:
        options: Of the text.
        banned: Whether any sequence is suppressed.
        candidates: How many the graph returns; 0 if none.
    """
    adjusted = options.repetition_penalty != 1.0 or options.no_repeat_ngram_size > 0 or banned
    scored = options.with_token_scores or options.beams > 1 or bool(options.score_target)
    enough = 0  # of so many best tokens, it needs no logits
    if options.beams > 1:
        enough = 2 * options.beams
    elif options.sampling is not None:
        enough = options.sampling.top_k or _FOR_EVER
    elif scored:
        enough = 1
    found = Wanted.NOTHING
    if adjusted or options.score_target or enough > candidates:
        found |= Wanted.LOGITS
    # The normaliser comes with candidates, so that scores do not depend on where they are taken from.
    if candidates and (scored or (enough and Wanted.LOGITS not in found)):
        found |= Wanted.CANDIDATES
    if needs_attention(options):
        found |= Wanted.ALIGNMENT
    return found
