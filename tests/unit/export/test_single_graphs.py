"""Decoder-only and encoder-only models as graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from dragoman.export import bundle
from dragoman.export.precision import Precision
from dragoman.export.single_graphs import STATES, write_encoder, write_language_model
from dragoman.export.to_onnx import shape_of
from dragoman.model.masks import padding_mask
from dragoman.model.single_stack import DecoderOnly, EncoderOnly
from dragoman.model.vocab import SPECIAL_IDS
from tests.fakes.models import make_config

PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8", "int4")
NEAR = {"fp32": 1e-4, "fp16": 0.02, "int8": 0.3, "int4": 1.2}
Stack = TypeVar("Stack", DecoderOnly, EncoderOnly)
DECODERS: dict[str, dict[str, Any]] = {
    "like LLaMA": {"positions": "rotary", "norm": "rms", "bias": False, "activation": "silu", "gated": True},
    "like GPT": {"positions": "learned", "activation": "gelu"},
    "ssru, untied": {"decoder_layer": "ssru", "tied_embeddings": "none", "output_bias": True},
}


class LanguageModel:
    """The graph with its states."""

    def __init__(self, path: Path, model: DecoderOnly, rows: int, positions: int) -> None:
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.shape = shape_of(model.config)
        layers = range(self.shape.num_decoder_layers)
        self.names = [name for i in layers for name in self.shape.state_names(i)]
        self.updated = [name for i in layers for name in self.shape.updated_state_names(i)]
        types = {value.name: value.type for value in self.session.get_inputs()}
        size = self.shape.state_size(rows, positions)
        half = types[self.names[0]] == "tensor(float16)"
        self.states = {name: np.zeros(size, np.float16 if half else np.float32) for name in self.names}

    def read(self, tokens: NDArray[Any], ages: list[int]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return next ids and logits; the states go on."""
        feeds = {bundle.INPUT_IDS: tokens, bundle.CACHE_LENGTHS: np.array(ages), **self.states}
        next_ids, logits, *states = self.session.run([bundle.NEXT_IDS, bundle.LOGITS, *self.updated], feeds)
        self.states = dict(zip(self.names, states, strict=True))
        return next_ids, logits


def make(kind: type[Stack], **settings: Any) -> Stack:
    """Return a model with random weights, always the same ones."""
    torch.manual_seed(0)
    model = kind(make_config(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.1 if parameter.dim() == 1 else 0.2))
    return model


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("settings", DECODERS.values(), ids=list(DECODERS))
def test_a_prompt_and_steps_are_the_full_pass(settings: dict[str, Any], precision: Precision, tmp_path: Path) -> None:
    """One graph reads four tokens at once and three one by one; logits are the model's at every position."""
    model = make(DecoderOnly, **settings)
    write_language_model(model, SPECIAL_IDS, tmp_path / "g.onnx", precision)
    tokens = np.random.default_rng(0).integers(4, 50, (3, 7))
    with torch.inference_mode():
        expected = model.project(model(torch.tensor(tokens))).numpy()
    graph = LanguageModel(tmp_path / "g.onnx", model, 3, 8)
    found, ids = [], []
    for start, end in ((0, 4), (4, 5), (5, 6), (6, 7)):
        next_ids, logits = graph.read(tokens[:, start:end], [start] * 3)
        found.append(logits)
        ids.append(next_ids)
    together = np.concatenate(found, axis=1)
    allowed = np.isfinite(together)

    assert allowed[..., [SPECIAL_IDS.eos, *range(4, 50)]].all()
    assert not allowed[..., list(SPECIAL_IDS.never_generated)].any()
    spread = expected.std()
    assert np.sqrt(np.mean((together[allowed] - expected[allowed]) ** 2)) / spread < NEAR[precision]
    np.testing.assert_array_equal(np.concatenate(ids, axis=1), together.argmax(-1))
    assert len(np.unique(together.argmax(-1))) > 3


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("settings", DECODERS.values(), ids=list(DECODERS))
def test_log_probabilities_are_those_of_the_whole_vocabulary(
    settings: dict[str, Any], precision: Precision, tmp_path: Path
) -> None:
    """On request; ids that are never generated keep their share, here most of it."""
    model = make(DecoderOnly, **settings)
    with torch.no_grad():
        model.output_weight[list(SPECIAL_IDS.never_generated)] *= 10
    write_language_model(model, SPECIAL_IDS, tmp_path / "g.onnx", precision)
    tokens = np.random.default_rng(0).integers(4, 50, (3, 7))
    with torch.inference_mode():
        whole = model.project(model(torch.tensor(tokens)))
    graph = LanguageModel(tmp_path / "g.onnx", model, 3, 8)
    feeds = {bundle.INPUT_IDS: tokens, bundle.CACHE_LENGTHS: np.zeros(3, np.int64), **graph.states}
    names = [bundle.LOGITS, *bundle.ON_REQUEST[bundle.WITH_CANDIDATES]]
    nothing = graph.session.run(names, feeds)[1:]
    logits, ids, scores, normalizer = graph.session.run(names, {**feeds, bundle.WITH_CANDIDATES: np.ones(1, np.bool_)})

    assert [found.size for found in nothing] == [0, 0, 0]
    generated = torch.tensor(logits).logsumexp(-1).numpy()
    expected = whole.logsumexp(-1).numpy()
    far, near = (float(np.sqrt(np.mean((found - expected) ** 2))) for found in (generated, normalizer))
    assert far > 4
    assert near < {"fp32": 1e-4, "fp16": 0.1, "int8": 1, "int4": far / 2}[precision]
    np.testing.assert_allclose(
        scores, np.take_along_axis(logits - normalizer[..., None], ids, axis=-1), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_encoder_gives_a_state_per_token(precision: Precision, tmp_path: Path) -> None:
    """As the model does; padding behind a text changes nothing."""
    model = make(EncoderOnly, norm_position="post", positions="learned")
    write_encoder(model, tmp_path / "g.onnx", precision)
    session = onnxruntime.InferenceSession(tmp_path / "g.onnx", providers=["CPUExecutionProvider"])
    ids, lengths = np.random.default_rng(0).integers(4, 50, (3, 9)), np.array([9, 4, 1])
    with torch.inference_mode():
        expected = model(torch.tensor(ids), padding_mask(torch.tensor(lengths), 9)).numpy()
    (found,) = session.run([STATES], {bundle.INPUT_IDS: ids, bundle.SOURCE_LENGTHS: lengths})
    real = np.arange(9) < lengths[:, None]

    assert found.shape == expected.shape
    error = np.sqrt(np.mean((found[real].astype(np.float32) - expected[real]) ** 2))
    assert error / expected[real].std() < NEAR[precision]
    (alone,) = session.run([STATES], {bundle.INPUT_IDS: ids[1:2, :4], bundle.SOURCE_LENGTHS: lengths[1:2]})
    np.testing.assert_allclose(found[1:2, :4].astype(np.float32), alone.astype(np.float32), atol=2e-2)
