"""From words that may not appear to the tokens that write them. Standard library only.

A text can be cut into tokens in more than one way. Found are those that the tokenizer itself makes, at the start of
a word and inside one; nothing is found that is hidden in a longer piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dragoman.model.tokenizers import Tokenizer

# Does not merge with letters; what is cut behind it is cut as it is inside a word.
_ANCHOR = "."


class Suppressor:
    """Knows the tokens of a vocabulary by what they write. Thread-safe: nothing changes after loading."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Read the vocabulary."""
        self._tokenizer = tokenizer
        self._never = frozenset((*tokenizer.special.never_generated, tokenizer.special.eos))
        self._ids: dict[bytes, list[int]] = {}
        for token in range(tokenizer.vocab_size):
            if token not in self._never and (written := tokenizer.piece_bytes(token)):
                self._ids.setdefault(written, []).append(token)

    def sequences(self, texts: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """Return the sequences of tokens that write one of `texts`, each once.

        A text that the model cannot write gives none.
        """
        found: dict[tuple[int, ...], None] = {}
        for text in texts:
            for ids in self._ways(text):
                if ids and self._never.isdisjoint(ids):
                    found[ids] = None
        return tuple(found)

    def _ways(self, text: str) -> Iterator[tuple[int, ...]]:
        for given in (text, f" {text}"):
            ids = target_ids(self._tokenizer, given)
            if ids:
                yield tuple(ids)
                yield from self._other_beginnings(ids)
        yield self._behind_anchor(target_ids(self._tokenizer, _ANCHOR + text))

    def _other_beginnings(self, ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Yield `ids` with a space in front taken away or added."""
        first, rest = self._tokenizer.piece_bytes(ids[0]), ids[1:]
        other = first[1:] if first.startswith(b" ") else b" " + first
        if not other:
            yield tuple(rest)
        for token in self._ids.get(other, ()):
            yield (token, *rest)

    def _behind_anchor(self, ids: Sequence[int]) -> tuple[int, ...]:
        written = b""
        for index, token in enumerate(ids):
            written += self._tokenizer.piece_bytes(token)
            if written.strip() == _ANCHOR.encode():
                return tuple(ids[index + 1 :])
            if written.strip():
                break
        return ()


def target_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the target ids of a text without what stands around them; none for a blank one."""
    ids = tokenizer.encode_target(text)
    special = tokenizer.special
    while ids and ids[-1] == special.eos:
        ids = ids[:-1]
    while ids and ids[0] in (special.start, special.eos):
        ids = ids[1:]
    return ids
