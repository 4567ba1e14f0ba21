"""Numbers of every slot, one column per slot: live rows are the first ones, and a row moves by copying its column.

A row's length counts the tokens that its decoder has read when the coming step is done: the start token, forced
tokens, chosen ones. That is also the length of the hypothesis that the step makes, start token not counted.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.server.options import SearchOptions
from dragoman.server.request import Request
from dragoman.server.step import Wanted

_INTEGERS = 18
_REALS = 9
NEVER = 2
_EARLY: dict[Any, int] = {False: 0, True: 1, "never": NEVER}
_GNMT_OFFSET, _GNMT_SCALE = 5.0, 6.0
_LARGEST_NORM = 1e280


class Rows:
    """Columns of all slots. Of the integers and reals, each attribute is an array [slots].

    Attributes:
        history: [slots, longest + 1] int32, start token, forced tokens, chosen ones.
        scores: [slots, longest + 1] float64, log-probability of each token where somebody asked for it.
        serial: Number of its text: groups the rows of a text, and orders texts.
        rank: Place of a row among those of its text, the best first.
        beams: Rows of its text.
        length: See the module.
        base: Length at the first free step.
        last: Length at the last step that there can be.
        least: Shortest length at which EOS is allowed.
        ngram: No n-gram of this length may come twice; 0 is none.
        banned: Number of its suppressed sequences; 0 is none.
        sampled: Whether tokens are drawn.
        top_k: From how many; 0 means all.
        seed: Of the draws.
        scored: Whether each token's log-probability is kept.
        given: Whether the target is given, only to be scored.
        early: 0, 1 for early_stopping True, 2 for "never".
        ended: How many hypotheses of its text have ended and are kept.
        enough: How many are kept, and end the search.
        wants: What it needs of a step when it is free, as the value of `Wanted`.
        sum: Log-probability of the hypothesis; -inf where the row has none.
        penalty: Exponent of the length.
        offset: What is added to the length before.
        scale: What divides it then.
        repetition: Penalty; 1 is none.
        temperature: Of the draws.
        top_p: Of the draws.
        worst: Score of the worst hypothesis that has ended and is kept.
        coverage: Weight of the coverage penalty.
    """

    def __init__(self, slots: int, longest: int, start: int) -> None:
        """Allocate for targets of `longest` tokens behind the start token."""
        self.slots = slots
        self.longest = longest
        self.history = np.full((slots, longest + 1), start, np.int32)
        self.scores: NDArray[np.float64] = np.zeros((slots, longest + 1), np.float64)
        self._integers = np.zeros((_INTEGERS, slots), np.int64)
        self._reals = np.zeros((_REALS, slots), np.float64)
        (
            self.serial, self.rank, self.beams, self.length, self.base, self.last, self.least, self.ngram, self.banned,
            self.sampled, self.top_k, self.seed, self.scored, self.given, self.early, self.ended, self.enough,
            self.wants,
        ) = self._integers  # fmt: skip
        (
            self.sum, self.penalty, self.offset, self.scale, self.repetition, self.temperature, self.top_p, self.worst,
            self.coverage,
        ) = self._reals  # fmt: skip

    def admit(self, first: int, request: Request, *, serial: int, banned: int, wants: Wanted) -> None:
        """Begin a text in the slots from `first` on.

        Args:
            first: Its first slot; it takes `request.width` of them.
            request: The text.
            serial: Its number, larger than those before.
            banned: Number of its suppressed sequences.
            wants: What it needs of a step when it is free.
        """
        options = request.options
        slots = slice(first, first + request.width)
        known = [*request.first_target, *options.score_target]
        base = 1 + len(request.first_target)
        sampling = options.sampling
        # In the order of the attributes.
        self._integers[:, slots] = np.array(
            [
                serial, 0, request.width, 1, base, base + options.max_new_tokens - 1, base + options.min_new_tokens,
                options.no_repeat_ngram_size, banned, sampling is not None, sampling.top_k if sampling else 0,
                sampling.seed if sampling else 0, options.with_token_scores or bool(options.score_target),
                bool(options.score_target), _EARLY[options.early_stopping], 0, kept(options),
                wants.value,
            ],
            np.int64,
        )[:, None]  # fmt: skip
        is_gnmt = options.normalization == "gnmt"
        self._reals[:, slots] = np.array(
            [
                -math.inf, options.length_penalty, _GNMT_OFFSET if is_gnmt else 0.0, _GNMT_SCALE if is_gnmt else 1.0,
                options.repetition_penalty, sampling.temperature if sampling else 1.0,
                sampling.top_p if sampling else 1.0, -math.inf, options.coverage_penalty,
            ]
        )[:, None]  # fmt: skip
        self.rank[slots] = range(request.width)
        self.sum[first] = 0.0
        if known:
            self.history[slots, 1 : 1 + len(known)] = known

    def move(self, source: int, target: int) -> None:
        """Copy a row from one slot to another."""
        length = int(self.length[source])
        known = int(self.last[source]) if self.given[source] else max(length, int(self.base[source]))
        self._integers[:, target] = self._integers[:, source]
        self._reals[:, target] = self._reals[:, source]
        self.history[target, : known + 1] = self.history[source, : known + 1]
        if self.scored[source]:
            self.scores[target, : length + 1] = self.scores[source, : length + 1]

    def continue_from(self, parents: NDArray[np.int64], rows: NDArray[np.int64], *, scored: bool) -> None:
        """Copy hypotheses: each of `rows` gets the one of its parent; no parent is one of `rows`."""
        top = int(self.length[parents].max())
        self.history[rows, :top] = self.history[parents, :top]
        if scored:
            self.scores[rows, :top] = self.scores[parents, :top]


def kept(options: SearchOptions) -> int:
    """Return how many ended hypotheses are kept: as many end a search."""
    return max(options.hypotheses, math.ceil(options.beams * options.patience - 1e-9))


def norm(length: Any, penalty: Any, offset: Any, scale: Any) -> Any:
    """Return what the log-probability of a hypothesis of this length is divided by."""
    # Clipped: 512 ** 100 is a number, 2000 ** 100 is not one any more.
    return np.clip(np.power((length + offset) / scale, penalty), 1 / _LARGEST_NORM, _LARGEST_NORM)
