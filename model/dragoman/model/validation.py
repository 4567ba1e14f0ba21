"""chrF of a model in training, on a sample small enough to be translated now and then."""

from __future__ import annotations

from collections.abc import Sequence

import sacrebleu

from dragoman.model.cached_search import greedy_cached
from dragoman.model.limits import default_max_new_tokens
from dragoman.model.readers import Pair
from dragoman.model.tokenizer import Tokenizer
from dragoman.model.transformer import Transformer

_ROWS = 64


def corpus_chrf(model: Transformer, tokenizer: Tokenizer, pairs: Sequence[Pair]) -> float:
    """Return chrF (0 to 100) of greedy translations of `pairs`; the model is in evaluation mode."""
    encoded = sorted(((tokenizer.encode(pair.source), pair.target) for pair in pairs), key=lambda item: len(item[0]))
    texts: list[str] = []
    for start in range(0, len(encoded), _ROWS):
        sources = [ids for ids, _ in encoded[start : start + _ROWS]]
        limits = [default_max_new_tokens(len(ids), model.config.max_target_tokens) for ids in sources]
        texts += [tokenizer.decode(ids) for ids in greedy_cached(model, sources, limits, tokenizer.special)]
    score: float = sacrebleu.CHRF().corpus_score(texts, [[target for _, target in encoded]]).score
    return round(score, 2)
