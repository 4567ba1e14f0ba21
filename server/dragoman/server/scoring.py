"""How probable given translations are: pairs of texts to requests that choose nothing, and their scores to messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.export.bundle import Manifest
from dragoman.model.tokenizers import Tokenizer
from dragoman.server import validate
from dragoman.server.calls import Gather
from dragoman.server.characters import check_characters, is_blank
from dragoman.server.errors import InvalidArgument
from dragoman.server.jobs import Caller
from dragoman.server.options import SearchOptions
from dragoman.server.request import Request
from dragoman.server.suppression import target_ids
from dragoman.server.validate import Source
from dragoman.server.writing import write
from dragoman.v1 import translation_pb2 as pb

_SPLIT = "split the pair, for example at sentences"


@dataclass(frozen=True, slots=True)
class Pair:
    """A text and its translation, as tokens.

    Attributes:
        source: The text.
        target: The translation, without EOS.
        known: Its log-probability, where that needs no engine: a blank text has a blank translation and no other, and
            what the vocabulary lacks is never written.
    """

    source: Source
    target: tuple[int, ...]
    known: float | None = None


def check_pairs(num_pairs: int, max_texts: int) -> None:
    """Refuse an empty or too long list."""
    if not num_pairs:
        raise InvalidArgument("pairs", "the list is empty; send at least one pair")
    if num_pairs > max_texts:
        raise InvalidArgument("pairs", f"{num_pairs} pairs were sent, the limit is {max_texts}; split the call")


def tokenize(
    pairs: Sequence[pb.ScorePair], tokenizer: Tokenizer, manifest: Manifest, languages: tuple[str, str]
) -> list[Pair]:
    """Return the tokens of each pair.

    Raises:
        InvalidArgument: A text is too long.
    """
    first = manifest.languages.first_target(languages[1])
    most = manifest.limits.max_target_tokens - len(first) - 1  # and EOS
    never = frozenset(manifest.special.never_generated)
    found = []
    for index, pair in enumerate(pairs):
        field = f"pairs[{index}].source"
        framed, tokens, own = validate.encode(pair.source, field, tokenizer, manifest, languages)
        target: tuple[int, ...] = ()
        if not is_blank(pair.target):
            check_characters(pair.target, f"pairs[{index}].target", most, _SPLIT)
            target = tuple(target_ids(tokenizer, pair.target))
        if len(target) > most:
            raise InvalidArgument(f"pairs[{index}].target", f"{len(target)} tokens, the limit is {most}; {_SPLIT}")
        source = Source(framed, len(target) + 1, tokens, first, own=own, field=field)
        known = None
        if not tokens:
            known = -math.inf if target else 0.0
        elif not never.isdisjoint(target):
            known = -math.inf
        found.append(Pair(source, target, known))
    return found


def new_request(pair: Pair, eos: int, caller: Caller, gather: Gather) -> Request:
    """Return a request that keeps the log-probability of each token of a pair's target and of EOS."""
    target = (*pair.target, eos)
    options = SearchOptions(max_new_tokens=len(target), with_token_scores=True, score_target=target)
    return caller.request(pair.source, options, gather)


def message(pair: Pair, request: Request | None, tokenizer: Tokenizer) -> pb.PairScore:
    """Return the score of a pair; `request` has ended, or is None where the score was known."""
    score = pb.PairScore(source_tokens=pair.source.tokens, target_tokens=len(pair.target))
    if request is None:
        score.log_prob = pair.known or 0.0
        return score
    scores = request.hypotheses[0].token_scores
    score.log_prob = math.fsum(scores)
    texts = (*write(tokenizer, (), pair.target, ()).pieces, "")  # EOS has none
    score.tokens.extend(pb.TokenScore(text=text, log_prob=one) for text, one in zip(texts, scores, strict=True))
    return score
