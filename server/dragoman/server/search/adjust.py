"""Scores of tokens that are changed before one is chosen: repetition, n-grams, suppressed sequences, no EOS yet.

As Hugging Face's logits processors do, in their order, over the start token and forced tokens too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.server.search.rows import Rows
from dragoman.server.step import Floats, Int64s

_LARGEST = float(np.finfo(np.float32).max)
Sequences = tuple[tuple[int, ...], ...]


class Banned:
    """Sequences that may not appear, made ready for arrays.

    Attributes:
        always: [m] int64, tokens that are a sequence of their own.
        completed: Per length p of what comes before: [m, p] int32 and the token [m] int64 that would complete it.
    """

    def __init__(self, sequences: Sequences, eos: int, vocab_size: int) -> None:
        """Sort sequences by length; EOS alone is no sequence, or a text could not end."""
        longer: dict[int, list[tuple[int, ...]]] = {}
        always = set()
        for sequence in sequences:
            if not 0 <= sequence[-1] < vocab_size or sequence == (eos,):
                continue
            if len(sequence) == 1:
                always.add(sequence[0])
            else:
                longer.setdefault(len(sequence) - 1, []).append(sequence)
        self.always = np.array(sorted(always), np.int64)
        self.completed = [
            (np.array([s[:-1] for s in group], np.int64), np.array([s[-1] for s in group], np.int64))
            for group in longer.values()
        ]

    def __bool__(self) -> bool:
        return bool(self.always.size or self.completed)


class Registry:
    """Texts often have the same suppressed sequences, so each set is prepared once and has a number."""

    def __init__(self, eos: int, vocab_size: int) -> None:
        """Begin with no sequences."""
        self._eos, self._vocab_size = eos, vocab_size
        self._numbers: dict[Sequences, int] = {}
        self._users: dict[Sequences, int] = {}
        self._banned: dict[int, Banned] = {}
        self._next = 1

    def __getitem__(self, number: int) -> Banned:
        return self._banned[number]

    def add(self, sequences: Sequences) -> int:
        """Return the number of a set that a new text has; 0 if it forbids nothing."""
        if not sequences:
            return 0
        self._users[sequences] = self._users.get(sequences, 0) + 1
        if sequences not in self._numbers:
            banned = Banned(sequences, self._eos, self._vocab_size)
            self._numbers[sequences] = self._next if banned else 0
            if banned:
                self._banned[self._next] = banned
                self._next += 1
        return self._numbers[sequences]

    def drop(self, sequences: Sequences) -> None:
        """Forget a set when the last text that has it leaves."""
        if not sequences:
            return
        self._users[sequences] -= 1
        if not self._users[sequences]:
            del self._users[sequences]
            self._banned.pop(self._numbers.pop(sequences), None)


@dataclass(slots=True)
class Edits:
    """Scores that were changed in place, to be put back."""

    scores: Floats
    before: list[tuple[Any, Any, Floats]] = field(default_factory=list)

    def put(self, rows: Any, ids: Any, values: Any) -> None:
        """Change scores."""
        self.before.append((rows, ids, self.scores[rows, ids]))
        self.scores[rows, ids] = values

    def undo(self) -> None:
        """Restore what was there."""
        for rows, ids, values in reversed(self.before):
            self.scores[rows, ids] = values
        self.before.clear()


class Adjustments:
    """What is changed in the rows of a matrix of scores, as long as no row comes or goes.

    Args of `__init__`:
        rows: Of the search.
        slots: [n] int64, the slot of each row of the matrix.
        log_scores: [n] bool, whether a row's penalties apply to log-probabilities, as they do in beam search.
        banned: Of the texts.
        eos: Id of it.
    """

    def __init__(self, rows: Rows, slots: Int64s, log_scores: NDArray[np.bool_], banned: Registry, eos: int) -> None:
        """Find the rows that each change concerns; given targets are scored as they are."""
        self._rows, self._slots, self._eos = rows, slots, eos
        free = rows.given[slots] == 0
        self._penalized = (free & (rows.repetition[slots] != 1.0)).nonzero()[0]
        self._penalty = rows.repetition[slots[self._penalized], None]
        self._log_scores = log_scores[self._penalized, None]
        sizes = np.where(free, rows.ngram[slots], 0)
        self._ngrams = [(size, (sizes == size).nonzero()[0]) for size in np.unique(sizes).tolist() if size]
        numbers = np.where(free, rows.banned[slots], 0)
        self._banned = [
            (banned[number], (numbers == number).nonzero()[0]) for number in np.unique(numbers).tolist() if number
        ]
        self._no_eos = (free & (rows.length[slots] < rows.least[slots])).nonzero()[0]

    def apply(self, scores: Floats, normalizer: NDArray[np.float64] | None) -> Edits:
        """Change scores in place.

        Args:
            scores: [n, V], logits.
            normalizer: [n], what makes log-probabilities of them; needed where `log_scores`.

        Returns:
            What was changed.
        """
        edits = Edits(scores)
        if self._penalized.size:
            self._penalize(edits, normalizer)
        for size, rows in self._ngrams:
            edits.put(*self._completing(size, rows), -np.inf)
        for banned, rows in self._banned:
            if banned.always.size:
                edits.put(rows[:, None], banned.always, -np.inf)
            for before, tokens in banned.completed:
                matches = self._endings(before, rows)
                edits.put(rows[matches[0]], tokens[matches[1]], -np.inf)
        if self._no_eos.size:
            edits.put(self._no_eos, self._eos, -np.inf)
        return edits

    def _penalize(self, edits: Edits, normalizer: NDArray[np.float64] | None) -> None:
        rows = self._penalized
        ids, known = self._history(rows)
        ids = np.where(known, ids, ids[:, :1])  # behind its own length, a row repeats the start token
        before = edits.scores[rows[:, None], ids].astype(np.float64)
        shift = np.where(self._log_scores, normalizer[rows, None], 0.0) if normalizer is not None else 0.0
        values = before - shift
        changed = np.where(values < 0, values * self._penalty, values / self._penalty) + shift
        # Finite stays finite: an infinite logit is a fault.
        edits.put(rows[:, None], ids, np.where(np.isfinite(before), np.clip(changed, -_LARGEST, _LARGEST), before))

    def _completing(self, size: int, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return rows and tokens that would repeat one of their n-grams of this size."""
        history, known = self._history(rows)
        windows = history.shape[1] - size + 1
        if windows < 1:
            return rows[:0], rows[:0]
        lengths = self._rows.length[self._slots[rows]]
        matches = known[:, size - 1 :].copy()  # n-grams that are complete
        matches &= (lengths >= size)[:, None]
        for place in range(size - 1):
            last = history[np.arange(len(rows)), lengths - size + 1 + place]  # of the n - 1 last tokens
            matches &= history[:, place : place + windows] == last[:, None]
        which, where = matches.nonzero()
        return rows[which], history[which, where + size - 1].astype(np.int64)

    def _endings(self, before: Int64s, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return which of `rows` end with which of `before` [m, p]."""
        slots = self._slots[rows]
        size = before.shape[1]
        places = self._rows.length[slots, None] + np.arange(-size, 0)
        endings = self._rows.history[slots[:, None], np.maximum(places, 0)]
        same = (endings[:, None, :] == before).all(axis=2) & (places[:, :1] >= 0)
        which, of = same.nonzero()
        return which, of

    def _history(self, rows: Int64s) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return the tokens of `rows` [m, longest of them] and which of them are their own."""
        slots = self._slots[rows]
        lengths = self._rows.length[slots]
        places = np.arange(lengths.max())
        return self._rows.history[slots, : len(places)], places < lengths[:, None]
