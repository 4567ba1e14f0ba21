"""What a row has so far, as a hypothesis."""

from __future__ import annotations

import math

from dragoman.server.request import Hypothesis
from dragoman.server.search.rows import Rows, norm
from dragoman.server.search.running import Running


def hypothesis_of(rows: Rows, text: Running, slot: int, end: int, *, eos: bool = False) -> Hypothesis:
    """Return the hypothesis of a row.

    Args:
        rows: Of the search.
        text: Whose row it is.
        slot: The row.
        end: Where its history ends.
        eos: Whether it ends with EOS, which is no part of its tokens.
    """
    base, rank = int(rows.base[slot]), int(rows.rank[slot])
    tokens = rows.history[slot, base : end - eos].tolist() if end > base else []
    found = Hypothesis(tokens, ended_by_eos=eos)
    has_beams = text.request.width > 1
    if rows.scored[slot]:
        found.token_scores = rows.scores[slot, base:end].tolist()
    if text.attention is not None:
        found.alignment = text.attention.path(rank, len(tokens))
    if has_beams or rows.scored[slot]:
        found.log_prob = float(rows.sum[slot]) if has_beams else math.fsum(found.token_scores)
        divisor = norm(max(end - 1, 1), rows.penalty[slot], rows.offset[slot], rows.scale[slot])
        found.score = found.log_prob / float(divisor)
        if rows.coverage[slot] and text.attention is not None:
            found.score += float(text.attention.penalties()[rank])
    return found
