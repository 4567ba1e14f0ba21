"""A text's result depends on its own options and outputs alone, whatever shares the batch, comes or goes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from dragoman.model.beam import BeamRow, BeamSettings
from dragoman.model.vocab import SPECIAL_IDS, SpecialIds
from dragoman.server.options import Sampling
from dragoman.server.request import Request, RequestStatus
from dragoman.server.step import Wanted
from tests.fakes.search_bench import RandomModel, SearchBench, request, solo, step_outputs
from tests.fakes.search_reference import Reference, without_eos

VOCAB = 40
SLOTS = 24
SPECIALS = (
    SPECIAL_IDS,
    SpecialIds(pad=1, unk=4, start=0, eos=0, suppressed=(7, 8)),
    SpecialIds(pad=5, unk=6, start=5, eos=0),
)


@pytest.fixture(autouse=True)
def _errors_of_numpy_are_errors() -> Any:
    with np.errstate(all="raise"):
        yield


def random_options(generator: random.Random) -> dict[str, Any]:
    """Return options of all kinds."""
    chance, choice = generator.random, generator.choice
    options: dict[str, Any] = {"max_new_tokens": generator.randint(1, 14)}
    if chance() < 0.55:
        options |= {"beams": choice([2, 3, 4, 5, 9]), "length_penalty": choice([0.0, 0.6, 1.0, 2.0, -1.0])}
        options |= {
            "early_stopping": choice([True, False, "never"]),
            "hypotheses": generator.randint(1, options["beams"]),
        }
        options |= {"normalization": "gnmt"} if chance() < 0.3 else {}
        options |= {"coverage_penalty": choice([0.1, 0.5])} if chance() < 0.3 else {}
        options |= {"patience": choice([0.3, 0.5, 1.5, 2.0])} if chance() < 0.3 else {}
    elif chance() < 0.5:
        options["sampling"] = Sampling(
            temperature=choice([0.5, 1.0, 1.5]), top_k=choice([0, 1, 5, 16, 20]), top_p=choice([1.0, 0.9, 0.3]),
            seed=generator.getrandbits(63),
        )  # fmt: skip
    options |= {"repetition_penalty": choice([0.8, 1.3, 2.0])} if chance() < 0.2 else {}
    options |= {"no_repeat_ngram_size": choice([1, 2, 3])} if chance() < 0.2 else {}
    options |= {"suppressed": random_sequences(generator)} if chance() < 0.2 else {}
    options |= {"min_new_tokens": generator.randint(0, options["max_new_tokens"])} if chance() < 0.2 else {}
    options |= {"alternatives": choice([1, 5, 20])} if chance() < 0.2 else {}
    return options | {"with_token_scores": chance() < 0.2, "with_alignment": chance() < 0.2}


def random_sequences(generator: random.Random) -> tuple[tuple[int, ...], ...]:
    lengths = [generator.choice([1, 1, 2, 3]) for _ in range(generator.randint(1, 40))]
    return tuple(tuple(generator.randrange(VOCAB) for _ in range(length)) for length in lengths)


def random_request(generator: random.Random, special: SpecialIds, **options: Any) -> Request:
    source = [generator.randrange(10, 13) for _ in range(generator.randint(1, 3))]
    first = [generator.randrange(VOCAB) for _ in range(generator.choice([0, 0, 1, 3]))]
    return request((*source, special.eos), first_target=first, **options)


def run_at_random(bench: SearchBench, requests: list[Request], generator: random.Random) -> list[Request]:
    """Let requests come when they like, and some leave early; return the others."""
    waiting, stay = list(requests), list(requests)
    while waiting or bench.search.live:
        while waiting and waiting[0].width <= SLOTS - bench.search.live and generator.random() < 0.6:
            bench.admit(waiting.pop(0))
        if bench.search.live and generator.random() < 0.05:
            gone = generator.choice(bench.search.requests)
            bench.leave(gone)
            stay.remove(gone)
        if bench.search.live:
            bench.step()
        assert len(set(bench.search.requests)) == len(bench.search.requests)
    assert set(bench.ended) == set(stay)
    return stay


def assert_as_expected(found: Request, status: RequestStatus, reference: Reference) -> None:
    outcomes, expected_status = reference.run()
    eos = reference.special.eos

    assert [one.tokens for one in found.hypotheses] == [without_eos(one.ids, eos) for one in outcomes], found.options
    assert status is expected_status
    for ours, theirs in zip(found.hypotheses, outcomes, strict=True):
        assert ours.ended_by_eos == (bool(theirs.ids) and theirs.ids[-1] == eos)
        if found.width > 1 or found.options.with_token_scores:
            assert ours.log_prob == pytest.approx(theirs.log_prob, abs=1e-4)
            assert ours.score == pytest.approx(theirs.score, rel=1e-4, abs=1e-4)
        else:
            assert ours.log_prob == ours.score == 0
        assert ours.token_scores == pytest.approx(theirs.token_scores, abs=1e-4)
        assert np.allclose(ours.alignment, theirs.alignment, atol=1e-6)
        assert len(ours.alignment) == len(ours.tokens) * found.options.with_alignment
    best = reference.alternatives()
    assert [token for token, _ in found.alternatives] == [token for token, _ in best]
    assert [score for _, score in found.alternatives] == pytest.approx([score for _, score in best], abs=1e-4)


@pytest.mark.parametrize("seed", range(8))
def test_every_kind_of_search_in_one_batch(seed: int) -> None:
    """Each result is that of a plain search for the text alone, and bit for bit that of the text alone in a batch."""
    generator = random.Random(seed)
    special, candidates = SPECIALS[seed % 3], (16, 0, 8, VOCAB)[seed % 4]
    model = RandomModel(special=special)
    bench = SearchBench(model, slots=SLOTS, special=special, candidates=candidates)
    requests = [random_request(generator, special, **random_options(generator)) for _ in range(60)]

    stay = run_at_random(bench, requests, generator)
    assert len(stay) > 30
    for each in stay:
        assert_as_expected(each, bench.ended[each], Reference(model, each, special, whole=candidates > 0))
        alone, _ = solo(model, each, special=special, candidates=candidates)
        assert alone.hypotheses == each.hypotheses
        assert alone.alternatives == each.alternatives
        assert each.width > 1 or bench.emitted[each] == each.output
    starts = [each for each in bench.first if each in bench.ended]
    assert sorted(map(id, starts)) == sorted(map(id, stay))


@pytest.mark.parametrize("step", [0.0, 0.5], ids=["no ties", "ties"])
@pytest.mark.parametrize("special", SPECIALS, ids=["ours", "start is EOS", "start is padding"])
def test_beams_are_those_of_the_reference(special: SpecialIds, step: float) -> None:
    """Hundreds of random searches and `dragoman.model.beam` find the same, scores included, with equal ones too."""
    generator = random.Random(5)
    model = RandomModel(special=special, step=step)
    bench = SearchBench(model, slots=SLOTS, special=special)
    requests = [
        random_request(
            generator,
            special,
            beams=generator.choice([2, 3, 4, 5, 8]),
            length_penalty=generator.choice([0.0, 0.6, 1.0, 2.0, -1.0]),
            early_stopping=generator.choice([True, False, "never"]),
            max_new_tokens=generator.randint(1, 14),
        )
        for _ in range(350)
    ]

    by_eos = 0
    for each in run_at_random(bench, requests, generator):
        expected = row_of(model, each, special).hypotheses[0]
        [found] = each.hypotheses
        assert [*found.tokens, *[special.eos] * found.ended_by_eos] == expected.tokens
        assert found.log_prob == pytest.approx(expected.log_prob, abs=1e-12)
        assert found.score == pytest.approx(expected.score, abs=1e-12)
        by_eos += found.ended_by_eos
    assert 50 < by_eos < 300


def row_of(model: RandomModel, request: Request, special: SpecialIds) -> BeamRow:
    """Run the reference on what the search gets."""
    options, source, known = request.options, tuple(request.source), (special.start, *request.first_target)
    settings = BeamSettings(options.beams, options.length_penalty, options.early_stopping)
    row = BeamRow(settings, limit=options.max_new_tokens, eos=special.eos, forced=len(request.first_target))
    while not row.done:
        rows = [(source, (*known, *live.tokens)) for live in row.live]
        outputs = step_outputs(model, rows, Wanted.CANDIDATES, special, 16)
        assert outputs.candidate_ids is not None
        assert outputs.candidate_scores is not None
        row.advance(outputs.candidate_ids.tolist(), outputs.candidate_scores.tolist())
    return row
