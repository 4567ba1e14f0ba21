"""What a step returns besides logits: the best id, the best few with their probabilities, and where it looked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnxscript import ir

from dragoman.export import bundle
from dragoman.export.decode import BundleSession
from dragoman.export.precision import write_graphs
from dragoman.export.reductions import MOST_CANDIDATES, add_reductions, block_size
from dragoman.model.masks import ValidLengths
from dragoman.model.vocab import SPECIAL_IDS
from tests.fakes.bundles import converted
from tests.fakes.models import make_config, make_model
from tests.fakes.variants import Exported

Results = dict[str, NDArray[Any]]
# Below the size for which there are blocks; with a divisor near the root; a prime, which must be padded.
SIZES = (50, 2048, 2039)


def reduce_logits(logits: NDArray[np.float32], folder: Path) -> Results:
    """Run the reductions of a graph that only passes logits on, with all of its outputs."""
    vocab_size = logits.shape[-1]
    given = ir.val("given", ir.DataType.FLOAT, ["batch", "new", vocab_size])
    found = ir.val("logits", ir.DataType.FLOAT, ["batch", "new", vocab_size])
    key = ir.val("cross_key.0", ir.DataType.FLOAT, ["batch", 4, "source", 8])
    value = ir.val("cross_value.0", ir.DataType.FLOAT, ["batch", 4, "source", 8])
    lengths = ir.val("source_lengths", ir.DataType.INT64, ["batch"])
    attended = ir.val("attended", ir.DataType.FLOAT, ["batch", 4, "source", 8])
    none = [None, None, None]
    nodes = [
        ir.node("Identity", [given], outputs=[found]),
        ir.node("Attention", [key, key, value, *none, lengths], {"scale": 1.0}, outputs=[attended]),
    ]
    graph = ir.Graph([given, lengths, key, value], [found], nodes=nodes, opset_imports={"": 24}, name="g")
    model = ir.Model(graph, ir_version=10)
    add_reductions(model, make_config(vocab_size=vocab_size, num_decoder_layers=1))
    ir.save(model, folder / "g.onnx")
    cross = np.ones((len(logits), 4, 3, 8), np.float32)
    feeds = {"given": logits, "source_lengths": np.full(len(logits), 3), "cross_key.0": cross, "cross_value.0": cross}
    feeds[bundle.WITH_CANDIDATES] = np.ones(1, np.bool_)
    session = onnxruntime.InferenceSession(folder / "g.onnx", providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def random_logits(vocab_size: int, *, ties: bool) -> NDArray[np.float32]:
    logits = np.random.default_rng(0).standard_normal((3, 2, vocab_size), np.float32)
    logits[..., :3] = -np.inf
    return np.round(logits) if ties else logits


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("vocab_size", SIZES)
def test_the_next_id_is_the_first_of_the_largest(vocab_size: int, ties: bool, tmp_path: Path) -> None:
    """As NumPy's argmax, also where several logits are equal."""
    logits = random_logits(vocab_size, ties=ties)

    np.testing.assert_array_equal(reduce_logits(logits, tmp_path)[bundle.NEXT_IDS], logits.argmax(axis=-1))


@pytest.mark.parametrize("vocab_size", SIZES)
def test_the_largest_logit_is_found_wherever_it_is(vocab_size: int, tmp_path: Path) -> None:
    """In the first block, in the last one, at the ends of blocks."""
    places = [*range(3, 40), *range(vocab_size - 10, vocab_size)]
    logits = np.zeros((len(places), 1, vocab_size), np.float32)
    logits[np.arange(len(places)), 0, places] = 1

    assert reduce_logits(logits, tmp_path)[bundle.NEXT_IDS][:, 0].tolist() == places


@pytest.mark.parametrize("vocab_size", SIZES)
def test_candidates_are_the_best_and_their_log_probabilities(vocab_size: int, tmp_path: Path) -> None:
    """Best first, as sorting would have it, and no id that is never generated."""
    logits = random_logits(vocab_size, ties=False)
    found = reduce_logits(logits, tmp_path)
    best = np.argsort(-logits, axis=-1)[..., :MOST_CANDIDATES]
    log_probs = torch.tensor(logits).log_softmax(-1).numpy()

    np.testing.assert_array_equal(found[bundle.CANDIDATE_IDS], best)
    np.testing.assert_allclose(
        found[bundle.CANDIDATE_SCORES], np.take_along_axis(log_probs, best, axis=-1), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(found[bundle.CANDIDATE_IDS][..., 0], found[bundle.NEXT_IDS])


def test_equal_logits_have_equal_scores(tmp_path: Path) -> None:
    """Which of them is taken is not said, but no better one is left out."""
    logits = random_logits(2048, ties=True)
    found = reduce_logits(logits, tmp_path)
    taken = np.take_along_axis(logits, found[bundle.CANDIDATE_IDS], axis=-1)

    np.testing.assert_array_equal(taken, -np.sort(-logits, axis=-1)[..., :MOST_CANDIDATES])
    assert all(len(set(ids)) == MOST_CANDIDATES for ids in found[bundle.CANDIDATE_IDS].reshape(-1, MOST_CANDIDATES))


def test_blocks_are_near_the_root() -> None:
    """Vocabularies of real models; a prime one has blocks that do not come out even."""
    assert {size: block_size(size) for size in (8000, 32000, 58101, 65001, 250027)} == {
        8000: 80, 32000: 160, 58101: 181, 65001: 141, 250027: 128,
    }  # fmt: skip


def run_step(session: BundleSession, *, wanted: tuple[str, ...]) -> tuple[Results, Any, Any]:
    """Run the first three tokens of two rows with everything that is asked for."""
    sources = [[5, 6, 7, 8, 3], [9, 10, 3]]
    encoded = session.encode(sources)
    tokens = np.array([[2, 7, 8], [2, 20, 21]])
    feeds = {
        bundle.INPUT_IDS: tokens,
        bundle.CACHE_LENGTHS: np.zeros(2, np.int64),
        **encoded,
        **session.initial_states(2, 4),
        **{name: np.ones(1, np.bool_) for name in wanted},
    }
    names = [bundle.NEXT_IDS, bundle.LOGITS, bundle.CANDIDATE_IDS, bundle.CANDIDATE_SCORES, bundle.ALIGNMENT]
    found = dict(zip(names, session._decoder.run(names, feeds), strict=True))
    return found, sources, tokens


def test_nothing_is_computed_that_is_not_asked_for(exported: Exported) -> None:
    """Callers who do not know the two inputs get empty tensors; the others are as always."""
    session = BundleSession(exported.fp32)
    without, _, _ = run_step(session, wanted=())
    everything, _, _ = run_step(session, wanted=(bundle.WITH_CANDIDATES, bundle.WITH_ALIGNMENT))

    sizes = [without[name].shape for name in (bundle.CANDIDATE_IDS, bundle.CANDIDATE_SCORES, bundle.ALIGNMENT)]
    assert sizes == [(0, 0, MOST_CANDIDATES), (0, 0, MOST_CANDIDATES), (0, 0, 0)]
    assert everything[bundle.CANDIDATE_IDS].shape == (2, 3, MOST_CANDIDATES)
    assert everything[bundle.ALIGNMENT].shape == (2, 3, 5)
    for name in (bundle.NEXT_IDS, bundle.LOGITS):
        np.testing.assert_array_equal(without[name], everything[name])


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_the_alignment_is_the_models_attention(
    exported: Exported, precision: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the last decoder layer but one, the mean of its heads; padding gets nothing."""
    folder = exported.fp32 if precision == "fp32" else converted(exported.fp32, tmp_path / "out", precision)
    model = exported.checkpoint.model
    found, sources, tokens = run_step(BundleSession(folder), wanted=(bundle.WITH_ALIGNMENT,))
    expected: list[torch.Tensor] = []
    layer: Any = model.decoder.layers[0]
    forward = layer.cross_attention.forward

    def remember(states: torch.Tensor, keys_values: Any, mask: Any) -> torch.Tensor:
        expected.append(layer.cross_attention.weights(states, keys_values, mask))
        result: torch.Tensor = forward(states, keys_values, mask)
        return result

    monkeypatch.setattr(layer.cross_attention, "forward", remember)
    with torch.inference_mode():
        padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(s) for s in sources], batch_first=True)
        lengths = ValidLengths(torch.tensor([len(source) for source in sources]))
        model.decode(torch.tensor(tokens), model.encode(padded, lengths), lengths)
    mean = expected[0].mean(1).numpy()

    tolerance = {"fp32": 1e-5, "fp16": 2e-2, "int8": 0.3}[precision]
    np.testing.assert_allclose(found[bundle.ALIGNMENT], mean, atol=tolerance)
    np.testing.assert_allclose(found[bundle.ALIGNMENT].sum(-1), 1, atol=1e-3)
    assert (found[bundle.ALIGNMENT][1, :, 3:] == 0).all()
    assert mean.std() > 1e-3


def test_a_single_layer_is_the_one_that_is_shown(tmp_path: Path) -> None:
    """There is none but it."""
    write_graphs(make_model(num_decoder_layers=1), SPECIAL_IDS, tmp_path, "fp32")
    session = onnxruntime.InferenceSession(tmp_path / bundle.DECODER, providers=["CPUExecutionProvider"])

    assert bundle.ALIGNMENT in {value.name for value in session.get_outputs()}
    optional = {value.name for value in session.get_overridable_initializers()}
    assert {bundle.WITH_CANDIDATES, bundle.WITH_ALIGNMENT} <= optional
