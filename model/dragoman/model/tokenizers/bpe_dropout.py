"""BPE dropout: a text is cut in another way each time, because merges are left out at random.

Provilkov et al. 2020, "BPE-Dropout: Simple and Effective Subword Regularization", section 3. SentencePiece has it,
too, but draws from a generator that differs between threads and, from 0.2.2 on, between processes, so training
could not be resumed exactly. Here all randomness is the caller's.

Two decisions:

- A merge that was left out stays left out, as in SentencePiece; so the results have the same probabilities. In the
  paper's algorithm 1 it may be drawn again at each later step, which undoes dropout in texts without spaces: German
  ones whose spaces were removed got 0.6 % more pieces at a probability of 0.1, against 27 % this way.
- Only the drops are drawn: the number of merges until the next one has a geometric distribution. A word whose merges
  end sooner is cut as without dropout, which is remembered. At small probabilities these are nearly all words.

Text comes in normalised by SentencePiece, and with a probability of 0 the pieces are those of SentencePiece.
"""

from __future__ import annotations

import heapq
import math
import random
import re
from functools import lru_cache
from typing import Any

from dragoman.model.tokenizers.segmenter import SPACE_MARK, ModelProto, read_model

_Piece = ModelProto.SentencePiece

_NEVER = 1 << 60  # merges; no text has as many
_CACHED_WORDS = 1 << 17
_CACHED_LENGTH = 48  # in characters; longer "words" are texts without spaces, which hardly come twice


class BpeDropout:
    """Cuts normalised texts, with merges left out at random. Thread-safe."""

    def __init__(self, model: bytes, name: str) -> None:
        """Read pieces and the order of merges from a SentencePiece model.

        Args:
            model: Content of a `.model` file.
            name: Of the file, for messages.

        Raises:
            ValueError: It is none, or one that has no merges to leave out.
        """
        proto = read_model(model, name)
        spec = proto.trainer_spec
        if spec.model_type != spec.BPE:
            kind = spec.ModelType.Name(spec.model_type).lower()
            raise ValueError(f"{name} is a SentencePiece model of type {kind!r}; only 'bpe' has merges")
        if any(piece.type == _Piece.UNUSED for piece in proto.pieces):
            raise ValueError(f"{name} has pieces that are marked unused; merges through them are not supported")
        merged = {piece.piece: piece.score for piece in proto.pieces if piece.type == _Piece.NORMAL}
        symbols = [piece.piece for piece in proto.pieces if piece.type == _Piece.USER_DEFINED]
        ids = {piece.piece: i for i, piece in enumerate(proto.pieces)}
        self._ids = {piece: ids[piece] for piece in (*merged, *symbols)}
        # Of two merges that are possible, that with the higher score comes first.
        self._ranks = {piece: -score for piece, score in merged.items() if len(piece) > 1}
        self._byte_ids: list[int] = []
        if spec.byte_fallback:
            self._byte_ids = [ids[f"<0x{byte:02X}>"] for byte in range(256)]
        self._unknown = next(i for i, piece in enumerate(proto.pieces) if piece.type == _Piece.UNKNOWN)
        self._symbols = _any_of(symbols)
        self._words = _splitter(self._ranks)
        self._cached = lru_cache(maxsize=_CACHED_WORDS)(self._undropped)

    def __call__(self, text: str, probability: float, generator: random.Random) -> list[int]:
        """Return the ids of a text's pieces.

        Args:
            text: Normalised by the model's own rules: "▁" for space.
            probability: Of leaving out a merge; 0 gives SentencePiece's own pieces, 1 single characters.
            generator: Decides which; a few numbers are taken from it.
        """
        drops = _Drops(probability, generator)
        ids: list[int] = []
        for number, part in enumerate(self._symbols.split(text) if self._symbols else [text]):
            if number % 2:  # what the expression's group matched
                ids.append(self._ids[part])
                continue
            for word in self._words.findall(part):
                whole, merges = self._cached(word) if len(word) <= _CACHED_LENGTH else self._undropped(word)
                if merges <= drops.distance:
                    drops.distance -= merges
                    ids += whole
                else:
                    ids += self._ids_of(word, self._cut(word, drops))
        return ids if self._byte_ids else _joined(ids, self._unknown)

    def _undropped(self, word: str) -> tuple[tuple[int, ...], int]:
        """Return the ids of a word without dropout, and after how many merges."""
        pieces = self._cut(word, None)
        return tuple(self._ids_of(word, pieces)), len(word) - len(pieces)

    def _ids_of(self, word: str, ends: list[int]) -> list[int]:
        ids = []
        start = 0
        for end in ends:
            piece = word[start:end]
            start = end
            if (found := self._ids.get(piece)) is not None:
                ids.append(found)
            elif self._byte_ids:
                ids += [self._byte_ids[byte] for byte in piece.encode()]
            else:
                ids.append(self._unknown)
        return ids

    def _cut(self, word: str, drops: _Drops | None) -> list[int]:
        """Return where the pieces of a word end.

        A piece is known by where it starts, so "left, middle, right" is a merge of [left, middle) and [middle, right).
        """
        ranks, size = self._ranks, len(word)
        ends = list(range(1, size + 1))  # by start of the piece; 0 for one that was merged into that before
        before = list(range(-1, size))  # start of the piece before, by start of the piece
        waiting = [
            (rank, left, left + 1, left + 2)
            for left in range(size - 1)
            if (rank := ranks.get(word[left : left + 2])) is not None
        ]
        heapq.heapify(waiting)
        while waiting:
            _, left, middle, right = heapq.heappop(waiting)
            if ends[left] != middle or ends[middle] != right or (drops is not None and drops.next()):
                continue  # a part was merged with another neighbour, or the merge is left out, for good
            ends[left], ends[middle] = right, 0
            if (first := before[left]) >= 0 and (rank := ranks.get(word[first:right])) is not None:
                heapq.heappush(waiting, (rank, first, left, right))
            if right < size:
                before[right] = left
                if (rank := ranks.get(word[left : ends[right]])) is not None:
                    heapq.heappush(waiting, (rank, left, right, ends[right]))
        return [end for end in ends if end]


class _Drops:
    """Decides about one merge after the other.

    Attributes:
        distance: How many merges come before the next one that is left out.
    """

    __slots__ = ("_draw", "_scale", "distance")

    def __init__(self, probability: float, generator: random.Random) -> None:
        self._draw = generator.random
        self._scale = math.log1p(-probability) if probability < 1 else -math.inf
        self.distance = self._geometric()

    def next(self) -> bool:
        """Return whether the next merge is left out."""
        if self.distance:
            self.distance -= 1
            return False
        self.distance = self._geometric()
        return True

    def _geometric(self) -> int:
        if not self._scale:
            return _NEVER
        # P(distance >= n) = (1 - probability) ** n, inverted at a number from (0, 1].
        return int(min(math.log(1.0 - self._draw()) / self._scale, _NEVER))


def _splitter(pieces: Any) -> re.Pattern[str]:
    """Return an expression that finds the words of a text: the longest parts that no merge crosses the ends of."""
    if all(SPACE_MARK not in piece[1:] for piece in pieces):
        return re.compile(f"{SPACE_MARK}[^{SPACE_MARK}]*|[^{SPACE_MARK}]+")
    if all(SPACE_MARK not in piece[:-1] for piece in pieces):  # treat_whitespace_as_suffix
        return re.compile(f"[^{SPACE_MARK}]*{SPACE_MARK}|[^{SPACE_MARK}]+")
    return re.compile("(?s:.+)")  # split_by_whitespace = false: pieces of several words


def _any_of(symbols: list[str]) -> re.Pattern[str] | None:
    """Return an expression whose group matches the longest of the symbols, if there are any."""
    if not symbols:
        return None
    return re.compile(f"({'|'.join(re.escape(symbol) for symbol in sorted(symbols, key=len, reverse=True))})")


def _joined(ids: list[int], unknown: int) -> list[int]:
    """Return `ids` with a run of unknown characters as a single unknown piece, as SentencePiece has it."""
    return [i for number, i in enumerate(ids) if i != unknown or not number or ids[number - 1] != unknown]
