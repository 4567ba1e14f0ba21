"""A text that owns slots: what does not fit into columns."""

from __future__ import annotations

from dragoman.server.request import Hypothesis, Request
from dragoman.server.search.attention import Attention, needs_attention


class Running:
    """A request and its hypotheses that have ended.

    Attributes:
        request: The text.
        slots: Those that it owns, in any order.
        attention: If anything needs it.
        tells: Whether its listener wants its tokens.
        ended: Hypotheses, the best first.
    """

    __slots__ = ("attention", "ended", "request", "slots", "tells")

    def __init__(self, request: Request, first: int) -> None:
        """Begin in the slots from `first` on."""
        self.request = request
        self.slots = list(range(first, first + request.width))
        self.tells = request.listener.wants_tokens
        options = request.options
        self.attention = Attention(options, len(request.source)) if needs_attention(options) else None
        self.ended: list[Hypothesis] = []

    def add(self, hypothesis: Hypothesis, most: int) -> None:
        """Keep a hypothesis that has ended if it is among the best; of equal ones, the first stays."""
        self.ended.append(hypothesis)
        self.ended.sort(key=_worse)
        del self.ended[most:]

    def conclude(self) -> None:
        """Hand the best hypotheses to the request."""
        self.request.hypotheses = self.ended[: self.request.options.hypotheses]


def _worse(hypothesis: Hypothesis) -> float:
    return -hypothesis.score
