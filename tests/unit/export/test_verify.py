"""The gate: a right bundle passes, and no planted fault of a graph does, whichever of the checks has to find it."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from dragoman.export import bundle
from dragoman.export.decode import BundleSession
from dragoman.export.errors import VerificationError
from dragoman.export.verify import require, requirement
from dragoman.export.verify.searches import Comparison
from dragoman.model.cached_search import beam_cached
from dragoman.model.search import greedy
from dragoman.model.vocab import SPECIAL_IDS
from tests.fakes.bundles import plant, random_sources
from tests.fakes.faults import (
    Change,
    allow_reserved_ids,
    attend_to_padding,
    forget_far_positions,
    forget_to_normalise,
    miss_eos_on_short_rows,
    normalise_without_masked,
    read_one_step_less,
    shift_positions,
    shift_scales,
    swap_heads,
    write_one_step_late,
)
from tests.fakes.verification import SENTENCES, check, held_out, one_pair

# What is right


def test_a_right_bundle_passes(fp32_bundle: Path) -> None:
    """Logits over all sizes; greedy and beam texts are PyTorch's; alone equals batched."""
    report = check(fp32_bundle, one_pair(), sentences=60)

    assert report.problems == ()
    assert report.logits.cases == 22
    assert report.max_logit_difference < 1e-4 < report.logits.spread
    assert [search.name for search in report.searches] == ["greedy", "beam-4"]
    for search in report.searches:
        assert search.identical + search.ties == search.sentences == 60
        assert search.ties < 3
        assert search.alone_identical + search.alone_ties == search.alone
        assert search.chrf_model is None


def test_texts_of_both_searches_are_varied(fp32_bundle: Path) -> None:
    """Equality would prove little if all texts were the same, or if a beam found what greedy search finds."""
    session, sources = BundleSession(fp32_bundle), random_sources(one_pair(), [2 + row % 30 for row in range(30)])
    greedy_texts = session.greedy(sources, [20] * 30)
    beam_texts = [found[0].tokens for found in session.beam(sources, [20] * 30)]

    for texts in (greedy_texts, beam_texts):
        assert len({tuple(ids) for ids in texts}) > 15
        assert max(len(set(ids)) for ids in texts) > 3
        assert 5 < sum(ids[-1] == SPECIAL_IDS.eos for ids in texts) < 25
    assert sum(a != b for a, b in zip(greedy_texts, beam_texts, strict=True)) > 10


@pytest.mark.parametrize("first", [(), (7,), (2, 30)])
def test_all_hypotheses_of_the_bundle_are_those_of_the_model(fp32_bundle: Path, first: tuple[int, ...]) -> None:
    """Tokens and scores, of sources of mixed lengths and limits, with and without forced first tokens."""
    checkpoint, special = one_pair(), one_pair().tokenizer.special
    sources, limits = (
        random_sources(checkpoint, [2 + row * 5 % 40 for row in range(12)]),
        [3 + row for row in range(12)],
    )
    options: Any = {"beams": 3, "length_penalty": 0.8, "first": first}
    expected = beam_cached(checkpoint.model, sources, limits, special, **options)
    found = BundleSession(fp32_bundle).beam(sources, limits, **options)

    assert [[h.tokens for h in row] for row in found] == [[h.tokens for h in row] for row in expected]
    for row, others in zip(found, expected, strict=True):
        assert [h.score for h in row] == pytest.approx([h.score for h in others], abs=1e-4)
    assert BundleSession(fp32_bundle).greedy(sources, limits, first) == greedy(
        checkpoint.model, sources, limits, special, first
    )


def test_quality_is_measured_where_there_are_references(int8_bundle: Path) -> None:
    """A precision that changes the numbers may change texts, but not by more than half a point of chrF."""
    report = check(int8_bundle, one_pair(), held_out())

    assert report.search("greedy").chrf_model == 100
    assert report.search("greedy").references == SENTENCES
    assert (report.requirement.logit_tolerance, report.requirement.needs_references) == (None, True)
    lost = [s.chrf_model - s.chrf_bundle for s in report.searches if s.chrf_model and s.chrf_bundle]
    assert len(lost) == 2
    assert bool(report.problems) == any(drop > 0.5 for drop in lost)


def test_unknown_precisions_have_to_keep_their_quality() -> None:
    """What is not known to be exact is asked for what anything is asked for."""
    assert requirement("int3").max_chrf_drop == 0.5
    assert requirement("int3").needs_references
    assert requirement("fp32").same_texts
    assert 0 < (requirement("fp16").logit_tolerance or 0) < 0.1


# Faults of a graph

LOGITS, TEXTS, BEAMS, ALONE = "logits differ", "texts differ", "texts differ from PyTorch's (beam", "depend on what"
GRAPH_FAULTS: dict[str, tuple[str, Change, tuple[str, ...]]] = {
    "the encoder attends to padding": (bundle.ENCODER, attend_to_padding, (LOGITS, TEXTS, ALONE)),
    "the decoder attends to padding": (bundle.DECODER, attend_to_padding, (LOGITS, TEXTS, ALONE)),
    "swapped heads in the encoder": (bundle.ENCODER, swap_heads, (LOGITS, TEXTS)),
    "swapped heads in the decoder": (bundle.DECODER, swap_heads, (LOGITS, TEXTS)),
    "source positions off by one": (bundle.ENCODER, shift_positions, (LOGITS, TEXTS)),
    "target positions off by one": (bundle.DECODER, shift_positions, (LOGITS, TEXTS)),
    "far target positions are one": (bundle.DECODER, forget_far_positions, (LOGITS, TEXTS)),
    "reserved ids are not masked": (bundle.DECODER, allow_reserved_ids, ("must never be generated",)),
    "the cache is written one step late": (bundle.DECODER, write_one_step_late, (LOGITS, TEXTS)),
    "the cache is read one step less": (bundle.DECODER, read_one_step_less, (LOGITS, TEXTS)),
    "EOS is missing on short rows": (bundle.DECODER, miss_eos_on_short_rows, ("not finite", TEXTS, ALONE)),
    "beams get wrong scores": (bundle.DECODER, forget_to_normalise, (BEAMS,)),
    "masked ids lose their share": (bundle.DECODER, normalise_without_masked, (LOGITS,)),
}


@pytest.mark.parametrize(("graph", "fault", "found_by"), GRAPH_FAULTS.values(), ids=GRAPH_FAULTS)
def test_a_planted_fault_is_caught(
    fp32_bundle: Path, tmp_path: Path, graph: str, fault: Change, found_by: tuple[str, ...]
) -> None:
    """By each check that can see it, so that the gate does not hang on one of them."""
    report = check(plant(fp32_bundle, tmp_path / "broken", graph, fault), one_pair())

    for words in found_by:
        assert any(words in problem for problem in report.problems), (words, report.problems)
    with pytest.raises(VerificationError):
        require(report)


def test_a_row_that_depends_on_its_neighbours_is_caught_in_every_precision(int8_bundle: Path, tmp_path: Path) -> None:
    """Also where neither logits nor texts have to be PyTorch's."""
    fault = functools.partial(miss_eos_on_short_rows, penalty=-20.0)
    report = check(plant(int8_bundle, tmp_path / "broken", bundle.DECODER, fault), one_pair())

    assert any(ALONE in problem for problem in report.problems)
    assert not any("differ" in problem or "chrF" in problem for problem in report.problems)


def test_one_call_shows_what_a_text_is_alone(
    int8_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a sample is decoded token by token without neighbours; the fault is found among the others, too."""
    fault = functools.partial(miss_eos_on_short_rows, penalty=-20.0)
    broken = plant(int8_bundle, tmp_path / "broken", bundle.DECODER, fault)
    monkeypatch.setattr(Comparison, "_sample", lambda _: [])
    whole, report = check(int8_bundle, one_pair()), check(broken, one_pair())

    assert not any(ALONE in problem for problem in whole.problems)
    assert (whole.search("greedy").alone, whole.search("greedy").alone_identical) == (SENTENCES, SENTENCES)
    assert whole.search("beam-4").alone == 0
    assert any(ALONE in problem and "greedy" in problem for problem in report.problems)


def test_few_texts_are_decoded_alone(fp32_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter, the shortest and the longest among them, but eight at least; one call each for the others."""
    searched: list[int] = []
    greedy_search = BundleSession.greedy

    def count(session: BundleSession, sources: Any, limits: Any, first: Any = ()) -> list[list[int]]:
        if len(sources) == 1:
            searched.append(len(sources[0]))
        return greedy_search(session, sources, limits, first)

    monkeypatch.setattr(BundleSession, "greedy", count)
    reports = {sentences: check(fp32_bundle, one_pair(), sentences=sentences) for sentences in (5, 27, 60)}

    assert {sentences: report.search("greedy").alone for sentences, report in reports.items()} == {5: 5, 27: 27, 60: 60}
    assert {sentences: report.search("beam-4").alone for sentences, report in reports.items()} == {5: 5, 27: 8, 60: 15}
    assert len(searched) == 5 + 8 + 15
    assert min(searched[-15:]) <= 3
    assert max(searched[-15:]) >= 55


def test_lost_quality_is_caught(int8_bundle: Path, tmp_path: Path) -> None:
    """A precision whose texts need not be PyTorch's must keep its chrF."""
    report = check(plant(int8_bundle, tmp_path / "broken", bundle.DECODER, shift_scales), one_pair(), held_out())

    assert report.search("greedy").chrf_model == 100
    assert any("chrF falls by" in problem and "greedy" in problem for problem in report.problems)
    assert any("chrF falls by" in problem and "beam-4" in problem for problem in report.problems)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_logit_that_is_not_a_number_is_caught(
    fp32_bundle: Path, int8_bundle: Path, tmp_path: Path, precision: str
) -> None:
    """One of them is enough, and NaN is larger than every tolerance."""

    def spoil(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            values = numpy_helper.to_array(tensor).copy()
            if values.dtype == np.float32 and np.isneginf(values).any():
                values[-1] = np.nan
                tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))

    folder = fp32_bundle if precision == "fp32" else int8_bundle
    report = check(plant(folder, tmp_path / "broken", bundle.DECODER, spoil), one_pair(), sentences=5)

    assert np.isnan(report.max_logit_difference)
    assert report.problems[0] == "a logit is not finite"
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["logits"]["max_difference"] is None
