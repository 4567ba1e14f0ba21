"""What is no number fails the text that uses it, alone; extreme values of options fail nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dragoman.model.vocab import SPECIAL_IDS
from dragoman.server.options import LARGEST_SEED, Sampling
from dragoman.server.request import Request, RequestStatus
from dragoman.server.search import Search
from dragoman.server.step import StepOutputs
from tests.fakes.search_bench import RandomModel, SearchBench, request, solo

MODEL = RandomModel()
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "scored": {"with_token_scores": True},
    "adjusted": {"repetition_penalty": 1.2},
    "adjusted, scored": {"repetition_penalty": 1.2, "with_token_scores": True},
    "beams": {"beams": 3},
    "many beams": {"beams": 9},
    "adjusted beams": {"beams": 3, "no_repeat_ngram_size": 2},
    "sample of few": {"sampling": Sampling(top_k=5)},
    "sample of some": {"sampling": Sampling(top_k=30)},
    "sample of all": {"sampling": Sampling(top_k=0)},
}


@pytest.fixture(autouse=True)
def _errors_of_numpy_are_errors() -> Any:
    with np.errstate(all="raise"):
        yield


def spoil(bench: SearchBench, victim: Request, value: float, *, step: int) -> Callable[[StepOutputs], None]:
    """Return what makes all outputs of a text's best row what a graph returns for logits of this value."""
    steps = itertools.count()

    def change(outputs: StepOutputs) -> None:
        if next(steps) != step:
            return
        for slot in bench.search.slots_of(victim):
            outputs.next_ids[slot] = SPECIAL_IDS.pad
            for scores in (outputs.candidate_scores, outputs.logits):
                if scores is not None:
                    scores[slot] = value
            if outputs.log_normalizer is not None:
                outputs.log_normalizer[slot] = value

    return change


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [0, 2])
def test_a_fault_fails_its_text_alone(kind: str, value: float, step: int) -> None:
    """Whatever shares the batch: all others are what they are alone."""
    victim = request((10, 12, 3), **KINDS[kind], min_new_tokens=3 if "adjusted" in kind else 0)
    others = [request((11, 3), **options) for options in KINDS.values()]
    bench = SearchBench(RandomModel(eos=-2.0), slots=64)
    bench.before_step = spoil(bench, victim, value, step=step)
    bench.run(*others[:5], victim, *others[5:])

    if value == -np.inf and kind == "adjusted":  # may be the options' doing: nothing is left to choose
        assert bench.ended[victim] is RequestStatus.LENGTH
    else:
        assert bench.ended[victim] is RequestStatus.FAILED
        assert victim.hypotheses == []
    for other in others:
        assert other.hypotheses == solo(RandomModel(eos=-2.0), other)[0].hypotheses
        assert bench.ended[other] is not RequestStatus.FAILED


@pytest.mark.parametrize("token", [SPECIAL_IDS.pad, SPECIAL_IDS.unk, 40, -1, 2**40])
def test_a_masked_id_and_what_is_no_id_are_faults(token: int) -> None:
    """A graph cannot choose it unless its logits are not numbers; every id that is read next is one."""
    bench = SearchBench(MODEL)
    greedy, beams, fine = request(), request(beams=2), request()

    def change(outputs: StepOutputs) -> None:
        outputs.next_ids[0] = token
        assert outputs.candidate_ids is not None
        outputs.candidate_ids[1, 1] = token

    bench.admit(greedy, beams, fine)
    bench.before_step = change
    decision = bench.step()

    assert bench.ended == {greedy: RequestStatus.FAILED, beams: RequestStatus.FAILED}
    assert decision.first == [fine]
    assert [each for each, _ in decision.emitted] == [fine]
    assert ((decision.tokens >= 0) & (decision.tokens < 40)).all()


def test_what_nobody_chooses_may_be_anything() -> None:
    """Logits of rows that need none but that of the id they take."""
    bench = SearchBench(MODEL)
    greedy, other = request(), request(repetition_penalty=1.3)

    def change(outputs: StepOutputs) -> None:
        assert outputs.logits is not None
        chosen = outputs.logits[0, outputs.next_ids[0]]
        outputs.logits[0] = np.nan
        outputs.logits[0, outputs.next_ids[0]] = chosen

    bench.before_step = change
    bench.admit(greedy, other)
    bench.step()

    assert bench.ended == {}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("token", [SPECIAL_IDS.eos, 20])
@pytest.mark.parametrize("step", [0, 2])
@pytest.mark.parametrize("kind", ["greedy", "scored"])
def test_an_allowed_id_whose_logit_is_no_number_is_a_fault(kind: str, step: int, token: int, value: float) -> None:
    """The argmax of NaN may be any id, EOS too: an empty text would look like a translation."""
    victim = request((10, 12, 3), **KINDS[kind])
    others = [request((11, 3)), request((13, 3)), request((14, 3), with_token_scores=True)]
    bench = SearchBench(RandomModel(eos=-2.0), all_logits=True)
    steps = itertools.count()

    def change(outputs: StepOutputs) -> None:
        if next(steps) == step:
            [slot] = bench.search.slots_of(victim)
            assert outputs.logits is not None
            outputs.next_ids[slot] = token
            outputs.logits[slot] = value

    bench.before_step = change
    bench.run(others[0], victim, *others[1:])

    assert bench.ended[victim] is RequestStatus.FAILED
    assert victim.hypotheses == []
    for other in others:
        assert other.hypotheses == solo(RandomModel(eos=-2.0), other)[0].hypotheses
        assert bench.ended[other] is not RequestStatus.FAILED


def test_logits_that_nobody_asked_for_change_nothing() -> None:
    """On the CPU they are always there; every kind of search finds what it finds without them."""
    requests = [request((11, 3), **options) for options in KINDS.values()]
    bench = SearchBench(MODEL, slots=64, all_logits=True)
    bench.run(*requests)

    for each in requests:
        assert each.hypotheses == solo(MODEL, each)[0].hypotheses


def test_few_tokens_to_choose_from() -> None:
    """With fewer tokens than beams, hypotheses are fewer; masked candidates are not taken in their place."""

    class Narrow(RandomModel):
        def __call__(self, source: Any, target: Any) -> Any:
            logits = super().__call__(source, target).copy()
            logits[[*range(3), *range(5, self.vocab_size)]] = -np.inf
            return logits

    for beams in (2, 4, 8, 12):
        bench = SearchBench(Narrow())
        [found] = bench.run(request(beams=beams, hypotheses=beams, max_new_tokens=3))
        assert bench.ended[found] is not RequestStatus.FAILED
        # EOS and 4: after three steps there are "", "4", "44" with EOS and "444".
        assert {tuple(each.tokens) for each in found.hypotheses} <= {(), (4,), (4, 4), (4, 4, 4)}
        assert len(found.hypotheses) == min(beams, 4)


EXTREMES: list[dict[str, Any]] = [
    {"beams": 4, "length_penalty": 100.0, "max_new_tokens": 39},
    {"beams": 4, "length_penalty": -100.0, "early_stopping": "never"},
    {"beams": 4, "length_penalty": 100.0, "normalization": "gnmt", "early_stopping": "never", "max_new_tokens": 39},
    {"beams": 4, "patience": 100.0},
    {"beams": 4, "patience": 1e-300},
    {"beams": 4, "coverage_penalty": 100.0},
    {"beams": 4, "repetition_penalty": 100.0},
    {"beams": 4, "repetition_penalty": 5e-324},
    {"beams": 32, "hypotheses": 32},
    {"repetition_penalty": 100.0},
    {"repetition_penalty": 5e-324},
    {"repetition_penalty": 5e-324, "with_token_scores": True},
    {"no_repeat_ngram_size": 64},
    {"sampling": Sampling(temperature=5e-324, top_k=LARGEST_SEED, seed=LARGEST_SEED)},
    {"sampling": Sampling(temperature=100.0, top_k=0, top_p=5e-324)},
    {"sampling": Sampling(temperature=100.0, top_k=0, top_p=0.999999)},
    {"suppressed": tuple((token,) * 30 for token in range(40))},
    {"min_new_tokens": 12},
    {"max_new_tokens": 1, "beams": 4},
]


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("candidates", [16, 0])
@pytest.mark.parametrize("options", EXTREMES, ids=str)
def test_extreme_values_overflow_nothing(options: dict[str, Any], candidates: int, scale: float) -> None:
    """Neither warnings nor faults nor anything that is not finite."""

    def scaled(source: Any, target: Any) -> Any:
        return MODEL(source, target) * np.float32(scale)

    def outputs_of(found: Request) -> None:
        bench = SearchBench(scaled, slots=40, candidates=candidates)
        with np.errstate(all="ignore"):  # of the model; the search sees what it gets
            bench.run(request(), found)
        assert bench.ended[found] is not RequestStatus.FAILED
        for each in found.hypotheses:
            assert np.isfinite([each.log_prob, each.score, *each.token_scores]).all()
            assert not set(each.tokens) & {*SPECIAL_IDS.never_generated, SPECIAL_IDS.eos}

    outputs_of(request(**{"max_new_tokens": 20, **options}))


def test_logits_of_other_kinds_are_read_too() -> None:
    """Of 16 bits, as a GPU has them, and in memory that may not be written to."""
    expected = SearchBench(MODEL).run(request(repetition_penalty=1.3), request(beams=9))
    for kind in (np.float16, np.float32):
        bench = SearchBench(MODEL)

        def change(outputs: StepOutputs, kind: Any = kind) -> None:
            assert outputs.logits is not None
            with np.errstate(all="ignore"):
                outputs.logits = outputs.logits.astype(kind)
            outputs.logits.flags.writeable = False

        bench.before_step = change
        found = bench.run(request(repetition_penalty=1.3), request(beams=9))
        assert [each.output for each in found] == [each.output for each in expected]


def test_a_search_refuses_what_does_not_fit() -> None:
    """The pool would have refused before; nothing is begun."""
    search = Search(4, 20, SPECIAL_IDS, 40, candidates=16)
    search.admit([request(beams=3)])
    for too_much in (request(beams=2), request(max_new_tokens=20, first_target=(7,))):
        with pytest.raises(AssertionError, match="does not fit"):
            search.admit([too_much])

    assert search.live == 3
    assert len(search.requests) == 1


def test_nothing_is_left_of_texts_that_are_gone() -> None:
    """However they leave: sequences that were suppressed are forgotten with the last text that had them."""
    bench = SearchBench(MODEL)
    words = ((20, 21), (22,))
    bench.run(request(suppressed=words), request(suppressed=words, max_new_tokens=3), request(suppressed=((5, EOS),)))
    bench.admit(request(suppressed=words), request(suppressed=((9,),), beams=3))
    bench.search.clear()

    assert bench.search.live == 0
    assert bench.search.requests == []
    assert not vars(bench.search._banned)["_banned"]
    assert not vars(bench.search._banned)["_users"]
    bench.slots.clear()
    [again] = bench.run(request())
    assert again.hypotheses == solo(MODEL, again)[0].hypotheses


EOS = SPECIAL_IDS.eos
