"""The search finds what `transformers.generate` finds, with the same words for the options.

The full table, all 800 combinations of each family, is printed by tests/benchmarks/search_equality.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dragoman.server.options import Sampling
from tests.fakes.hf_search import FAMILIES, Case, HuggingFace, sampled_probabilities
from tests.fakes.search_bench import request

pytest.importorskip("transformers").logging.set_verbosity_error()
SOME = 17  # of the combinations, every so manieth; no divisor of their number, so that all values come


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HuggingFace:
    return HuggingFace(request.param, tmp_path_factory.mktemp("hf"))


def assert_equal(model: HuggingFace, cases: list[Case], *, candidates: int = 16) -> list[list[int]]:
    """Compare all hypotheses of all cases, which the search runs in one batch; return the texts."""
    texts = []
    for case, found in zip(cases, model.search(cases, candidates=candidates), strict=True):
        for ours, theirs in zip(found, model.generate(case), strict=True):
            assert [ids for ids, _ in ours] == [ids for ids, _ in theirs], case.ours
            if case.ours.get("beams", 1) > 1:
                assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], abs=1e-4)
            texts += [ids for ids, _ in ours]
    return texts


def test_every_option_alone(model: HuggingFace) -> None:
    """Greedy and with four beams, each option with each of its values while the others have their defaults."""
    alone = [case for case in model.cases() if len([row for row in case.rows if row not in DEFAULTS]) <= 1]
    texts = assert_equal(model, alone)

    by_eos = sum(ids[-1] == model.special.eos for ids in texts) / len(texts)
    assert 0.1 < by_eos < 0.95
    assert len({tuple(ids) for ids in texts}) > len(texts) / 8
    assert len(alone) == 18


DEFAULTS = ("greedy", "beams 4", "length_penalty 1.0", "early_stopping False")


def test_options_in_combination(model: HuggingFace) -> None:
    """Whatever is combined, in one batch."""
    cases = model.cases()[::SOME]
    texts = assert_equal(model, cases)

    assert {row for case in cases for row in case.rows} == {row for case in model.cases() for row in case.rows}
    assert len({tuple(ids) for ids in texts}) > len(texts) / 8


def test_a_graph_without_candidates(model: HuggingFace) -> None:
    """From logits alone; masked ids have no share of the probability then, and must not have any in theirs."""
    with model.never_probable(model.special.never_generated):
        assert_equal(model, model.cases()[3 :: 2 * SOME], candidates=0)


def test_a_forced_prefix(model: HuggingFace) -> None:
    """Tokens that a text has to begin with; theirs is a logits processor that forces them, as for a language token."""
    prefix = [*model.first, *model.search([Case()])[0][1][0][0][:2]]
    adjusted = {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2}
    cases = [
        Case(),
        Case(adjusted, adjusted),
        Case(
            {"beams": 4, "length_penalty": 2.0, "hypotheses": 3},
            {"num_beams": 4, "length_penalty": 2.0, "num_return_sequences": 3},
        ),
    ]
    model.first = prefix
    try:
        assert_equal(model, cases)
    finally:
        model.first = prefix[: len(prefix) - 2]


SAMPLINGS: dict[str, tuple[Sampling, dict[str, Any]]] = {
    "all": (Sampling(top_k=0), {}),
    "hot": (Sampling(temperature=1.7, top_k=12), {}),
    "cold": (Sampling(temperature=0.4), {}),
    "nucleus": (Sampling(top_k=0, top_p=0.6), {}),
    "both": (Sampling(temperature=1.3, top_k=9, top_p=0.8), {}),
    "penalty": (Sampling(temperature=0.8, top_k=40, top_p=0.95), {"repetition_penalty": 1.6}),
    "bans": (Sampling(top_k=0, top_p=0.9), {"no_repeat_ngram_size": 1, "min_new_tokens": 3}),
}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_sampling_has_their_distribution(model: HuggingFace, name: str) -> None:
    """The tokens that their warpers leave are drawn, with their probabilities, and no others."""
    sampling, options = SAMPLINGS[name]
    prefix = (model.special.start, *model.first)
    source = model.sources[2]
    model.prepare([(source, prefix)])
    expected = sampled_probabilities(model, prefix, model(source, prefix), sampling, options)
    draws = 4000
    texts = [
        request(source, first_target=model.first, max_new_tokens=1 if not options else 3, **options, sampling=seeded)
        for seeded in (Sampling(sampling.temperature, sampling.top_k, sampling.top_p, seed) for seed in range(draws))
    ]
    counts = np.zeros(model.vocab_size)
    for ids in first_tokens(model, texts):
        counts[ids] += 1

    assert (expected[counts > 0] > 0).all()
    likely = expected > 20 / draws
    assert (counts[likely] > 0).all()
    error = np.sqrt(expected * (1 - expected) / draws)
    assert (np.abs(counts / draws - expected) <= 5 * error + 1e-9).all()


def first_tokens(model: HuggingFace, texts: list[Any]) -> list[int]:
    """Return what each text begins with."""
    model.run(texts)
    return [text.output[0] if text.output else model.special.eos for text in texts]
