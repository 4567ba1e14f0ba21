"""What single options do to a text, and what they ask of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dragoman.model.vocab import SPECIAL_IDS
from dragoman.server.options import Sampling
from dragoman.server.request import Request, RequestStatus
from dragoman.server.step import Wanted
from tests.fakes.search_bench import Logits, RandomModel, SearchBench, Tokens, request
from tests.fakes.search_reference import Reference

EOS = SPECIAL_IDS.eos
MODEL = RandomModel()


def run(found: Request, **sizes: Any) -> tuple[Request, RequestStatus]:
    bench = SearchBench(MODEL, **sizes)
    bench.run(found)
    return found, bench.ended[found]


def asked(*requests: Request, candidates: int = 16) -> Wanted:
    bench = SearchBench(MODEL, slots=99, candidates=candidates)
    bench.admit(*requests)
    return bench.search.wanted()


NOTHING, CANDIDATES, LOGITS, ALIGNMENT = Wanted.NOTHING, Wanted.CANDIDATES, Wanted.LOGITS, Wanted.ALIGNMENT


@pytest.mark.parametrize(
    ("options", "expected", "without_candidates"),
    [
        ({}, NOTHING, NOTHING),
        ({"with_token_scores": True}, CANDIDATES, LOGITS),
        ({"beams": 8}, CANDIDATES, LOGITS),
        ({"beams": 9}, CANDIDATES | LOGITS, LOGITS),
        ({"beams": 2, "repetition_penalty": 1.1}, CANDIDATES | LOGITS, LOGITS),
        ({"repetition_penalty": 1.1}, LOGITS, LOGITS),
        ({"no_repeat_ngram_size": 2}, LOGITS, LOGITS),
        ({"suppressed": ((9,),)}, LOGITS, LOGITS),
        ({"suppressed": ((EOS,),)}, NOTHING, NOTHING),
        ({"min_new_tokens": 1}, LOGITS, LOGITS),
        ({"sampling": Sampling(top_k=16)}, CANDIDATES, LOGITS),
        ({"sampling": Sampling(top_k=17)}, LOGITS, LOGITS),
        ({"sampling": Sampling(top_k=0), "with_token_scores": True}, CANDIDATES | LOGITS, LOGITS),
        ({"alternatives": 16}, CANDIDATES, LOGITS),
        ({"alternatives": 17}, CANDIDATES | LOGITS, LOGITS),
        ({"with_alignment": True}, ALIGNMENT, ALIGNMENT),
        ({"coverage_penalty": 0.1}, NOTHING, NOTHING),
        ({"coverage_penalty": 0.1, "beams": 2}, CANDIDATES | ALIGNMENT, LOGITS | ALIGNMENT),
        ({"score_target": (9, EOS)}, CANDIDATES | LOGITS, LOGITS),
    ],
    ids=str,
)
def test_the_cheapest_output_is_wanted(options: dict[str, Any], expected: Wanted, without_candidates: Wanted) -> None:
    """Each text asks for what it needs, and a batch for what any of its texts needs."""
    if "score_target" in options:
        options = options | {"max_new_tokens": len(options["score_target"])}
    assert asked(request(**options)) == expected
    assert asked(request(), request(**options), request()) == expected
    assert asked(request(**options), candidates=0) == without_candidates


def test_only_steps_that_need_it_ask() -> None:
    """Forced tokens need nothing, EOS is forbidden for a while only, and there is one first free token."""
    model = RandomModel(eos=-9.0)
    bench = SearchBench(model)
    [found] = bench.run(request(first_target=(7, 8), min_new_tokens=2, alternatives=2, max_new_tokens=5))

    assert bench.wanted == [NOTHING, NOTHING, CANDIDATES | LOGITS, LOGITS, NOTHING, NOTHING, NOTHING]
    expected = Reference(model, found, SPECIAL_IDS).alternatives()
    assert [token for token, _ in found.alternatives] == [token for token, _ in expected]


def test_forced_tokens_are_taken_whatever_the_logits_say() -> None:
    """They may be EOS or masked, are no part of the text and of no count, and lengthen what a score is divided by."""
    first = (EOS, SPECIAL_IDS.pad, 9)
    [plain, beam] = SearchBench(MODEL).run(
        request(first_target=first, max_new_tokens=3, min_new_tokens=3, with_token_scores=True),
        request(first_target=first, max_new_tokens=3, min_new_tokens=3, beams=4),
    )

    for found in (plain, beam):
        [best] = found.hypotheses
        assert len(best.tokens) == 3
        assert best.score == pytest.approx(best.log_prob / 6)
    assert len(plain.hypotheses[0].token_scores) == 3


def test_first_are_the_texts_that_chose_their_first_token() -> None:
    """A text with forced tokens later than one without, each once."""
    bench = SearchBench(MODEL)
    late, early = request(first_target=(7, 8)), request(beams=3)
    bench.admit(late, early)
    firsts = [bench.step().first for _ in range(4)]

    assert firsts == [[early], [], [late], []]


def test_a_given_target_is_scored() -> None:
    """Each of its tokens has the model's log-probability, whatever the search would have chosen."""
    target = (20, 9, EOS, 30, EOS)  # EOS inside does not end it
    found, status = run(
        request(score_target=target, first_target=(5,), max_new_tokens=5, repetition_penalty=2.0, min_new_tokens=5)
    )
    [scored] = found.hypotheses
    expected = Reference(MODEL, found, SPECIAL_IDS)

    assert status is RequestStatus.EOS
    assert scored.tokens == list(target[:-1])
    assert scored.ended_by_eos
    assert scored.token_scores == pytest.approx(
        [expected.log_probs(target[:place])[token] for place, token in enumerate(target)], abs=1e-5
    )
    assert scored.log_prob == pytest.approx(sum(scored.token_scores))
    assert scored.score == pytest.approx(scored.log_prob / 6)


def test_a_given_target_may_have_what_is_never_generated() -> None:
    """An unknown word in somebody's text has no probability; that is a result and no fault."""
    found, status = run(request(score_target=(9, SPECIAL_IDS.unk, EOS), max_new_tokens=3))

    assert status is RequestStatus.EOS
    assert found.hypotheses[0].token_scores[1] == -np.inf
    assert np.isfinite([found.hypotheses[0].token_scores[place] for place in (0, 2)]).all()


def test_eos_alone_cannot_be_suppressed_but_ends_of_sequences_can() -> None:
    """A text must be able to end, though not behind every word."""
    [plain, alone, end] = SearchBench(MODEL).run(
        request(max_new_tokens=20), request(max_new_tokens=20, suppressed=((EOS,),)), request(max_new_tokens=20)
    )
    assert plain.hypotheses[0].ended_by_eos
    assert alone.hypotheses == plain.hypotheses

    [end, no_word] = SearchBench(MODEL).run(
        request(max_new_tokens=20, suppressed=((plain.output[-1], EOS),)),
        request(max_new_tokens=20, suppressed=((-1,), (99,), (99, 4), (4, 99))),
    )
    assert end.output[: len(plain.output)] == plain.output
    assert len(end.output) > len(plain.output)
    assert no_word.hypotheses == plain.hypotheses


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("candidates", [16, 0])
def test_a_text_that_may_not_go_on_ends_with_what_it_has(beams: int, candidates: int) -> None:
    """Everything is forbidden behind two tokens: that is the caller's wish, not a fault of the model."""
    words = [(token,) for token in range(40) if token not in (EOS, 20, 21)]
    found, status = run(
        request(suppressed=tuple(words), no_repeat_ngram_size=1, min_new_tokens=9, beams=beams), candidates=candidates
    )

    assert status is RequestStatus.LENGTH
    assert sorted(found.output) == [20, 21]


def test_scores_do_not_change_a_text() -> None:
    """Who wants to know more gets the same text."""
    plain = SearchBench(MODEL).run(request(), request(beams=4), request(sampling=Sampling(top_k=9)))
    more: dict[str, Any] = {"with_token_scores": True, "with_alignment": True, "alternatives": 5}
    told = SearchBench(MODEL).run(
        request(**more), request(beams=4, **more), request(sampling=Sampling(top_k=9), **more)
    )

    assert [each.output for each in told] == [each.output for each in plain]
    for each in told:
        [best] = each.hypotheses
        assert len(best.token_scores) == len(best.tokens) + best.ended_by_eos
        assert best.log_prob == pytest.approx(sum(best.token_scores))
        assert len(best.alignment) == len(best.tokens)
        assert {len(row) for row in best.alignment} == {len(each.source)}
        assert len(each.alternatives) == 5


@pytest.mark.parametrize("beams", [1, 4])
def test_a_text_that_is_cut_off_hands_over_what_it_has(beams: int) -> None:
    """It is the begin of what it would have been, or the best hypothesis at the time."""
    bench = SearchBench(RandomModel(eos=-9.0))
    found = request(beams=beams, with_token_scores=True, with_alignment=True, first_target=(8,))
    bench.admit(request(), found)
    for _ in range(4):
        bench.step()
    bench.search.conclude(found)
    [best] = found.hypotheses
    texts = [target for source, target in bench.slots[1:] if source == found.source]

    assert len(best.tokens) == len(best.token_scores) == len(best.alignment) == 3
    assert (SPECIAL_IDS.start, 8, *best.tokens) in texts
    assert best.log_prob == pytest.approx(sum(best.token_scores))
    assert beams > 1 or bench.emitted[found] == best.tokens


def test_patience_waits_for_more_hypotheses() -> None:
    """The search goes on until so many have ended; the best of them are not worse for it."""
    steps = {}
    for patience in (0.25, 1.0, 4.0):
        bench = SearchBench(MODEL)
        [found] = bench.run(request(beams=4, patience=patience, early_stopping=True, max_new_tokens=30))
        steps[patience] = len(bench.wanted), found.hypotheses[0].score

    assert steps[0.25] <= steps[1.0] < steps[4.0]


def test_rows_move_only_if_they_must() -> None:
    """A hypothesis stays in its parent's slot, and of several children the best one does."""

    def certain(_source: Tokens, target: Tokens) -> Logits:
        logits = np.full(40, -9.0, np.float32)
        logits[20:24] = [3, 2, 1, 0]  # four hypotheses, of which each goes on in one way
        if len(target) > 1:
            logits[20:24] = -9
            logits[target[-1] + 4] = 9
        return logits

    bench = SearchBench(certain)
    bench.admit(request(beams=4))
    parents = [bench.step().parents for _ in range(4)]

    assert parents[0] is not None
    assert parents[0].tolist() == [0, 0, 0, 0]
    assert parents[1:] == [None] * 3
