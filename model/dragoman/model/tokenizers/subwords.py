"""Byte-pair encoding of words as `subword-nmt` and fastBPE apply it ("low@@ er"). Standard library only.

Our own, because the package has had no release since 2021 and applying codes is forty lines. Glossaries,
dropout and vocabulary filters are not here: they belong to making training data.
"""

from __future__ import annotations

import heapq
from functools import lru_cache

_END = "</w>"  # marks the last part of a word in the codes


class Subwords:
    """Cuts words into parts by learned merges. Thread-safe."""

    def __init__(self, codes: bytes, name: str, *, joiner: str = "@@") -> None:
        """Read merges, the first to be applied first.

        Args:
            codes: Content of a file with a pair of parts in each line, and with its count behind it (fastBPE).
                A first line "#version: 0.2" says that the end of a word belongs to its last character; without
                it and without counts, it is a part of its own.
            name: Of the file, for messages.
            joiner: Ends every part of a word but the last.

        Raises:
            ValueError: The file is malformed.
        """
        try:
            lines = [line.rstrip("\r") for line in codes.decode().split("\n")]
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}: not UTF-8: {error}") from error
        has_version = lines[0].startswith("#version:")
        rows = [line.strip(" ").split(" ") for line in lines[has_version:] if line.strip(" ")]
        for number, row in enumerate(rows, 1 + has_version):
            if len(row) not in (2, 3) or not all(row) or (len(row) == 3 and not row[2].isdecimal()):
                raise ValueError(f"{name}, line {number}: {' '.join(row)[:60]!r} is not a pair of parts")
        if not rows:
            raise ValueError(f"{name}: no merges in it")
        version = lines[0].partition(":")[2].strip() if has_version else "0.2" if len(rows[0]) == 3 else "0.1"
        if version not in ("0.1", "0.2"):
            raise ValueError(f"{name}: codes of version {version[:20]!r}; 0.1 and 0.2 are known")
        self._end_is_part = version == "0.1"
        self._joiner = joiner
        self._ranks: dict[tuple[str, str], int] = {}
        for rank, row in enumerate(rows):
            self._ranks.setdefault((row[0], row[1]), rank)
        self.cut = lru_cache(maxsize=1 << 16)(self._cut)

    def _cut(self, word: str) -> tuple[str, ...]:
        """Return the parts of a word, all but the last with the joiner."""
        parts = self._merged([*word, _END] if self._end_is_part else [*word[:-1], word[-1] + _END])
        if parts[-1] == _END:
            del parts[-1]
        else:
            parts[-1] = parts[-1].removesuffix(_END)
        return (*(part + self._joiner for part in parts[:-1]), parts[-1])

    def _merged(self, parts: list[str]) -> list[str]:
        """Apply the merges, the first of them everywhere before the next: n log n in the length of the word."""
        left, right = list(range(-1, len(parts) - 1)), list(range(1, len(parts) + 1))  # neighbours; len(parts) is none
        waiting: list[tuple[int, int]] = []  # rank and position of a pair; those that changed since are skipped

        def rank_at(i: int) -> int | None:
            return self._ranks.get((parts[i], parts[right[i]])) if i >= 0 and right[i] < len(parts) else None

        def wait(i: int) -> None:
            if (rank := rank_at(i)) is not None:
                heapq.heappush(waiting, (rank, i))

        for i in range(len(parts)):
            wait(i)
        while waiting:
            rank = waiting[0][0]
            positions = []
            while waiting and waiting[0][0] == rank:
                positions.append(heapq.heappop(waiting)[1])
            changed = []
            for i in positions:
                if parts[i] and rank_at(i) == rank:
                    gone = right[i]
                    parts[i], parts[gone], right[i] = parts[i] + parts[gone], "", right[gone]
                    if right[i] < len(parts):
                        left[right[i]] = i
                    changed.append(i)
            for i in changed:
                wait(i)
                wait(left[i])
        return [part for part in parts if part]
