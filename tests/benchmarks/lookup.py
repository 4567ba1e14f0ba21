"""Prompt lookup: how many decode steps it would save, and what it would gain (Saxena 2023; no model, exact output).

Before each step the last tokens of a target are looked for in its source and in what it has said already; what followed
there is proposed, and one step checks all of it. What equals the greedy output is kept, and the first token behind that
comes with it. All of this can be computed afterwards from finished outputs, because they do not change.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lookup:
    """How proposals are found.

    Attributes:
        shortest: Tokens that have to match, at least.
        longest: Matches of so many tokens are looked for first.
        count: Tokens proposed, at most.
    """

    shortest: int
    longest: int
    count: int

    def propose(self, source: Sequence[int], target: Sequence[int]) -> list[int]:
        """Return what may follow `target`: of the longest match, first in the source, else the latest in the target."""
        for size in range(min(self.longest, len(target)), self.shortest - 1, -1):
            wanted = list(target[-size:])
            for text in (source, target):
                for start in range(len(text) - size - 1, -1, -1):  # something has to follow
                    if list(text[start : start + size]) == wanted:
                        return list(text[start + size : start + size + self.count])
        return []


def verified_rows(source: Sequence[int], target: Sequence[int], lookup: Lookup) -> list[int]:
    """Return how many tokens each step of a text computes: one, and those proposed.

    Args:
        source: Ids of the text.
        target: Its greedy output, EOS included where it has one.
        lookup: Makes the proposals.
    """
    rows, done = [], 0
    while done < len(target):
        proposal = lookup.propose(source, target[:done])
        accepted = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(proposal, target[done:], strict=False))
        rows.append(1 + len(proposal))
        done += 1 + len(list(accepted))
    return rows


def decode_time(texts: Sequence[Sequence[int]], lanes: int, cost: Callable[[int], float]) -> float:
    """Return the time of all steps if `lanes` texts are alive at once and the next one joins where one ends.

    Args:
        texts: `verified_rows` of each.
        lanes: Texts at once.
        cost: Time of a step with so many rows.
    """
    waiting = iter(texts)
    alive: list[Iterator[int]] = [iter(rows) for rows in itertools.islice(waiting, lanes)]
    total = 0.0
    while alive:
        rows, still = 0, []
        for lane in alive:
            current: Iterator[int] | None = lane
            while current is not None and (own := next(current, 0)) == 0:
                following = next(waiting, None)
                current = None if following is None else iter(following)
            if current is not None:
                rows += own
                still.append(current)
        alive = still
        if alive:
            total += cost(rows)
    return total
