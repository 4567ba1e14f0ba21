"""Pairs to requests that choose nothing, and their scores to messages."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.export import bundle
from dragoman.export.bundle import Manifest
from dragoman.model.tokenizers import Tokenizer
from dragoman.server import scoring
from dragoman.server.calls import Gather
from dragoman.server.errors import InvalidArgument
from dragoman.server.jobs import Caller
from dragoman.server.options import SearchOptions
from dragoman.server.request import Hypothesis, Priority
from dragoman.v1 import translation_pb2 as pb

DATA = Path(__file__).parents[2] / "data"
CALLER = Caller("team-a", Priority.BULK, submitted=1.0, deadline=None)


@pytest.fixture(scope="module", params=["tiny-v1", "tiny-v2"])
def model(request: pytest.FixtureRequest) -> tuple[Manifest, Tokenizer]:
    manifest = bundle.load_manifest(DATA / request.param)
    return manifest, bundle.load_tokenizer(DATA / request.param, manifest)


def tokenize(model: tuple[Manifest, Tokenizer], *pairs: tuple[str, str]) -> list[scoring.Pair]:
    manifest, tokenizer = model
    messages = [pb.ScorePair(source=source, target=target) for source, target in pairs]
    return scoring.tokenize(messages, tokenizer, manifest, ("en", "de"))


def test_lists_have_one_to_so_many_pairs() -> None:
    """The field is called as it is in the request."""
    scoring.check_pairs(3, 3)
    with pytest.raises(InvalidArgument, match="pairs: the list is empty"):
        scoring.check_pairs(0, 3)
    with pytest.raises(InvalidArgument, match="pairs: 4 pairs were sent, the limit is 3"):
        scoring.check_pairs(4, 3)


def test_a_pair_becomes_a_request_that_takes_the_target_as_it_is(model: tuple[Manifest, Tokenizer]) -> None:
    """Behind the language's tokens, EOS last, with the log-probability of every token."""
    manifest, tokenizer = model
    [pair] = tokenize(model, ("one two", "eins zwei"))
    request = scoring.new_request(pair, manifest.special.eos, CALLER, Gather())
    target = tuple(tokenizer.encode_target("eins zwei"))

    assert request.options == SearchOptions(max_new_tokens=len(target), with_token_scores=True, score_target=target)
    assert request.first_target == manifest.languages.first_target("de")
    assert list(request.source) == manifest.languages.frame(tokenizer.encode("one two"), "en", "de")
    assert (request.caller, request.priority) == ("team-a", Priority.BULK)

    request.hypotheses = [Hypothesis(list(target[:-1]), 0.0, 0.0, [-1.5] * len(target), [], True)]
    score = scoring.message(pair, request, tokenizer)
    assert score.log_prob == -1.5 * len(target)
    assert [token.log_prob for token in score.tokens] == [-1.5] * len(target)
    assert "".join(token.text for token in score.tokens) == "eins zwei"
    assert score.tokens[-1].text == ""
    assert score.target_tokens == len(target) - 1
    assert score.source_tokens == len(tokenizer.encode("one two")) - 1


def test_what_needs_no_model_is_known(model: tuple[Manifest, Tokenizer]) -> None:
    """The translation of a blank text is blank, with certainty."""
    _, tokenizer = model
    certain, impossible, empty = tokenize(model, (" ", "\n"), ("\u200b", "eins"), ("one", " "))

    assert (certain.known, impossible.known, empty.known) == (0.0, -math.inf, None)
    assert scoring.message(certain, None, tokenizer) == pb.PairScore()
    score = scoring.message(impossible, None, tokenizer)
    assert (score.log_prob, len(score.tokens), score.source_tokens) == (-math.inf, 0, 0)
    assert score.target_tokens == len(tokenizer.encode_target("eins")) - 1


def test_a_target_that_the_vocabulary_lacks_is_impossible() -> None:
    """Only without byte fallback; the call goes on with the other pairs."""
    found = []
    for name in ("tiny-v1", "tiny-v2"):
        manifest = bundle.load_manifest(DATA / name)
        model = (manifest, bundle.load_tokenizer(DATA / name, manifest))
        found.append([pair.known for pair in tokenize(model, ("one", "eins"), ("one", "\U0001f600"))])

    assert found == [[None, None], [None, -math.inf]]


def test_a_text_that_is_too_long_is_named_by_pair_and_side(model: tuple[Manifest, Tokenizer]) -> None:
    """The limits are those of a translation."""
    manifest, tokenizer = model
    most = manifest.limits.max_target_tokens - len(manifest.languages.first_target("de")) - 1
    short = (replace(manifest, limits=replace(manifest.limits, max_source_tokens=4)), tokenizer)
    with pytest.raises(InvalidArgument, match=f"tokens, the limit is {most}; split the pair") as target:
        tokenize(model, ("one", "eins"), ("one", "eins " * most))
    with pytest.raises(InvalidArgument, match="split the text") as source:
        tokenize(short, ("one two three four five", "eins"))

    assert target.value.field == "pairs[1].target"
    assert source.value.field == "pairs[0].source"
