"""What the benchmark of prompt lookup and shortlists computes beside its measurements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dragoman.export.bundle import load_manifest, load_tokenizer
from dragoman.export.decode import BundleSession
from tests.benchmarks.lexicon import Coverage, Lexicon, coverage, learn_lexicon, translation_probabilities
from tests.benchmarks.lookup import Lookup, decode_time, verified_rows
from tests.benchmarks.models import BUILT_IN
from tests.benchmarks.output_product import (
    CUT,
    GATHERED,
    GATHERED_COLUMNS,
    KEPT,
    WHOLE,
    ProductBench,
)
from tests.benchmarks.shortlist_gain import net_gains
from tests.benchmarks.tricks import greedy
from tests.benchmarks.tricks_report import tricks_report

A, B, X, Y = 4, 5, 6, 7
VOCABULARY = 10


def test_a_proposal_is_what_followed_the_longest_match() -> None:
    """In the source before the target, the latest place first; nothing if nothing matches or follows."""
    lookup = Lookup(shortest=1, longest=2, count=3)

    assert lookup.propose([1, 2, 3, 4, 5, 6], [9, 2]) == [3, 4, 5]
    assert lookup.propose([2, 7, 1, 2, 8], [1, 2]) == [8]  # two tokens match there, one in front
    assert lookup.propose([2, 7, 2, 8], [2]) == [8]
    assert lookup.propose([], [5, 6, 5]) == [6, 5]
    assert lookup.propose([1, 2], [2]) == []
    assert lookup.propose([1, 2], []) == []
    assert Lookup(shortest=2, longest=3, count=3).propose([2, 7], [9, 2]) == []


def test_steps_keep_what_is_right_and_one_token_more() -> None:
    """A step computes a row for each proposed token; a text with nothing to look up has a step per token."""
    lookup = Lookup(shortest=1, longest=3, count=3)

    assert verified_rows([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], lookup) == [1, 4, 2]  # 1; 2 3 4 and 5; 6
    assert verified_rows([1, 9, 9, 9], [1, 2, 3], lookup) == [1, 4, 1]  # all three were wrong
    assert verified_rows([8], [1, 2, 3], lookup) == [1, 1, 1]


@pytest.mark.parametrize(("lanes", "expected"), [(1, [1, 4, 1, 1, 1]), (2, [2, 5, 1]), (9, [3, 5])])
def test_a_text_joins_where_another_ends(lanes: int, expected: list[int]) -> None:
    """The time is that of steps over the rows of all texts alive."""
    steps: list[int] = []

    def cost(rows: int) -> float:
        steps.append(rows)
        return 0.5 * rows

    assert decode_time([[1, 4], [1, 1], [1]], lanes, cost) == pytest.approx(0.5 * sum(expected))
    assert steps == expected


def test_model_1_finds_which_words_belong_together() -> None:
    """A and B occur together and apart; the probabilities of each source token sum to one."""
    pairs = [([A, B], [X, Y]), ([A], [X]), ([B], [Y])] * 3
    keys, probabilities = translation_probabilities(pairs, VOCABULARY, rounds=10)
    found = dict(zip(keys.tolist(), probabilities.tolist(), strict=True))

    assert found[A * VOCABULARY + X] > 0.95 > 0.05 > found[A * VOCABULARY + Y]
    assert found[B * VOCABULARY + Y] > 0.95
    assert found[A * VOCABULARY + X] + found[A * VOCABULARY + Y] == pytest.approx(1)


def test_a_shortlist_has_translations_frequent_tokens_and_the_texts_own() -> None:
    """A source token that no pair had stands for itself alone."""
    pairs = [([A, B], [X, Y]), ([A], [X]), ([B], [Y]), ([A], [X])]
    lexicon = learn_lexicon(pairs, VOCABULARY, best=1, frequent=1)

    assert lexicon.frequent.tolist() == [X]
    assert lexicon.shortlist([[A]]).tolist() == [A, X]
    assert lexicon.shortlist([[B], [9]]).tolist() == [B, X, Y, 9]


def test_coverage_counts_tokens_and_texts_that_a_shortlist_misses() -> None:
    """A shared shortlist misses less than each text's own."""
    lexicon = Lexicon({A: np.array([X]), B: np.array([Y])}, np.array([3]))
    sources, targets = [[A, 3], [B, 3]], [[X, Y, 3], [Y, 3]]

    assert coverage(lexicon, sources, targets, 1) == Coverage(1, 3.0, 0.2, 0.5)
    assert coverage(lexicon, sources, targets, 2) == Coverage(2, 5.0, 0.0, 0.0)


def product_record(way: str, columns: int, ms: float) -> dict[str, Any]:
    return {"way": way, "columns": columns, "rows": 1, "ms": ms}


def test_the_gain_counts_what_the_product_costs_more() -> None:
    """Of a step in two, rows are gathered: a text of two tokens joins so often."""
    products = [
        *(product_record(CUT, n, 0.1) for n in (100, 200)),
        *(product_record(KEPT, n, ms) for n, ms in ((100, 0.2), (200, 0.4))),
        *(product_record(GATHERED, n, ms) for n, ms in ((100, 0.4), (200, 0.8))),
    ]
    steps = {100: {1: 1.0}, 200: {1: 2.0}, 1000: {1: 10.0}}
    (found,) = net_gains(steps, products, 1000, {1: 150}, length=2, beside={1: 1.0})

    assert found["joins"] == 0.5
    assert found["shortlist_ms"] == pytest.approx(1.5 + (0.3 + 0.6) / 2 - 0.1)
    assert found["gain"] == pytest.approx(10 / 1.85)
    assert found["bound"] == pytest.approx(10 / 1.5)
    assert found["gain_in_all"] == pytest.approx(11 / 2.85)


@pytest.mark.parametrize("way", [GATHERED, GATHERED_COLUMNS, KEPT, WHOLE])
def test_all_ways_multiply_the_same(way: str) -> None:
    """A matrix that was gathered gives the numbers of a constant one, and those of the whole."""
    products = {name: ProductBench(name, vocabulary=64, width=32, count=64, rows=3) for name in (way, CUT)}
    for product in products.values():
        product()

    assert np.array_equal(products[way].result, products[CUT].result)
    assert np.ptp(products[way].result) > 0


def test_restricted_outputs_have_only_what_is_allowed() -> None:
    """And with everything allowed they are those of the bundle's own loop."""
    session = BundleSession(BUILT_IN, threads=1)
    tokenizer = load_tokenizer(BUILT_IN, load_manifest(BUILT_IN))
    sources = [tokenizer.encode(text) for text in ("Click the button.", "Open the file to print it.")]
    allowed = [tokenizer.special.eos, *tokenizer.encode("Datei")]
    free = greedy(session, sources)

    assert free == session.greedy(sources, [2 * len(source) + 16 for source in sources])
    assert {token for target in greedy(session, sources, lambda _: allowed) for token in target} <= set(allowed)


def test_the_report_has_a_table_for_each_trick() -> None:
    """Of JSON, whose keys are strings."""
    record = {
        "shortest": 1, "proposed": 3, "tokens_per_step": 1.25, "rows_per_step": 2.0, "accepted": 0.25,
        "gains": {"1": {"graph": 1.1, "engine": 1.2}},
    }  # fmt: skip
    gain = {
        "rows": 1, "size": 500.0, "whole_ms": 1.0, "shortlist_ms": 0.5, "joins": 0.04, "gain": 2.0, "bound": 2.5,
        "gain_in_all": 1.5,
    }  # fmt: skip
    model = {
        "title": "small", "vocabulary": 1000, "steps": {"500": {"1": 0.4}, "1000": {"1": 1.0}},
        "products": [product_record(WHOLE, 1000, 0.6)], "gains": [gain],
        "encode_ms": {"1": 0.7},
    }  # fmt: skip
    machine = {
        "processor": "p", "cpus": 2, "memory_gib": 4, "threads": 1, "system": "Linux", "versions": {}, "date": "d",
        "load_before": 0.0,
    }  # fmt: skip
    speculation = {
        "texts": 2, "tokens": 9, "cost_ms": {"1": 0.3}, "records": [record],
    }  # fmt: skip
    lexicon = {
        "pairs": 7, "equal_texts": 0.9, "chrf": 50.0, "chrf_restricted": 49.0,
        "coverage": [{"texts": 1, "size": 500.0, "tokens_outside": 0.01, "texts_outside": 0.2}],
    }  # fmt: skip
    shortlist = {"lexicons": [lexicon], "models": {"default": model}}

    result = {"machine": machine, "around_ms": {"1": 0.1}, "speculation": speculation, "shortlist": shortlist}
    report = tricks_report(result)

    assert "| 1 | 3 | 1.250 | 2.00 | 25 % | 1.10 / 1.20 |" in report
    assert "| 1 | 500 | 1.00 % | 20.0 % |" in report
    assert "| whole, 1000 | 0.600 |" in report
    assert "| 1 | 500 | 4 % | 1.000 | 0.500 | 2.50 | 2.00 | 1.50 |" in report
