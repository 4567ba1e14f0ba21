"""Random options of every kind, reproducible, for tests in which rows must not notice one another."""

from __future__ import annotations

import random
from typing import Any

from dragoman.server.options import Sampling


def mixed_options(generator: random.Random, *, longest: int, can_align: bool = True) -> dict[str, Any]:
    """Return arguments of `SearchOptions`: greedy, beams or samples, with some of everything else.

    Args:
        generator: Draws.
        longest: Most new tokens.
        can_align: Whether alignments may be asked for.
    """
    options: dict[str, Any] = {"max_new_tokens": generator.randint(1, longest)}
    kind = generator.choice(("greedy", "greedy", "beam", "beam", "sample"))
    if kind == "beam":
        options["beams"] = generator.choice((2, 3, 4, 4, 5))
        options["hypotheses"] = generator.randint(1, options["beams"])
        options["length_penalty"] = generator.choice((0.0, 0.6, 1.0, 1.0, 2.0))
        options["normalization"] = generator.choice(("length", "length", "gnmt"))
        options["early_stopping"] = generator.choice((False, False, True, "never"))
        options["patience"] = generator.choice((1.0, 1.0, 2.0))
        if can_align and generator.random() < 0.2:
            options["coverage_penalty"] = 0.2
    elif kind == "sample":
        options["sampling"] = Sampling(
            temperature=generator.choice((0.5, 1.0, 1.5)),
            top_k=generator.choice((0, 5, 50)),
            top_p=generator.choice((0.7, 1.0)),
            seed=generator.getrandbits(63),
        )
    if generator.random() < 0.2:
        options["repetition_penalty"] = generator.choice((0.8, 1.3))
    if generator.random() < 0.2:
        options["no_repeat_ngram_size"] = generator.randint(1, 4)
    if generator.random() < 0.2:
        options["min_new_tokens"] = generator.randint(0, options["max_new_tokens"])
    if generator.random() < 0.2:
        options["suppressed"] = ((generator.randint(20, 60),), (generator.randint(20, 60), generator.randint(20, 60)))
    if generator.random() < 0.3:
        options["with_token_scores"] = True
    if can_align and generator.random() < 0.1:
        options["with_alignment"] = True
    if generator.random() < 0.1:
        options["alternatives"] = 3
    return options
