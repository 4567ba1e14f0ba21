"""What a step decided, as the engine needs it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dragoman.server.request import Request, RequestStatus


@dataclass(slots=True)
class Decision:
    """The outcome of one decode step.

    Attributes:
        tokens: [live] int64, what each live row reads next; of rows that ended, anything that can be read.
        parents: [live] int64, the slot whose state each row continues; None if each continues its own. A slot that
            others continue continues itself, so moving states in any order is right.
        new_tokens: How many tokens became text: of rows without beams, neither EOS nor forced ones.
        emitted: Those of them whose listeners want tokens.
        ended: What ended, and how: EOS, LENGTH or FAILED. Its hypotheses are in the request, the best first.
        first: Texts that chose their first free token in this step.
    """

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64] | None = None
    new_tokens: int = 0
    emitted: list[tuple[Request, int]] = field(default_factory=list)
    ended: list[tuple[Request, RequestStatus]] = field(default_factory=list)
    first: list[Request] = field(default_factory=list)
