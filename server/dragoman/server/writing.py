"""From target ids to text: the prefix in front, and no further than the first stop sequence. Standard library only.

Stop sequences are looked for in the text, not in the tokens: the same word can be cut into tokens in many ways. What
is found does not depend on how the text arrives in pieces, nor on what the engine has made beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.model.tokenizers import Tokenizer


class StopMatcher:
    """Passes a text on up to the first stop sequence, which is the one that is complete first.

    Attributes:
        stopped: One was found; nothing passes any more.
    """

    def __init__(self, sequences: Sequence[str]) -> None:
        """Look for any of `sequences`, none of them empty; there may be none."""
        self.stopped = False
        self._sequences = tuple(sequences)
        self._held = ""  # the longest end of the text so far that a stop sequence may begin with

    def push(self, text: str) -> str:
        """Return what is certain to be in front of any stop sequence."""
        if self.stopped:
            return ""
        self._held += text
        if (found := _first(self._held, self._sequences)) is not None:
            self.stopped = True
            return self._held[: found[0]]
        passed = len(self._held) - self._possible_beginning()
        certain, self._held = self._held[:passed], self._held[passed:]
        return certain

    def finish(self) -> str:
        """Return what was held back, now that nothing follows."""
        return "" if self.stopped else self._held

    def _possible_beginning(self) -> int:
        longest = 0
        for sequence in self._sequences:
            for length in range(min(len(sequence) - 1, len(self._held)), longest, -1):
                if self._held.endswith(sequence[:length]):
                    longest = length
                    break
        return longest


class Writer:
    """Decodes one text token by token. The prefix and all pieces, joined, are the text.

    Attributes:
        prefix: Text of the prefix.
        tokens: How many tokens of those pushed belong to the text; none behind a stop sequence do.
    """

    def __init__(self, tokenizer: Tokenizer, prefix: Sequence[int], stop_sequences: Sequence[str]) -> None:
        """Start a text that begins with the tokens of `prefix`."""
        self._detokenizer = tokenizer.detokenizer()
        self._matcher = StopMatcher(stop_sequences)
        self.prefix = "".join([self._detokenizer.push(token) for token in prefix])
        self.tokens = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop sequence ended the text."""
        return self._matcher.stopped

    def push(self, token: int) -> str:
        """Return the text that `token` makes certain, possibly empty."""
        if self.stopped:
            return ""
        self.tokens += 1
        return self._matcher.push(self._detokenizer.push(token))

    def finish(self) -> str:
        """Return what is left at the end."""
        if self.stopped:
            return ""
        return self._matcher.push(self._detokenizer.finish()) + self._matcher.finish()


@dataclass(frozen=True, slots=True)
class Written:
    """A whole text.

    Attributes:
        text: With the prefix.
        pieces: What each token adds to it, behind the prefix.
        stopped: A stop sequence ended it.
    """

    text: str
    pieces: tuple[str, ...]
    stopped: bool

    @property
    def tokens(self) -> int:
        """How many of the tokens belong to it."""
        return len(self.pieces)


def write(tokenizer: Tokenizer, prefix: Sequence[int], tokens: Sequence[int], stop_sequences: Sequence[str]) -> Written:
    """Decode all tokens of a text; what `Writer` does one by one."""
    detokenizer = tokenizer.detokenizer()
    start = "".join([detokenizer.push(token) for token in prefix])
    pieces = [detokenizer.push(token) for token in tokens]
    rest = detokenizer.finish()
    if pieces:
        pieces[-1] += rest
    else:
        start += rest
    body = "".join(pieces)
    found = _first(body, stop_sequences)
    if found is None:
        return Written(start + body, tuple(pieces), stopped=False)
    begin, end = found
    kept: list[str] = []
    position = 0
    for piece in pieces:
        kept.append(piece[: max(0, begin - position)])
        position += len(piece)
        if position >= end:
            break
    return Written(start + body[:begin], tuple(kept), stopped=True)


def _first(text: str, sequences: Sequence[str]) -> tuple[int, int] | None:
    """Return begin and end of the sequence that is complete first, the longest one where several are."""
    found = [(begin + len(sequence), begin) for sequence in sequences if (begin := text.find(sequence)) >= 0]
    if not found:
        return None
    end, begin = min(found)
    return begin, end
