"""From the pieces of a target to its text, one by one: how each library treats the spaces at both ends."""

from __future__ import annotations

import codecs
from typing import Literal, get_args

from dragoman.model.tokenizers.base import Detokenizer, Tokenizer

# "strip": no white space at either end (Marian and M2M100 of Hugging Face).
# "metaspace": none from the first piece, all others keep theirs (`tokenizers`: NLLB, mBART, T5).
# "each", "one", "none": SentencePiece's own, which drops a space in front of each piece until there is text, or
# one in all, or none, as the model file says.
Joining = Literal["strip", "metaspace", "each", "one", "none"]
JOININGS = get_args(Joining)


class PieceDetokenizer:
    """Decodes one text whose pieces carry their own spaces."""

    def __init__(self, tokenizer: Tokenizer, joining: Joining) -> None:
        """Start a new text.

        Args:
            tokenizer: Knows the bytes of a piece.
            joining: What happens to spaces in front of the text.
        """
        self._tokenizer = tokenizer
        self._joining = joining
        # Holds the bytes of an unfinished character back; invalid ones become U+FFFD.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._started = joining == "none"

    def push(self, token: int) -> str:
        """Return the text that `token` completes, possibly empty."""
        data = self._tokenizer.piece_bytes(token)
        if not self._started and data:
            if self._joining == "metaspace":
                data, self._started = data.replace(b" ", b""), True
            else:
                data = data.removeprefix(b" ")
                self._started = bool(data) or self._joining == "one"
        return self._decoder.decode(data)

    def finish(self) -> str:
        """Return what an unfinished character leaves behind."""
        return self._decoder.decode(b"", final=True)


class StrippedDetokenizer:
    """Takes white space off both ends of what another one gives."""

    def __init__(self, inner: Detokenizer) -> None:
        """Start a new text."""
        self._inner = inner
        self._started = False
        self._held = ""  # white space that belongs to the text only if more follows

    def push(self, token: int) -> str:
        """Return the text that `token` completes, possibly empty."""
        return self._pass_on(self._inner.push(token))

    def finish(self) -> str:
        """Return what an unfinished character leaves behind."""
        return self._pass_on(self._inner.finish())

    def _pass_on(self, text: str) -> str:
        if not self._started:
            text = text.lstrip()
            self._started = bool(text)
        body = text.rstrip()
        if not body:
            self._held += text
            return ""
        body, self._held = self._held + body, text[len(body) :]
        return body


def piece_detokenizer(tokenizer: Tokenizer, joining: Joining) -> Detokenizer:
    """Return a decoder of one text."""
    if joining == "strip":
        return StrippedDetokenizer(PieceDetokenizer(tokenizer, "none"))
    return PieceDetokenizer(tokenizer, joining)
