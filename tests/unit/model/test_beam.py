"""Beam search: the oracle against Hugging Face and against trying everything, faster paths against the oracle."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from dragoman.model.beam import BeamRow, BeamSettings, EarlyStopping, Hypothesis
from dragoman.model.cached_search import beam_cached, greedy_cached
from dragoman.model.search import beam, greedy
from dragoman.model.transformer import Transformer
from dragoman.model.vocab import SPECIAL_IDS, SpecialIds
from tests.fakes.models import make_model

VOCAB = 24
LIMIT = 10
START_IS_EOS = SpecialIds(pad=0, unk=1, start=3, eos=3)
START_IS_PAD = SpecialIds(pad=0, unk=1, start=0, eos=3, suppressed=(7, 9))
SPECIALS = {"own start": SPECIAL_IDS, "start is eos": START_IS_EOS, "start is pad": START_IS_PAD}
PENALTIES = (0.0, 0.6, 1.0, 2.0)
CACHED: dict[str, dict[str, Any]] = {
    "marian": {},
    "cells": {"decoder_layer": "ssru"},
    "grouped heads": {"num_key_value_heads": 2, "num_decoder_layers": 3},
}


@functools.cache
def marian_like(vocab: int = VOCAB, **settings: Any) -> Transformer:
    """Return a random model of Marian's kind whose texts vary with the source and end by EOS now and then."""
    model = make_model(
        vocab_size=vocab, norm_position="post", positions="sinusoidal-half", activation="silu", output_bias=True,
        max_target_tokens=20, tied_embeddings="source-target", **settings,
    )  # fmt: skip
    with torch.no_grad():
        model.embedding.tokens.weight.mul_(3)
        assert model.output_bias is not None
        model.output_bias[SPECIAL_IDS.eos] += 1
    return model


def sources(count: int = 10, vocab: int = VOCAB) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [
        [*torch.randint(4, vocab, (1 + row % 9,), generator=generator).tolist(), SPECIAL_IDS.eos]
        for row in range(count)
    ]


def tokens_of(found: Sequence[Sequence[Hypothesis]]) -> list[list[list[int]]]:
    return [[hypothesis.tokens for hypothesis in row] for row in found]


# The oracle against Hugging Face

NAMES = {
    "self_attention.": "self_attn.", "cross_attention.": "encoder_attn.", "query.": "q_proj.", "key.": "k_proj.",
    "value.": "v_proj.", "output.": "out_proj.", "self_attention_sublayer.norm.": "self_attn_layer_norm.",
    "cross_attention_sublayer.norm.": "encoder_attn_layer_norm.", "feed_forward_sublayer.norm.": "final_layer_norm.",
    "feed_forward.expand.": "fc1.", "feed_forward.contract.": "fc2.",
}  # fmt: skip


def to_marian(model: Transformer, special: SpecialIds) -> Any:
    """Return Hugging Face's MarianMTModel with the same weights."""
    transformers = pytest.importorskip("transformers")
    config = model.config
    theirs = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=config.vocab_size, d_model=config.d_model, scale_embedding=True, activation_function="swish",
            encoder_layers=config.num_encoder_layers, decoder_layers=config.num_decoder_layers,
            encoder_attention_heads=config.num_heads, decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.d_ff, decoder_ffn_dim=config.d_ff, max_position_embeddings=20,
            pad_token_id=special.pad, eos_token_id=special.eos, decoder_start_token_id=special.start,
            forced_eos_token_id=None, tie_word_embeddings=False,
        )
    ).eval()  # fmt: skip
    wanted = dict(theirs.state_dict())
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        wanted[f"model.{side}.embed_positions.weight"] = stack.positions.table
        wanted[f"model.{side}.embed_tokens.weight"] = model.embedding.tokens.weight
    wanted |= {"model.shared.weight": model.embedding.tokens.weight, "lm_head.weight": model.output_weight}
    assert model.output_bias is not None
    wanted["final_logits_bias"] = model.output_bias[None]
    for name, tensor in model.state_dict().items():
        if ".layers." in name:
            for ours in sorted(NAMES, key=len, reverse=True):
                name = name.replace(ours, NAMES[ours])
            assert wanted[f"model.{name}"].shape == tensor.shape
            wanted[f"model.{name}"] = tensor
    theirs.load_state_dict(wanted)
    return theirs


def generate(
    theirs: Any, texts: list[list[int]], special: SpecialIds, forced: Sequence[int] = (), **options: Any
) -> list[list[Hypothesis]]:
    """Return what Hugging Face's `generate` finds for each source alone."""
    found = []
    beams = options["num_beams"]
    for text in texts:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about attention masks and defaults of generation_config
            output = theirs.generate(
                torch.tensor([text]), num_return_sequences=beams, return_dict_in_generate=True, output_scores=True,
                max_new_tokens=LIMIT + len(forced), do_sample=False, forced_bos_token_id=forced[0] if forced else None,
                bad_words_ids=[[i] for i in special.never_generated], **options,
            )  # fmt: skip
        scores = output.sequences_scores.tolist() if beams > 1 else [0.0]
        rows = []
        for ids, score in zip(output.sequences[:, 1 + len(forced) :].tolist(), scores, strict=True):
            end = ids.index(special.eos) + 1 if special.eos in ids else LIMIT
            rows.append(Hypothesis(ids[:end], score, 0.0))
        found.append(rows)
    return found


def assert_equals_hugging_face(special: SpecialIds, first: tuple[int, ...] = (), **options: Any) -> None:
    """Compare every hypothesis of every source, token by token, and its score."""
    model, texts = marian_like(), sources(6)
    greedy_search = options["beams"] == 1  # in Hugging Face without scores and without what only beams need
    asked = {} if greedy_search else {name: value for name, value in options.items() if name != "beams"}
    expected = generate(to_marian(model, special), texts, special, first, num_beams=options["beams"], **asked)
    found = beam(model, texts, [LIMIT] * len(texts), special, first=first, **options)

    assert tokens_of(found) == tokens_of(expected)
    if not greedy_search:
        for row, others in zip(found, expected, strict=True):
            assert [h.score for h in row] == pytest.approx([h.score for h in others], abs=1e-4)


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("length_penalty", PENALTIES)
@pytest.mark.parametrize("beams", [2, 4, 5])
def test_oracle_equals_hugging_face(beams: int, length_penalty: float, early_stopping: EarlyStopping) -> None:
    """All that a beam search can be told."""
    assert_equals_hugging_face(SPECIAL_IDS, beams=beams, length_penalty=length_penalty, early_stopping=early_stopping)


@pytest.mark.parametrize("special", SPECIALS.values(), ids=SPECIALS)
@pytest.mark.parametrize(
    "options",
    [{"beams": 1}, {"beams": 3, "early_stopping": "never"}, {"beams": 3, "length_penalty": 0.6}],
    ids=["one", "never", "three"],
)
def test_special_ids_equal_hugging_face(special: SpecialIds, options: dict[str, Any]) -> None:
    """A start token that is also EOS or the padding; ids that are never generated keep their probability."""
    assert_equals_hugging_face(special, **options)


@pytest.mark.parametrize("options", [{"beams": 1}, {"beams": 4}, {"beams": 4, "length_penalty": 2.0}], ids=str)
def test_forced_first_token_equals_hugging_face(options: dict[str, Any]) -> None:
    """It may be an id that is never generated, counts for the length of the score, and is in no result."""
    assert_equals_hugging_face(START_IS_PAD, (9,), **options)


@pytest.mark.parametrize("settings", CACHED.values(), ids=CACHED)
def test_what_is_compared_is_worth_comparing(settings: dict[str, Any]) -> None:
    """Texts differ from each other and from greedy ones; some end by EOS, some at the limit; settings matter."""
    model, texts = marian_like(**settings), sources()
    limits = [LIMIT] * len(texts)
    found = {
        (penalty, early): beam_cached(model, texts, limits, length_penalty=penalty, early_stopping=early)
        for penalty in (0.0, 1.0, 2.0)
        for early in (False, True)
    }
    best = [row[0].tokens for row in found[1.0, False]]
    ended = [h.tokens[-1] == SPECIAL_IDS.eos for rows in found.values() for row in rows for h in row]

    assert len({tuple(ids) for ids in best}) > len(texts) / 3
    assert best != greedy(model, texts, limits)
    assert 0.1 < sum(ended) / len(ended) < 0.9
    assert len({str(tokens_of(rows)) for rows in found.values()}) > 4
    assert beam_cached(model, texts, limits, first=(5,)) != beam_cached(model, texts, limits, first=(6,))


# The oracle against trying everything


@torch.inference_mode()
def log_probs_after(model: Transformer, source: list[int], prefix: Sequence[int]) -> list[float]:
    target = torch.tensor([[SPECIAL_IDS.start, *prefix]])
    states = model(torch.tensor([source]), torch.tensor([len(source)]), target)[:, -1]
    values: list[float] = model.project(states).double().log_softmax(-1)[0].tolist()
    return values


def every_sequence(model: Transformer, source: list[int], limit: int) -> list[tuple[list[int], float]]:
    """Return all sequences that end by EOS or at the limit with their log-probabilities."""
    allowed = [i for i in range(model.config.vocab_size) if i not in SPECIAL_IDS.never_generated]
    ended, growing = [], [((), 0.0)]
    for position in range(limit):
        grown: list[Any] = []
        for prefix, total in growing:
            after = log_probs_after(model, source, prefix)
            grown += [((*prefix, token), total + after[token]) for token in allowed]
        last = position == limit - 1
        ended += [(list(ids), total) for ids, total in grown if last or ids[-1] == SPECIAL_IDS.eos]
        growing = [(ids, total) for ids, total in grown if ids[-1] != SPECIAL_IDS.eos]
    return ended


@pytest.mark.parametrize("length_penalty", PENALTIES)
def test_a_wide_beam_finds_the_best_of_all_sequences(length_penalty: float) -> None:
    """With more hypotheses than there are sequences, search is enumeration: all of them, ranked by their scores."""
    model = marian_like(7)
    for source in sources(3, vocab=7):
        everything = every_sequence(model, source, 3)
        found = beam(model, [source], [3], beams=100, length_penalty=length_penalty)[0]
        ranked = sorted(everything, key=lambda item: -item[1] / len(item[0]) ** length_penalty)

        assert len(everything) == 1 + 3 + 3 * 3 * 4 == len(found)
        assert [h.tokens for h in found] == [ids for ids, _ in ranked]
        assert [h.log_prob for h in found] == pytest.approx([total for _, total in ranked], abs=1e-5)


@pytest.mark.parametrize("length_penalty", PENALTIES)
@pytest.mark.parametrize("beams", [2, 3])
def test_a_narrow_beam_follows_the_rules(beams: int, length_penalty: float) -> None:
    """The same rules written down once more, over the whole vocabulary."""
    model = marian_like()
    for source in sources(6):
        ended: list[tuple[float, list[int]]] = []
        growing: list[tuple[list[int], float]] = [([], 0.0)]
        for length in range(1, LIMIT + 1):
            found = [
                (total + value, [*prefix, token])
                for prefix, total in growing
                for token, value in enumerate(log_probs_after(model, source, prefix))
                if token not in SPECIAL_IDS.never_generated
            ]
            best = sorted(found, reverse=True)[: 2 * beams]
            stops = [length == LIMIT or ids[-1] == SPECIAL_IDS.eos for _, ids in best]
            ended += [
                (s / length**length_penalty, ids) for (s, ids), stop in zip(best[:beams], stops, strict=False) if stop
            ]
            ended = sorted(ended, reverse=True)[:beams]
            growing = [(ids, s) for (s, ids), stop in zip(best, stops, strict=True) if not stop][:beams]
            if len(ended) == beams and (not growing or growing[0][1] / length**length_penalty <= ended[-1][0]):
                break
        rows = beam(model, [source], [LIMIT], beams=beams, length_penalty=length_penalty)[0]

        assert [h.tokens for h in rows] == [ids for _, ids in ended]
        assert [h.score for h in rows] == pytest.approx([score for score, _ in ended], abs=1e-5)


# Faster paths and special cases


@pytest.mark.parametrize("first", [(), (9,), (2, 11, 5)])
@pytest.mark.parametrize("settings", CACHED.values(), ids=CACHED)
def test_cached_beam_equals_the_oracle(settings: dict[str, Any], first: tuple[int, ...]) -> None:
    """Sources of mixed lengths and limits in one batch; what ends leaves it. All hypotheses, tokens and scores."""
    model, texts = marian_like(**settings), sources(9)
    limits = [1 + row * 7 % 12 for row in range(len(texts))]
    for beams, penalty, early in ((1, 1.0, False), (3, 0.6, True), (4, 1.0, False)):
        options: Any = {"beams": beams, "length_penalty": penalty, "early_stopping": early, "first": first}
        expected = beam(model, texts, limits, **options)
        found = beam_cached(model, texts, limits, **options)

        assert tokens_of(found) == tokens_of(expected)
        scores = [[h.score for row in rows for h in row] for rows in (found, expected)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)


@pytest.mark.parametrize("first", [(), (9,), (2, 11, 5)])
def test_one_beam_is_greedy_search(first: tuple[int, ...]) -> None:
    """Of the oracle and of the path with a cache; forced tokens are read and not returned."""
    model, texts = marian_like(), sources(24)
    limits = [1 + row * 7 % 15 for row in range(len(texts))]
    expected = greedy(model, texts, limits, first=first)

    assert greedy_cached(model, texts, limits, first=first) == expected
    assert [row[0].tokens for row in beam(model, texts, limits, beams=1, first=first)] == expected
    assert all(len(ids) <= limit for ids, limit in zip(expected, limits, strict=True))
    assert not {2, 9} & {i for ids in expected for i in ids} - {9}
    assert first == () or expected != greedy(model, texts, limits)


def test_forced_tokens_are_a_prefix() -> None:
    """What greedy search found, forced as far as it goes, goes on as before."""
    model, texts = marian_like(), sources(6)
    whole = greedy(model, texts, [LIMIT] * len(texts))
    for text, ids in zip(texts, whole, strict=True):
        if len(ids) > 3:
            assert greedy(model, [text], [LIMIT - 2], first=ids[:2]) == [ids[2:]]


def test_sources_do_not_depend_on_each_other() -> None:
    """A batch gives each source what it gets alone."""
    model, texts = marian_like(), sources(12)
    together = beam_cached(model, texts, [LIMIT] * len(texts))

    assert tokens_of(together) == [tokens_of(beam_cached(model, [text], [LIMIT]))[0] for text in texts]


def test_tokens_without_a_probability_are_passed_over() -> None:
    """A row ends early rather than with a token that must not be, and survives numbers that are none."""
    row = BeamRow(BeamSettings(beams=2), limit=5, eos=3)
    assert row.advance([[4, 5, 3]], [[-1.0, float("-inf"), -2.0]]) == [0]
    assert [live.tokens for live in row.live] == [[4]]
    assert row.advance([[4, 5]], [[float("nan"), float("-inf")]]) == []
    assert row.done
    assert [h.tokens for h in row.hypotheses] == [[3]]


def test_equal_sums_go_to_the_better_parent_then_to_the_smaller_token() -> None:
    """The order in which candidates are handed over does not matter."""
    row = BeamRow(BeamSettings(beams=2), limit=5, eos=3)
    assert row.advance([[9, 8, 7]], [[-1.0, -1.0, -1.0]]) == [0, 0]
    assert [live.tokens for live in row.live] == [[7], [8]]
    assert row.advance([[6, 5], [5, 6]], [[-1.0, -2.0], [-1.0, -1.0]]) == [0, 1]
    assert [live.tokens for live in row.live] == [[7, 6], [8, 5]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beams": 0}, "beams is 0; it must be at least 1"),
        ({"length_penalty": float("nan")}, "length_penalty is nan; it must be a finite number"),
        ({"early_stopping": "always"}, 'choose True, False or "never"'),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    """The value and what is allowed."""
    with pytest.raises(ValueError, match=message):
        BeamSettings(**settings)
