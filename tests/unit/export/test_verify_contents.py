"""The gate beyond the graphs: the loop, tokenizer, manifest, languages, and what it calls a tie."""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from dragoman.export import bundle, decode
from dragoman.export.decode import BundleSession
from dragoman.export.errors import BundleError
from dragoman.export.verify.cases import choose_cases
from dragoman.export.verify.requirements import REQUIREMENTS
from dragoman.export.verify.ties import is_beam_tie
from dragoman.model.beam import BeamRow, BeamSettings
from dragoman.model.cached_search import beam_cached
from dragoman.model.errors import ConfigError
from dragoman.model.readers import Pair
from dragoman.model.tokenizers import train_tokenizer
from dragoman.model.vocab import SPECIAL_IDS
from tests.fakes.bundles import plant, random_sources
from tests.fakes.verification import MANY, TOKENS, check, edit, held_out, many_pairs, one_pair

TEXTS = "texts differ"

# Faults of what is around the graphs


def test_a_wrong_start_token_is_caught_by_texts(fp32_bundle: Path, tmp_path: Path) -> None:
    """Logits know nothing of it."""
    report = check(edit(fp32_bundle, tmp_path / "b", special={**SPECIAL_IDS.to_dict(), "start": 9}), one_pair())

    assert any(TEXTS in problem for problem in report.problems)
    assert any("special ids" in problem for problem in report.problems)
    assert not any("logits" in problem for problem in report.problems)


def test_beams_that_keep_the_caches_of_others_are_caught(fp32_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only beam search moves rows."""
    gather = decode._Rows.gather

    def keep(rows: decode._Rows, parents: list[int], sources: list[int]) -> None:
        gather(rows, list(range(len(parents))) if sources == rows._sources else parents, sources)

    monkeypatch.setattr(decode._Rows, "gather", keep)
    problems = check(fp32_bundle, one_pair()).problems

    assert any("beam-4" in problem and TEXTS in problem for problem in problems)
    assert not any("greedy" in problem or "logits" in problem for problem in problems)


def test_another_tokenizer_is_caught(fp32_bundle: Path) -> None:
    """Ids that mean other texts: graphs cannot tell."""
    checkpoint = one_pair()
    other = train_tokenizer(("completely different words, in every language " + "xyzzy " * n for n in range(99)), 330)
    report = check(fp32_bundle, replace(checkpoint, tokenizer=other))

    assert other.vocab_size == checkpoint.tokenizer.vocab_size
    assert report.tokenizer.read_differently > 10
    assert report.tokenizer.written_differently > 10
    assert any("the tokenizer reads" in problem for problem in report.problems)


def test_limits_beyond_the_model_are_caught(fp32_bundle: Path, tmp_path: Path) -> None:
    """The server would allow texts for which there are no positions."""
    folder = edit(fp32_bundle, tmp_path / "b", limits={"max_source_tokens": 71, "max_target_tokens": 24})
    assert any("up to 71 tokens are allowed, the model takes 70" in p for p in check(folder, one_pair()).problems)


def test_a_graph_that_does_not_run_is_an_error_with_its_sizes(fp32_bundle: Path, tmp_path: Path) -> None:
    """Whatever ONNX Runtime raises, it is ours."""

    def fix_the_batch(model: onnx.ModelProto) -> None:
        for value in model.graph.input:
            value.type.tensor_type.shape.dim[0].dim_value = 3

    with pytest.raises(BundleError, match=r"encoder\.onnx does not run with input_ids \[1, 1\]"):
        check(plant(fp32_bundle, tmp_path / "broken", bundle.ENCODER, fix_the_batch), one_pair())


def test_nothing_compared_is_not_a_pass(fp32_bundle: Path) -> None:
    """Held-out sentences beyond the model's limit cannot vouch for it."""
    report = check(fp32_bundle, one_pair(), [Pair("one " * 200, "eins")])

    assert "no text was compared" in report.problems[0]


def test_a_model_that_prefers_nothing_proves_nothing(fp32_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all texts hang on ties, any bundle would pass."""
    monkeypatch.setitem(REQUIREMENTS, "fp32", replace(REQUIREMENTS["fp32"], tie=1e9, logit_tolerance=None))
    greedy_search = BundleSession.greedy

    def other(session: BundleSession, sources: Any, limits: Any, first: Any = ()) -> list[list[int]]:
        return [[*ids[:-1], 5] for ids in greedy_search(session, sources, limits, first)]

    monkeypatch.setattr(BundleSession, "greedy", other)
    report = check(fp32_bundle, one_pair())

    assert report.ties > 10
    assert any("hang on ties" in problem for problem in report.problems)


# Several languages


def test_several_language_pairs_are_translated(several_bundle: Path) -> None:
    """Tokens around the source, forced first tokens, even though they are never generated."""
    report = check(several_bundle, many_pairs())

    assert report.problems == ()
    assert len(report.languages) == 4
    assert {source for source, _ in report.languages} == set(TOKENS) == {target for _, target in report.languages}
    assert all(source != target for source, target in report.languages)


def test_sentences_are_of_one_pair_and_all_are_tried(several_bundle: Path) -> None:
    """Only their own languages have references."""
    manifest = bundle.load_manifest(several_bundle)
    cases = choose_cases(
        many_pairs(), manifest, held_out(), languages=("en", "de"), sentences=24, generator=random.Random(0)
    )
    known = [case for case in cases if case.reference is not None]

    assert len(cases) == 24
    assert {case.languages for case in known} == {("en", "de")}
    assert len(known) == 18
    assert all(case.source[0] == TOKENS[case.languages[0]] for case in cases)
    assert all(case.source[-1] == TOKENS[case.languages[1]] for case in cases)
    assert all(case.first == (TOKENS[case.languages[1]],) for case in cases)
    assert max(case.limit for case in cases) <= 24 - 1


def test_sentences_need_a_language_pair(several_bundle: Path) -> None:
    """A model of several has no default, and says what it has."""
    with pytest.raises(ConfigError, match=r"no default source language; give --source-language .*: de, en, fr, it"):
        check(several_bundle, many_pairs(), held_out())
    with pytest.raises(ConfigError, match="'es' is not a target language of the model"):
        check(several_bundle, many_pairs(), held_out(), source_language="en", target_language="es")

    report = check(several_bundle, many_pairs(), held_out(), source_language="en-GB", target_language="de")
    assert report.languages[0] == ("en", "de")
    assert report.search("greedy").references == 17


def test_first_tokens_that_are_not_forced_are_caught(several_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text would be in another language."""
    begin = decode._Rows.__init__

    def forget(rows: decode._Rows, session: BundleSession, sources: Any, limit: int, first: Any) -> None:
        begin(rows, session, sources, limit + len(first), ())

    monkeypatch.setattr(decode._Rows, "__init__", forget)
    problems = check(several_bundle, many_pairs()).problems

    assert any(TEXTS in problem and "greedy" in problem for problem in problems)
    assert any(TEXTS in problem and "beam-4" in problem for problem in problems)


def test_other_tokens_of_a_language_are_caught(several_bundle: Path, tmp_path: Path) -> None:
    """The manifest is what the server goes by."""
    wrong = MANY.to_dict()
    wrong["targets"]["it"], wrong["targets"]["fr"] = wrong["targets"]["fr"], wrong["targets"]["it"]
    report = check(edit(several_bundle, tmp_path / "b", several=wrong), many_pairs(), sentences=4)

    assert "languages and their tokens are not the checkpoint's" in report.problems


# Ties


def test_a_beam_tie_is_one_and_a_fault_is_none() -> None:
    """Two tokens of equal probability may change places; a search that gives another text for no reason may not."""
    table = np.log(np.array([[0.0, 0.1, 0.4, 0.4 + 1e-6, 0.1]] * 2 + [[0.9, 0.025, 0.025, 0.025, 0.025]] * 3) + 1e-12)

    def search(disturb: Any) -> list[int]:
        row = BeamRow(BeamSettings(2), limit=4, eos=0)
        while not row.done:
            log_probs = disturb(np.array([table[live.tokens[-1] if live.tokens else 0] for live in row.live]))
            row.advance([list(range(5))] * len(row.live), log_probs.tolist())
        return row.hypotheses[0].tokens

    tie = functools.partial(is_beam_tie, lambda times, disturb: [search(disturb) for _ in range(times)], noise=1e-4)
    assert tie([3, 0])
    assert tie([2, 0])
    assert not tie([4, 0])
    assert not tie([2, 1])


def test_errors_of_log_probabilities_can_change_a_text(fp32_bundle: Path) -> None:
    """Of the model and of the bundle: none changes nothing, large ones do, and each repetition has its own."""
    checkpoint, session = one_pair(), BundleSession(fp32_bundle)
    (source,) = random_sources(checkpoint, [12])
    generator = np.random.default_rng(0)

    def repeat_model(disturb: Any) -> list[list[int]]:
        special = checkpoint.tokenizer.special
        found = beam_cached(checkpoint.model, [source] * 4, [12] * 4, special, disturb=disturb)
        return [texts[0].tokens for texts in found]

    def repeat_bundle(disturb: Any) -> list[list[int]]:
        return [texts[0].tokens for texts in session.beam([source] * 4, [12] * 4, disturb=disturb)]

    for repeat in (repeat_model, repeat_bundle):
        undisturbed = repeat(None)
        assert undisturbed[0] == undisturbed[3]
        assert repeat(lambda log_probs: log_probs) == undisturbed
        disturbed = repeat(lambda log_probs: log_probs + generator.uniform(-3, 3, log_probs.shape))
        assert len({tuple(tokens) for tokens in disturbed}) > 1
    assert repeat_model(None) == repeat_bundle(None)


def test_bundles_without_normalizers_are_compared_too(fp32_bundle: Path, tmp_path: Path) -> None:
    """Those from before there were any: their probabilities leave out ids that are never generated."""

    def forget(model: onnx.ModelProto) -> None:
        (output,) = [value for value in model.graph.output if value.name == bundle.LOG_NORMALIZER]
        model.graph.output.remove(output)

    old = plant(fp32_bundle, tmp_path / "old", bundle.DECODER, forget)
    report = check(old, one_pair(), sentences=8)

    assert not BundleSession(old).has_normalizer
    assert report.logits.max_difference < 1e-4
    assert report.search("greedy").identical + report.search("greedy").ties == 8
