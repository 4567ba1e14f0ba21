"""What the engine is asked for a text, and what its answers become."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dragoman.export import bundle
from dragoman.model.tokenizers import Tokenizer
from dragoman.server import answers, decoding, jobs
from dragoman.server.calls import Gather, Watch
from dragoman.server.decoding import Allowed, Decoding, derived_seed
from dragoman.server.errors import InvalidArgument
from dragoman.server.jobs import Caller, Job
from dragoman.server.options import SearchOptions
from dragoman.server.request import Hypothesis, Priority, Request, RequestStatus
from dragoman.server.suppression import target_ids
from dragoman.server.validate import Source
from dragoman.v1 import translation_pb2 as pb

BUNDLE = Path(__file__).parents[2] / "data" / "tiny-v1"
ALLOWED = Allowed("tiny", vocab_size=1000, max_target_tokens=128, slots=64, can_align=True)
CALLER = Caller("team-a", Priority.BULK, submitted=1.0, deadline=9.0)
EOS = 3


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return bundle.load_tokenizer(BUNDLE, bundle.load_manifest(BUNDLE))


def read(**options: Any) -> Decoding:
    return decoding.read(pb.DecodingOptions(**options), ALLOWED)


def make_job(options: Decoding, *, prefix: tuple[int, ...] = (), source: tuple[int, ...] = (20, 50, 51, EOS)) -> Job:
    """Return a job of two own tokens behind one that names a language."""
    return jobs.new_job(Source(source, 30, 2, (40,), prefix, own=1), options, ())


def asked(options: Decoding, **source: Any) -> Job:
    job = make_job(options, **source)
    jobs.set_parts(job, options, EOS, CALLER, Gather())
    return job


def answer(request: Request | None, *hypotheses: Hypothesis, status: RequestStatus = RequestStatus.EOS) -> None:
    assert request is not None
    request.hypotheses = list(hypotheses)
    request.status = status


def found(tokenizer: Tokenizer, text: str, score: float = 0.0, *, eos: bool = True) -> Hypothesis:
    """Return a hypothesis whose tokens have log-probability -1 each, and EOS -0.5."""
    ids = target_ids(tokenizer, text)
    scores = [-1.0] * len(ids) + [-0.5] * eos
    alignment: list[Sequence[float]] = [(0.25, 0.5, 0.125, 0.125)] * len(ids)
    return Hypothesis(ids, sum(scores), score, scores, alignment, ended_by_eos=eos)


def test_usually_one_request_is_made() -> None:
    """It carries options, caller, class, deadline, and everything that the target begins with."""
    [request] = asked(read(beam_size=2), prefix=(60, 61)).requests

    assert request.options == SearchOptions(max_new_tokens=30, beams=2)
    assert (request.source, request.first_target) == ((20, 50, 51, EOS), (40, 60, 61))
    assert (request.caller, request.priority, request.deadline) == ("team-a", Priority.BULK, 9.0)
    assert request.times.submitted == 1.0


def test_a_blank_text_asks_for_nothing_and_has_a_blank_translation(tokenizer: Tokenizer) -> None:
    """With the one hypothesis that is certain, if hypotheses are wanted."""
    plain, scored = read(), read(return_scores=True, beam_size=4, num_hypotheses=4)
    assert asked(plain, source=()).requests == []

    translation = answers.translation(jobs.new_job(Source((), 30, 0), plain, ()), plain, tokenizer)
    with_scores = answers.translation(jobs.new_job(Source((), 30, 0), scored, ()), scored, tokenizer)

    assert translation == pb.Translation(finish_reason=pb.FINISH_REASON_EOS)
    assert list(with_scores.hypotheses) == [pb.Hypothesis(finish_reason=pb.FINISH_REASON_EOS, score=0.0, log_prob=0.0)]


def test_a_plain_translation_has_text_reason_and_counts_only(tokenizer: Tokenizer) -> None:
    """EOS is counted on neither side."""
    options = read()
    job = asked(options)
    answer(job.requests[0], found(tokenizer, "zwei"))

    translation = answers.translation(job, options, tokenizer)

    assert translation == pb.Translation(
        text="zwei",
        finish_reason=pb.FINISH_REASON_EOS,
        source_tokens=2,
        target_tokens=len(target_ids(tokenizer, "zwei")),
    )


def test_a_text_that_reached_its_limit_says_so(tokenizer: Tokenizer) -> None:
    """Each hypothesis has its own reason: the best of a beam may have ended while others were cut."""
    options = read(beam_size=2, num_hypotheses=2)
    job = asked(options)
    answer(job.requests[0], found(tokenizer, "zwei", -1.0), found(tokenizer, "drei", -2.0, eos=False))

    translation = answers.translation(job, options, tokenizer)

    assert [one.text for one in translation.hypotheses] == ["zwei", "drei"]
    reasons = [one.finish_reason for one in translation.hypotheses]
    assert reasons == [pb.FINISH_REASON_EOS, pb.FINISH_REASON_LENGTH]
    assert translation.finish_reason == pb.FINISH_REASON_EOS


def test_scores_of_a_beam_are_the_engines(tokenizer: Tokenizer) -> None:
    """What it ranked by; nothing that was not asked for is there."""
    options = read(beam_size=2, return_scores=True)
    job = asked(options)
    answer(job.requests[0], found(tokenizer, "zwei", score=-0.75))

    [one] = answers.hypotheses(job, options, tokenizer)

    assert one.score == -0.75
    assert one.log_prob == -len(target_ids(tokenizer, "zwei")) - 0.5
    assert (list(one.tokens), list(one.alignment), one.HasField("seed")) == ([], [], False)


def test_the_score_of_one_beam_is_normalised_in_the_same_way(tokenizer: Tokenizer) -> None:
    """The length counts EOS, prefix and language tokens, as the engine's does."""
    options = read(return_scores=True, length_penalty=2.0)
    prefix = tuple(target_ids(tokenizer, "und"))
    job = asked(options, prefix=prefix)
    answer(job.requests[0], found(tokenizer, "zwei"))

    [one] = answers.hypotheses(job, options, tokenizer)

    assert one.text == "und zwei"
    assert one.target_tokens == len(target_ids(tokenizer, "zwei"))
    assert one.score == pytest.approx(one.log_prob / (one.target_tokens + 1 + len(prefix) + 1) ** 2)


def test_token_scores_join_to_the_text_and_end_with_eos(tokenizer: Tokenizer) -> None:
    """The prefix has none."""
    options = read(return_token_scores=True)
    prefix = tuple(target_ids(tokenizer, "und"))
    job = asked(options, prefix=prefix)
    answer(job.requests[0], found(tokenizer, "zwei \u6f22"))

    [one] = answers.hypotheses(job, options, tokenizer)

    assert "und" + "".join(token.text for token in one.tokens) == one.text == "und zwei \u6f22"
    assert [token.log_prob for token in one.tokens] == [-1.0] * (len(one.tokens) - 1) + [-0.5]
    assert one.tokens[-1].text == ""
    assert len(one.tokens) == one.target_tokens + 1
    assert not one.HasField("score")


def test_alignment_is_about_the_texts_own_tokens(tokenizer: Tokenizer) -> None:
    """Language tokens and EOS are left out, and the pieces say what a column is."""
    options = read(return_alignment=True)
    ids = tokenizer.encode("one \u6f22")
    job = make_job(options, source=(20, *ids))
    job.source = Source((20, *ids), 30, len(ids) - 1, own=1)
    jobs.set_parts(job, options, EOS, CALLER, Gather())
    one = found(tokenizer, "zwei")
    one.alignment = [[0.5, *range(len(ids) - 1), 0.5]] * len(one.tokens)
    answer(job.requests[0], one)

    translation = answers.translation(job, options, tokenizer)

    [hypothesis] = translation.hypotheses
    assert [list(row.weights) for row in hypothesis.alignment] == [list(range(len(ids) - 1))] * len(one.tokens)
    assert "".join(translation.source_pieces) == " one \u6f22"
    assert len(translation.source_pieces) == translation.source_tokens


def test_samples_are_requests_of_their_own(tokenizer: Tokenizer) -> None:
    """In the order of their seeds, each with the seed that gives it alone."""
    options = read(sampling=pb.Sampling(seed=7, temperature=0.5), num_hypotheses=3)
    job = asked(options)
    for number, request in enumerate(job.requests):
        assert request.options.sampling is not None
        assert request.options.sampling.temperature == 0.5
        assert request.options.sampling.seed == derived_seed(7, number)
        answer(request, found(tokenizer, ["eins", "zwei", "drei"][number]))

    translation = answers.translation(job, options, tokenizer)

    assert [one.text for one in translation.hypotheses] == ["eins", "zwei", "drei"]
    assert [one.seed for one in translation.hypotheses] == [derived_seed(7, number) for number in range(3)]
    assert translation.text == "eins"


def alternatives(options: Decoding, leads: list[tuple[int, float]], limit: int = 30) -> Job:
    job = make_job(options)
    job.options = SearchOptions(max_new_tokens=limit, beams=job.options.beams, with_token_scores=True)
    first = jobs.ask_for_first_tokens(job, options.alternatives, CALLER, Gather())
    assert first.options.max_new_tokens == 1
    assert first.options.alternatives == options.alternatives
    first.alternatives = leads
    jobs.set_parts(job, options, EOS, CALLER, Gather())
    return job


def test_alternatives_go_on_behind_each_of_the_best_tokens(tokenizer: Tokenizer) -> None:
    """The token counts as new: in the limit, in tokens and in scores."""
    options = read(return_alternatives=2, return_scores=True, return_token_scores=True)
    zwei, drei = target_ids(tokenizer, "zwei"), target_ids(tokenizer, "drei")
    job = alternatives(options, [(zwei[0], -0.25), (drei[0], -2.0)])
    for request, ids in zip(job.requests, (zwei, drei), strict=True):
        assert request.first_target == (40, ids[0])
        assert request.options.max_new_tokens == 29
        answer(request, Hypothesis(ids[1:], -0.5 - len(ids[1:]), 0.0, [-1.0] * len(ids[1:]) + [-0.5], [], True))

    first, second = answers.hypotheses(job, options, tokenizer)

    assert (first.text, second.text) == ("zwei", "drei")
    assert first.log_prob == -0.25 - len(zwei[1:]) - 0.5
    assert first.score == pytest.approx(first.log_prob / (len(zwei) + 1 + 1))
    assert [token.log_prob for token in first.tokens] == [-0.25, *[-1.0] * len(zwei[1:]), -0.5]
    assert first.target_tokens == len(zwei)


def test_the_score_of_an_alternative_with_beams_counts_its_first_token(tokenizer: Tokenizer) -> None:
    """The engine knows it as given and scores it 0."""
    options = read(return_alternatives=1, return_scores=True, beam_size=2)
    zwei = target_ids(tokenizer, "zwei")
    job = alternatives(options, [(zwei[0], -0.25)])
    length = len(zwei) + 1 + 1  # with EOS and the language
    answer(job.requests[0], Hypothesis(zwei[1:], -3.0, -3.0 / length, [], [], True))

    [one] = answers.hypotheses(job, options, tokenizer)

    assert one.score == pytest.approx(-3.25 / length)


def test_an_alternative_that_is_eos_or_the_last_token_needs_no_search(tokenizer: Tokenizer) -> None:
    """The empty text, and a text of one token; what cannot be chosen is no alternative."""
    zwei = target_ids(tokenizer, "zwei")
    options = read(return_alternatives=3, return_scores=True)
    ended = alternatives(options, [(EOS, -0.5), (zwei[0], -math.inf)])
    cut = alternatives(options, [(zwei[0], -0.25)], limit=1)

    [empty] = answers.hypotheses(ended, options, tokenizer)
    [single] = answers.hypotheses(cut, options, tokenizer)

    assert ended.requests == cut.requests == []
    assert (empty.text, empty.finish_reason, empty.target_tokens) == ("", pb.FINISH_REASON_EOS, 0)
    assert (empty.log_prob, empty.score) == (-0.5, -0.25)  # of EOS and the language
    assert (single.text, single.finish_reason) == (tokenizer.decode(zwei[:1]), pb.FINISH_REASON_LENGTH)


def test_the_first_round_may_end_only_where_the_text_may() -> None:
    """min_new_tokens keeps EOS from being the first token, and counts on behind it."""
    for least in (0, 1, 5):
        options = read(return_alternatives=2, min_new_tokens=least)
        job = make_job(options)
        first = jobs.ask_for_first_tokens(job, 2, CALLER, Gather())
        first.alternatives = [(50, -1.0)]
        jobs.set_parts(job, options, EOS, CALLER, Gather())

        assert first.options.min_new_tokens == min(least, 1)
        assert job.requests[0].options.min_new_tokens == max(0, least - 1)


def test_nothing_of_what_comes_behind_a_stop_sequence_is_in_the_answer(tokenizer: Tokenizer) -> None:
    """However much the engine has made: text, counts, scores, tokens and alignment are the same."""
    options = read(stop_sequences=["drei"], return_scores=True, return_token_scores=True, return_alignment=True)
    answered = []
    for text in ("zwei drei", "zwei drei vier", "zwei drei vier drei und zwei"):
        job = asked(options)
        answer(job.requests[0], found(tokenizer, text, eos=text.endswith("zwei")), status=RequestStatus.STOPPED)
        answered.append(answers.translation(job, options, tokenizer))

    [one] = answered[0].hypotheses
    assert answered[0] == answered[1] == answered[2]
    assert (one.text, one.finish_reason) == ("zwei ", pb.FINISH_REASON_STOP_SEQUENCE)
    assert one.target_tokens == len(target_ids(tokenizer, "zwei drei"))
    assert one.log_prob == -one.target_tokens
    assert "".join(token.text for token in one.tokens) == "zwei "
    assert len(one.tokens) == len(one.alignment) == one.target_tokens


def test_requests_with_stop_sequences_are_watched(tokenizer: Tokenizer) -> None:
    """Behind prefix and first token, which may have met one already."""
    options = read(return_alternatives=1, stop_sequences=["zwei"])
    zwei = target_ids(tokenizer, "zwei")
    job = alternatives(options, [(zwei[0], -0.25)])
    stopped: list[Request] = []
    jobs.watch(job, options.stop_sequences, tokenizer, stopped.extend, Gather())
    [request] = job.requests
    assert isinstance(request.listener, Watch)
    for token in zwei[1:]:
        request.listener.token(token)

    assert stopped == [request]


def test_unwatched_requests_want_no_tokens(tokenizer: Tokenizer) -> None:
    """An event per token is not free."""
    job = asked(read())
    stopped: list[Request] = []
    jobs.watch(job, (), tokenizer, stopped.extend, Gather())

    assert not job.requests[0].listener.wants_tokens


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"sampling": pb.Sampling(), "num_hypotheses": 4}, "options.num_hypotheses"),
        ({"return_alternatives": 4}, "options.return_alternatives"),
        ({}, "texts"),
    ],
)
def test_a_call_that_no_queue_can_take_is_refused(options: dict[str, Any], field: str) -> None:
    """Trying again would never help. Blank texts do not count."""
    chosen = read(**options)
    each = max(1, chosen.samples, chosen.alternatives)
    work = [make_job(chosen), make_job(chosen), make_job(chosen, source=())]

    jobs.check_number(work, chosen, 2 * each)
    with pytest.raises(InvalidArgument, match=f"{each} for each of 2 texts are {2 * each}, and no more than") as caught:
        jobs.check_number(work, chosen, 2 * each - 1)

    assert caught.value.field == field


def test_a_text_that_does_not_fit_is_refused_with_what_would() -> None:
    """As many beams as there is memory for; if not even one, the text is the matter."""
    source = Source((20, 50, 51, EOS), 30, 2, (40,), field="texts[2]")

    def fits(rows: int, source_tokens: int, target_tokens: int) -> bool:
        assert (source_tokens, target_tokens) == (4, 31)
        return rows <= 3

    jobs.check_fits(source, 3, 30, fits)
    with pytest.raises(InvalidArgument, match=r"8 is more than the 3 for which the server has memory") as beams:
        jobs.check_fits(source, 8, 30, fits)
    with pytest.raises(InvalidArgument, match="no memory for 2 tokens and up to 31 target tokens") as text:
        jobs.check_fits(source, 2, 30, lambda *_: False)

    assert beams.value.field == "options.beam_size"
    assert text.value.field == "texts[2]"
