"""Every kind of search in one batch: each text's result is that of its solo run, whatever happens around it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from dragoman.export.bundle import Shape
from dragoman.model.beam import BeamRow, BeamSettings
from dragoman.model.vocab import SPECIAL_IDS
from dragoman.server.request import Hypothesis, Request, RequestStatus
from tests.fakes.engine import EngineBench, new_request, recorder, words
from tests.fakes.mixed_options import mixed_options
from tests.fakes.pools import CELLS, LIMITS, SHAPE
from tests.fakes.runtime import FIRST_WORD, Source, undecided

ROWS = 12
SCORE = undecided(SHAPE.vocab_size)


def solo(source: Source, options: dict[str, Any], first_target: Source, shape: Shape) -> Request:
    """Translate one text with nothing else in the engine."""
    bench = EngineBench(rows=8, shape=shape, score=SCORE)
    request = new_request(source, first_target=first_target, **options)
    bench.engine.submit([request])
    bench.finish()
    return request


def same(found: list[Hypothesis], expected: list[Hypothesis]) -> bool:
    """Whether hypotheses have equal tokens, and scores within the tolerance of invariant 1."""
    return len(found) == len(expected) and all(
        one.tokens == other.tokens
        and one.ended_by_eos == other.ended_by_eos
        and abs(one.score - other.score) < 1e-4
        and np.allclose(one.token_scores, other.token_scores, atol=1e-4)
        and np.allclose(one.alignment, other.alignment, atol=1e-4)
        for one, other in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("shape", [SHAPE, CELLS])
@pytest.mark.parametrize("seed", range(3))
def test_every_text_ends_as_it_does_alone(shape: Shape, seed: int) -> None:
    """Mixed options, random arrivals, a fifth cancelled at random moments; slots come back."""
    generator = random.Random(seed)
    bench = EngineBench(rows=ROWS, shape=shape, score=SCORE, encode_tokens=60)
    requests: list[tuple[Request, dict[str, Any]]] = []
    for _ in range(60):
        options = mixed_options(generator, longest=20)
        source = words(generator.randint(1, 30), generator.randint(FIRST_WORD, 900))
        first = tuple(generator.randint(20, 60) for _ in range(generator.choice((0, 0, 0, 1, 4))))
        request = new_request(source, first_target=first, **options)
        bench.engine.submit([request])
        requests.append((request, options))
        bench.iterate(generator.randint(0, 3))
        if generator.random() < 0.2:
            bench.engine.cancel([generator.choice(requests)[0]])
    bench.finish()

    cancelled = [request for request, _ in requests if request.status is RequestStatus.CANCELLED]
    assert 0 < len(cancelled) < 30
    assert bench.pool.free == ROWS
    for request, options in requests:
        if request.status is RequestStatus.CANCELLED:
            continue
        expected = solo(tuple(request.source), options, tuple(request.first_target), shape)
        assert request.status is expected.status, options
        assert same(request.hypotheses, expected.hypotheses), options
        assert [token for token, _ in request.alternatives] == [token for token, _ in expected.alternatives]
        if request.width == 1:
            assert recorder(request).tokens == request.output


@pytest.mark.parametrize("shape", [SHAPE, CELLS])
def test_beams_are_those_of_the_plain_policy(shape: Shape) -> None:
    """`dragoman.model.beam` with every prefix computed anew finds the same hypotheses and scores."""
    generator = random.Random(7)
    bench = EngineBench(rows=ROWS, shape=shape, score=SCORE)
    requests = []
    for _ in range(20):
        beams = generator.choice((2, 3, 4))
        requests += bench.submit(
            words(generator.randint(1, 20), generator.randint(FIRST_WORD, 900)),
            max_new_tokens=generator.randint(1, 15),
            beams=beams,
            hypotheses=beams,
            length_penalty=generator.choice((0.0, 0.6, 1.0, 2.0)),
            early_stopping=generator.choice((True, False, "never")),
        )
    bench.finish()

    for request in requests:
        expected = plain_beam(request)
        assert [h.tokens for h in request.hypotheses] == [h.tokens for h in expected]
        np.testing.assert_allclose([h.score for h in request.hypotheses], [h.score for h in expected], atol=1e-5)


def plain_beam(request: Request) -> list[Hypothesis]:
    """Search without a cache, a batch or a slot."""
    options, source = request.options, tuple(request.source)
    settings = BeamSettings(options.beams, options.length_penalty, options.early_stopping)
    row = BeamRow(settings, limit=options.max_new_tokens, eos=SPECIAL_IDS.eos)
    while not row.done:
        logits = np.stack([SCORE(source, tuple(live.tokens)) for live in row.live]).astype(np.float64)
        scores = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        best = np.argsort(-scores, axis=1, kind="stable")[:, : settings.candidates]
        row.advance(best.tolist(), np.take_along_axis(scores, best, axis=1).tolist())
    eos = SPECIAL_IDS.eos
    return [
        Hypothesis([token for token in found.tokens if token != eos], found.log_prob, found.score)
        for found in row.hypotheses
    ]


def test_a_step_asks_for_no_more_than_its_rows_need() -> None:
    """Greedy rows pay for no candidates, and nobody pays for alignments that nobody wants."""
    bench = EngineBench(score=SCORE)
    bench.submit(words(3), max_new_tokens=2)
    bench.finish()
    assert {wanted.value for wanted in bench.runtime.wanted} == {0}

    bench.runtime.wanted.clear()
    bench.submit(words(3), max_new_tokens=2, beams=2)
    bench.finish()
    assert {wanted.name for wanted in bench.runtime.wanted} == {"CANDIDATES"}


def test_under_load_the_first_token_comes_with_the_step_behind_the_encoder() -> None:
    """A text that is admitted while others run waits for one encode batch and one step, not for anybody's end."""
    bench = EngineBench(rows=8)
    bench.submit(*[words(30, first=20 + 40 * i) for i in range(6)])
    bench.iterate(3)
    [streamed] = bench.submit(words(5, first=800))
    bench.iterate()

    assert len(recorder(streamed).tokens) == 1


def test_a_text_that_is_stopped_ends_with_what_it_has() -> None:
    """A listener has seen enough: the text so far is the result, and the slot is free."""
    bench = EngineBench()
    [request, other] = bench.submit(words(9), words(9, first=50))
    bench.iterate(3)
    bench.engine.stop([request])
    bench.iterate()

    assert request.status is RequestStatus.STOPPED
    assert request.output == recorder(request).tokens
    assert len(request.output) == 3
    assert bench.pool.live == 1
    bench.finish()
    assert other.status is RequestStatus.EOS


def test_a_beam_needs_all_its_slots_at_once() -> None:
    """It waits for them, and what came later does not keep it waiting for ever."""
    bench = EngineBench(rows=4, score=SCORE)
    bench.submit(*[words(2, first=20 + i) for i in range(3)], max_new_tokens=8)
    bench.iterate()
    [wide] = bench.submit(words(3), beams=4, max_new_tokens=5)
    for i in range(40):
        bench.submit(words(2, first=40 + i), max_new_tokens=8)
    bench.finish()

    assert wide.status in (RequestStatus.EOS, RequestStatus.LENGTH)
    before = sum(len(batch) for batch in bench.runtime.encoded[: bench.runtime.encoded.index([words(3)])])
    assert before < 20


def test_a_long_text_takes_the_place_of_several_short_ones() -> None:
    """The pool holds positions, not texts; everybody has a turn."""
    position = 2 * SHAPE.num_decoder_layers * SHAPE.num_heads * SHAPE.head_dim * 4
    longest = LIMITS.max_source_tokens + LIMITS.max_target_tokens
    bench = EngineBench(rows=6, cache_bytes=longest * position)
    short = [words(2, first=20 + i) for i in range(8)]
    requests = bench.submit(*short, max_new_tokens=3)
    [long] = bench.submit(words(30), max_new_tokens=40)
    requests += bench.submit(*short, max_new_tokens=3)
    bench.finish()

    assert long.status is RequestStatus.EOS
    assert {request.status for request in requests} == {RequestStatus.EOS}
    assert [words(30)] in bench.runtime.stepped
    assert max(len(step) for step in bench.runtime.stepped) > 1
