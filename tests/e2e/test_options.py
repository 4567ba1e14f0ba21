"""Every option of decoding, on a real server: what it does, and that nothing else depends on it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.client import DecodingOptions, Sampling, TranslationClient
from dragoman.model.generated import date_example, number_example
from dragoman.model.tokenizers import Tokenizer
from dragoman.v1 import translation_pb2 as pb
from tests.e2e.process import WAIT_S, ServerProcess, start_server

DEFAULT_MODEL = Path(__file__).parents[2] / "server" / "dragoman" / "server" / "models" / "en-de"
TEXT = number_example(123).source
TEXTS = [TEXT, "", date_example(1999, 3, 12).source, number_example(42).source, number_example(987654).source]
WILD = pb.Sampling(temperature=100.0, top_k=0, seed=11)  # nearly every token is as likely as any other
Reply = pb.TranslateResponse


def translate(server: ServerProcess, *texts: str, prefixes: list[str] | None = None, **options: Any) -> Reply:
    request = pb.TranslateRequest(texts=texts, target_prefixes=prefixes or [], options=pb.DecodingOptions(**options))
    reply: Reply = server.stub.Translate(request, timeout=WAIT_S)
    return reply


def one(server: ServerProcess, text: str = TEXT, prefix: str = "", **options: Any) -> pb.Translation:
    return translate(server, text, prefixes=[prefix] if prefix else None, **options).translations[0]


def stream(server: ServerProcess, text: str, prefix: str = "", **options: Any) -> tuple[list[str], pb.StreamEnd]:
    request = pb.StreamTranslateRequest(text=text, target_prefix=prefix, options=pb.DecodingOptions(**options))
    *pieces, last = server.stub.StreamTranslate(request, timeout=WAIT_S)
    assert all(piece.text and not piece.HasField("end") for piece in pieces)
    assert last.HasField("end")
    assert not last.text
    return [piece.text for piece in pieces], last.end


@pytest.fixture(autouse=True)
def nothing_is_left_in_the_engine(server: ServerProcess) -> Iterator[None]:
    """Whatever a call asked for."""
    yield
    assert server.rows_in_engine() == 0


STREAMED: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beam": {"beam_size": 4, "num_hypotheses": 4, "return_scores": True, "return_token_scores": True},
    "gnmt": {"beam_size": 3, "length_penalty": 0.6, "normalization": pb.NORMALIZATION_GNMT, "return_scores": True},
    "patience": {"beam_size": 3, "patience": 2.0, "early_stopping": pb.EARLY_STOPPING_NEVER},
    "samples": {"sampling": pb.Sampling(seed=5, top_p=0.9), "num_hypotheses": 3, "return_scores": True},
    "wild samples": {"sampling": WILD, "num_hypotheses": 2},
    "alternatives": {"return_alternatives": 4, "return_scores": True},
    "alternatives with beams": {"return_alternatives": 3, "beam_size": 2, "return_scores": True},
    "stop sequence": {"stop_sequences": ["und", "ert "], "return_token_scores": True},
    "stop sequence in a wild text": {"stop_sequences": ["e", "\ufffd\ufffd"], "sampling": WILD, "return_scores": True},
    "stop sequence of alternatives": {"stop_sequences": ["hundert"], "return_alternatives": 3},
    "limits": {"min_new_tokens": 8, "max_new_tokens": 9},
    "ratio": {"max_length_ratio": 0.5},
    "penalties": {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
    "suppressed": {"suppressed_texts": ["hundert", "ein"]},
}


@pytest.mark.parametrize("prefix", ["", "ein", "日本語と中文 👩‍👩‍👧‍👦 e\u0301"])
@pytest.mark.parametrize("name", STREAMED)
def test_a_stream_is_the_unary_translation(server: ServerProcess, name: str, prefix: str) -> None:
    """Text byte for byte, and everything else that is known at the end."""
    for text in TEXTS:
        translation = one(server, text, prefix, **STREAMED[name])
        pieces, end = stream(server, text, prefix, **STREAMED[name])

        assert "".join(pieces).encode() == translation.text.encode()
        assert (end.finish_reason, end.source_tokens, end.target_tokens) == (
            translation.finish_reason,
            translation.source_tokens,
            translation.target_tokens,
        )
        assert [hypothesis.text for hypothesis in end.hypotheses] == [h.text for h in translation.hypotheses]
        for streamed, whole in zip(end.hypotheses, translation.hypotheses, strict=True):
            assert streamed.score == pytest.approx(whole.score, abs=1e-4)
            assert [token.text for token in streamed.tokens] == [token.text for token in whole.tokens]


def test_a_prefix_is_the_first_piece(server: ServerProcess) -> None:
    """Before the model has said anything; a beam search sends the rest at once."""
    greedy, _ = stream(server, TEXT, "ein")
    beam, _ = stream(server, TEXT, "ein", beam_size=4)

    assert greedy[0] == beam[0] == "ein"
    assert len(greedy) > 2
    assert len(beam) == 2


@pytest.mark.parametrize("name", STREAMED)
def test_texts_of_one_call_do_not_notice_each_other(server: ServerProcess, name: str) -> None:
    """Together as alone, whatever the options."""
    together = translate(server, *TEXTS, **STREAMED[name]).translations
    alone = [one(server, text, **STREAMED[name]) for text in TEXTS]

    assert [[h.text for h in translation.hypotheses] for translation in together] == [
        [h.text for h in translation.hypotheses] for translation in alone
    ]
    assert [translation.text for translation in together] == [translation.text for translation in alone]


def test_hypotheses_of_a_beam_are_ranked_by_their_scores(server: ServerProcess) -> None:
    """Best first; the score is the log-probability by the length with EOS."""
    translation = one(server, beam_size=5, num_hypotheses=5, return_scores=True)

    hypotheses = translation.hypotheses
    assert translation.text == hypotheses[0].text == number_example(123).target
    assert len({hypothesis.text for hypothesis in hypotheses}) > 1
    scores = [hypothesis.score for hypothesis in hypotheses]
    assert scores == sorted(scores, reverse=True)
    for hypothesis in hypotheses:
        assert hypothesis.finish_reason == pb.FINISH_REASON_EOS
        assert hypothesis.score == pytest.approx(hypothesis.log_prob / (hypothesis.target_tokens + 1), abs=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam_size": 3, "num_hypotheses": 3},
        {"sampling": pb.Sampling(seed=1, temperature=0.2)},
        {"return_alternatives": 4},
        {"return_alternatives": 2, "beam_size": 3},
    ],
    ids=str,
)
def test_a_translations_score_is_what_scoring_says(server: ServerProcess, options: dict[str, Any]) -> None:
    """The log-probability of a text does not depend on how it was found, where the tokenizer makes its tokens of it.

    A model may write others; this one does not in its best texts, which is looked at first.
    """
    texts = [text for text in TEXTS if text]
    translations = translate(server, *texts, return_scores=True, return_token_scores=True, **options).translations
    pairs = [pb.ScorePair(source=s, target=t.text) for s, t in zip(texts, translations, strict=True)]
    scores = server.stub.Score(pb.ScoreRequest(pairs=pairs), timeout=WAIT_S).scores

    for translation, score in zip(translations, scores, strict=True):
        best = translation.hypotheses[0]
        assert [token.text for token in best.tokens] == [token.text for token in score.tokens]
        assert best.log_prob == pytest.approx(score.log_prob, abs=1e-3)
        assert [token.log_prob for token in best.tokens] == pytest.approx([t.log_prob for t in score.tokens], abs=1e-3)


def test_a_seed_decides_and_each_sample_can_be_had_alone(server: ServerProcess) -> None:
    """The same seed gives the same texts; the seed of a sample gives it as the only one."""
    options: dict[str, Any] = {"sampling": pb.Sampling(seed=3, temperature=3.0), "num_hypotheses": 4}
    first, second = one(server, **options), one(server, **options)
    alone = [
        one(server, sampling=pb.Sampling(seed=hypothesis.seed, temperature=3.0)) for hypothesis in first.hypotheses
    ]
    unseeded = {one(server, sampling=pb.Sampling(temperature=3.0)).text for _ in range(8)}

    assert first == second
    assert [translation.text for translation in alone] == [hypothesis.text for hypothesis in first.hypotheses]
    assert first.hypotheses[0].seed == 3
    assert len({hypothesis.text for hypothesis in first.hypotheses}) > 1
    assert len(unseeded) > 1


def test_alternatives_begin_with_different_tokens(server: ServerProcess) -> None:
    """The most probable one first, which is the greedy translation."""
    translation = one(server, return_alternatives=6, return_scores=True, return_token_scores=True)

    firsts = [hypothesis.tokens[0].log_prob for hypothesis in translation.hypotheses]
    assert len(translation.hypotheses) == 6
    assert firsts == sorted(firsts, reverse=True)
    assert len({hypothesis.text for hypothesis in translation.hypotheses}) == 6
    assert translation.text == one(server).text
    behind = one(server, TEXT, "einhundert", return_alternatives=3)
    assert all(hypothesis.text.startswith("einhundert") for hypothesis in behind.hypotheses)


def test_a_prefix_of_the_translation_gives_the_translation(server: ServerProcess, tokenizer: Tokenizer) -> None:
    """The search goes on behind it as if it had found it itself; new tokens are those behind it."""
    whole = one(server)
    ids = tokenizer.encode(whole.text)[:-1]
    for cut in range(1, len(ids)):
        prefix = tokenizer.decode(ids[:cut])
        if tokenizer.encode(prefix)[:-1] != ids[:cut]:
            continue
        continued = one(server, TEXT, prefix)

        assert continued.text == whole.text
        assert continued.target_tokens == whole.target_tokens - cut


def test_prefixes_belong_to_their_texts(server: ServerProcess) -> None:
    """One per text; an empty one is none, and a blank text stays blank."""
    prefixes = ["zwei", "drei", "", "vier", "fünf"]

    translations = translate(server, *TEXTS, prefixes=prefixes).translations

    assert [translation.text.split()[0][:4] if translation.text else "" for translation in translations] == [
        "zwei", "", one(server, TEXTS[2]).text.split()[0][:4], "vier", "fünf",
    ]  # fmt: skip


@pytest.mark.parametrize("stop", ["hundert", "e", "und", "dreiund", "g", "not in it"])
def test_a_text_ends_before_its_stop_sequence(server: ServerProcess, stop: str) -> None:
    """As it would have been without, up to there."""
    whole = one(server).text

    translation = one(server, stop_sequences=[stop])

    assert translation.text == whole.split(stop)[0]
    expected = pb.FINISH_REASON_STOP_SEQUENCE if stop in whole else pb.FINISH_REASON_EOS
    assert translation.finish_reason == expected


def test_a_stopped_text_leaves_the_engine_early(server: ServerProcess) -> None:
    """The engine does not go on to the limit for nobody."""
    options: dict[str, Any] = {
        "sampling": WILD,
        "min_new_tokens": 128,
        "max_new_tokens": 128,
        "stop_sequences": list("aeinrst "),
    }
    generated = server.metric("target_tokens_total")

    translation = one(server, **options)

    assert translation.finish_reason == pb.FINISH_REASON_STOP_SEQUENCE
    assert server.metric("texts_ended_total", reason="stopped") >= 1
    assert server.metric("target_tokens_total") - generated < 120


def test_suppressed_words_do_not_appear(server: ServerProcess) -> None:
    """At the start of a word and inside one, with greedy and beam search."""
    assert "hundert" in one(server).text
    for beam_size in (1, 3):
        assert "hundert" not in one(server, suppressed_texts=["hundert"], beam_size=beam_size).text


def test_limits_on_new_tokens(server: ServerProcess) -> None:
    """Fewest, most, and in proportion to the source; the reason says which texts were cut."""
    whole = one(server)

    longer = one(server, min_new_tokens=12)
    cut = one(server, max_length_ratio=0.5)
    uncut = one(server, max_length_ratio=10.0)

    assert longer.target_tokens >= 12
    assert (cut.target_tokens, cut.finish_reason) == (math.ceil(whole.source_tokens / 2), pb.FINISH_REASON_LENGTH)
    assert uncut == whole


def test_scoring_keeps_order_and_knows_what_is_likely(server: ServerProcess) -> None:
    """The right translation beats a wrong one; blank pairs and long lists keep their places."""
    examples = [number_example(n) for n in range(1, 60)]
    right = [pb.ScorePair(source=example.source, target=example.target) for example in examples]
    wrong = [pb.ScorePair(source=example.source, target=examples[-1 - i].target) for i, example in enumerate(examples)]
    blank = [pb.ScorePair(), pb.ScorePair(target="zwei")]

    request = pb.ScoreRequest(pairs=[*right, *wrong, *blank], id="7", priority=pb.PRIORITY_BULK)
    response = server.stub.Score(request, timeout=WAIT_S)

    log_probs = [score.log_prob for score in response.scores]
    better = [one > other for one, other in zip(log_probs[:59], log_probs[59:118], strict=True)]
    assert sum(better) >= 58  # one example stands in the middle and is its own opposite
    assert log_probs[118:] == [0.0, -math.inf]
    assert (response.id, response.model) == ("7", "tiny")
    for score in response.scores[:118]:
        assert score.log_prob == pytest.approx(sum(token.log_prob for token in score.tokens))
        assert len(score.tokens) == score.target_tokens + 1


def test_the_default_model_aligns_words() -> None:
    """A row per token and a weight per piece, greedy and beam; the library reads them."""
    text = "Click the button to save the file."
    with start_server(model=DEFAULT_MODEL) as server, TranslationClient(server.address, caller="tests") as client:
        assert client.model().alignment
        for beam_size in (1, 3):
            options = DecodingOptions(beam_size=beam_size, return_alignment=True, return_token_scores=True)
            translation = client.translate_text(text, options=options)
            [hypothesis] = translation.hypotheses

            assert "".join(translation.source_pieces).strip() == text
            assert len(hypothesis.alignment) == hypothesis.target_tokens == len(hypothesis.tokens) - 1
            for row in hypothesis.alignment:
                assert len(row) == translation.source_tokens == len(translation.source_pieces)
                assert 0 < sum(row) <= 1.001
        assert client.translate_text(
            text, options=DecodingOptions(beam_size=3, coverage_penalty=0.2, num_hypotheses=3, return_scores=True)
        ).hypotheses
        [sampled] = client.translate_text(text, options=DecodingOptions(sampling=Sampling(seed=4))).hypotheses
        assert sampled.seed == 4
        assert client.score(text, hypothesis.text).log_prob < 0
