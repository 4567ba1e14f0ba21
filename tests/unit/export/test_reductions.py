"""What a step returns besides logits: the best id, the best few with their probabilities, and where it looked."""

from __future__ import annotations

from collections.abc import Sequence
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
from dragoman.model.search import next_log_probs
from dragoman.model.vocab import SPECIAL_IDS
from tests.fakes.bundles import converted
from tests.fakes.models import make_config, make_model
from tests.fakes.variants import Exported

Results = dict[str, NDArray[Any]]
# Below the size for which there are blocks; with a divisor near the root; a prime, which must be padded.
SIZES = (50, 2048, 2039)


def reduce_logits(
    logits: NDArray[np.float32], folder: Path, *, masked: Sequence[int] = (), bias: NDArray[np.float32] | None = None
) -> Results:
    """Run the reductions of a graph that makes these logits [B, Q, V], with all of its outputs.

    Args:
        logits: Finite; what the output matrix says, without bias and mask.
        folder: Where the graph is written.
        masked: Ids that are never generated.
        bias: [V], of the logits.
    """
    batch, new, vocab_size = logits.shape
    # A table of as many columns as there are rows, and the unit matrix: every product is exact.
    table = logits.reshape(batch * new, vocab_size).T.copy()
    states = np.eye(batch * new, dtype=np.float32).reshape(batch, new, batch * new)
    whole = np.zeros(vocab_size, np.float32) if bias is None else bias.copy()
    whole[list(masked)] = -np.inf
    constants = {
        name: ir.val(name, const_value=ir.tensor(array, name=name))
        for name, array in {
            "table": table, "bias": whole, "flat": np.array([-1, batch * new]), "sizes": np.array([batch, new, -1])
        }.items()
    }  # fmt: skip
    given = ir.val("given", ir.DataType.FLOAT, ["batch", "new", batch * new])
    found = ir.val("logits", ir.DataType.FLOAT, ["batch", "new", vocab_size])
    key = ir.val("cross_key.0", ir.DataType.FLOAT, ["batch", 4, "source", 8])
    value = ir.val("cross_value.0", ir.DataType.FLOAT, ["batch", 4, "source", 8])
    lengths = ir.val("source_lengths", ir.DataType.INT64, ["batch"])
    attended = ir.val("attended", ir.DataType.FLOAT, ["batch", 4, "source", 8])
    flat, product = ir.val("flat states", ir.DataType.FLOAT), ir.val("product", ir.DataType.FLOAT)
    none = [None, None, None]
    nodes = [
        ir.node("Reshape", [given, constants["flat"]], outputs=[flat]),
        ir.node("Gemm", [flat, constants["table"], constants["bias"]], {"transB": 1}, outputs=[product]),
        ir.node("Reshape", [product, constants["sizes"]], outputs=[found]),
        ir.node("Attention", [key, key, value, *none, lengths], {"scale": 1.0}, outputs=[attended]),
    ]
    graph = ir.Graph(
        [given, lengths, key, value], [found], nodes=nodes, initializers=list(constants.values()),
        opset_imports={"": 24}, name="g",
    )  # fmt: skip
    model = ir.Model(graph, ir_version=10)
    add_reductions(model, make_config(vocab_size=vocab_size, num_decoder_layers=1), bias)
    ir.save(model, folder / "g.onnx")
    cross = np.ones((batch, 4, 3, 8), np.float32)
    feeds = {"given": states, "source_lengths": np.full(batch, 3), "cross_key.0": cross, "cross_value.0": cross}
    feeds[bundle.WITH_CANDIDATES] = np.ones(1, np.bool_)
    session = onnxruntime.InferenceSession(folder / "g.onnx", providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def random_logits(vocab_size: int, *, ties: bool) -> NDArray[np.float32]:
    logits = np.random.default_rng(0).standard_normal((3, 2, vocab_size), np.float32)
    return np.round(logits) if ties else logits


def hidden(logits: NDArray[np.float32], ids: Sequence[int]) -> NDArray[np.float32]:
    """Return logits with -inf in the place of some."""
    logits = logits.copy()
    logits[..., list(ids)] = -np.inf
    return logits


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("vocab_size", SIZES)
def test_the_next_id_is_the_first_of_the_largest(vocab_size: int, ties: bool, tmp_path: Path) -> None:
    """As NumPy's argmax, also where several logits are equal; what is masked is none of them."""
    logits = random_logits(vocab_size, ties=ties)
    masked = sorted({0, 1, *logits.argmax(axis=-1).flatten().tolist()})
    found = reduce_logits(logits, tmp_path, masked=masked)[bundle.NEXT_IDS]

    np.testing.assert_array_equal(found, hidden(logits, masked).argmax(axis=-1))


@pytest.mark.parametrize("vocab_size", SIZES)
def test_the_largest_logit_is_found_wherever_it_is(vocab_size: int, tmp_path: Path) -> None:
    """In the first block, in the last one, at the ends of blocks."""
    places = [*range(3, 40), *range(vocab_size - 10, vocab_size)]
    logits = np.zeros((len(places), 1, vocab_size), np.float32)
    logits[np.arange(len(places)), 0, places] = 1

    assert reduce_logits(logits, tmp_path)[bundle.NEXT_IDS][:, 0].tolist() == places


# None, as in a language model; a few; and as many as a model of a hundred languages has.
@pytest.mark.parametrize("masked", [(), (0, 1, 2), (*range(3), *range(60, 160))], ids=["none", "few", "many"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("vocab_size", SIZES[1:])
def test_probabilities_are_those_of_the_whole_vocabulary(
    vocab_size: int, biased: bool, masked: tuple[int, ...], tmp_path: Path
) -> None:
    """Masked ids keep their share: their logits are large here, and so are their biases."""
    logits = random_logits(vocab_size, ties=False)
    logits[..., list(masked)] += 4
    bias = np.random.default_rng(1).standard_normal(vocab_size).astype(np.float32) if biased else None
    found = reduce_logits(logits, tmp_path, masked=masked, bias=bias)
    whole = torch.tensor(logits if bias is None else logits + bias)
    log_probs = hidden(whole.log_softmax(-1).numpy(), masked)
    best = np.argsort(-log_probs, axis=-1)[..., :MOST_CANDIDATES]

    np.testing.assert_array_equal(found[bundle.CANDIDATE_IDS], best)
    np.testing.assert_allclose(
        found[bundle.CANDIDATE_SCORES], np.take_along_axis(log_probs, best, axis=-1), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(found[bundle.LOG_NORMALIZER], whole.logsumexp(-1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        found[bundle.LOGITS] - found[bundle.LOG_NORMALIZER][..., None], log_probs, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(found[bundle.CANDIDATE_IDS][..., 0], found[bundle.NEXT_IDS])


def test_large_logits_do_not_overflow(tmp_path: Path) -> None:
    """Neither those of masked ids nor the others; exp(1000) is no number."""
    logits = random_logits(2048, ties=False)
    logits[0] += 1000
    logits[1] -= 1000
    logits[2, :, :3] += 1000
    found = reduce_logits(logits, tmp_path, masked=(0, 1, 2))

    np.testing.assert_allclose(found[bundle.LOG_NORMALIZER], torch.tensor(logits).logsumexp(-1), rtol=1e-5)
    assert np.isfinite(found[bundle.CANDIDATE_SCORES]).all()


def test_a_small_vocabulary_has_fewer_candidates(tmp_path: Path) -> None:
    """All of it; those that are masked come last and have no probability."""
    logits = random_logits(10, ties=False)
    found = reduce_logits(logits, tmp_path, masked=(0, 7))

    assert found[bundle.CANDIDATE_IDS].shape == (3, 2, 10)
    assert {frozenset(ids) for ids in found[bundle.CANDIDATE_IDS][..., -2:].reshape(-1, 2).tolist()} == {
        frozenset({0, 7})
    }
    assert np.isneginf(found[bundle.CANDIDATE_SCORES][..., -2:]).all()
    np.testing.assert_allclose(found[bundle.LOG_NORMALIZER], torch.tensor(logits).logsumexp(-1), rtol=1e-5, atol=1e-5)


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


ON_REQUEST = [name for names in bundle.ON_REQUEST.values() for name in names]


def run_step(session: BundleSession, *, wanted: tuple[str, ...]) -> tuple[Results, Any, Any]:
    """Run the first three tokens of two rows with everything that is asked for."""
    sources = [[5, 6, 7, 8, 3], [9, 10, 3]]
    encoded = session.encode(sources)
    tokens = np.array([[2, 7, 8], [2, 20, 21]])
    asked = {name: np.ones(1, np.bool_) for name in wanted}
    names = [bundle.NEXT_IDS, bundle.LOGITS, *ON_REQUEST]
    states = session.initial_states(2, 4)
    values, _ = session._decode(names, tokens, np.zeros(2, np.int64), states, {**encoded, **asked})
    return dict(zip(names, values, strict=True)), sources, tokens


def test_nothing_is_computed_that_is_not_asked_for(exported: Exported) -> None:
    """Callers who do not know the two inputs get empty tensors; the others are as always."""
    session = BundleSession(exported.fp32)
    without, _, _ = run_step(session, wanted=())
    everything, _, _ = run_step(session, wanted=(bundle.WITH_CANDIDATES, bundle.WITH_ALIGNMENT))

    assert [without[name].shape for name in ON_REQUEST] == [
        (0, 0, MOST_CANDIDATES),
        (0, 0, MOST_CANDIDATES),
        (0, 0),
        (0, 0, 0),
    ]
    assert [everything[name].shape for name in ON_REQUEST] == [
        (2, 3, MOST_CANDIDATES),
        (2, 3, MOST_CANDIDATES),
        (2, 3),
        (2, 3, 5),
    ]
    for one in (bundle.WITH_CANDIDATES, bundle.WITH_ALIGNMENT):  # each alone costs nothing of the other
        found, _, _ = run_step(session, wanted=(one,))
        asked = {name for name in ON_REQUEST if found[name].size}
        assert asked == ({bundle.ALIGNMENT} if one == bundle.WITH_ALIGNMENT else set(ON_REQUEST) - {bundle.ALIGNMENT})
    for name in (bundle.NEXT_IDS, bundle.LOGITS):
        np.testing.assert_array_equal(without[name], everything[name])


def test_log_probabilities_are_the_models(exported: Exported) -> None:
    """Those of its whole vocabulary, whatever its output matrix, bias and scale are."""
    found, sources, tokens = run_step(BundleSession(exported.fp32), wanted=(bundle.WITH_CANDIDATES,))
    model, special = exported.checkpoint.model, exported.checkpoint.tokenizer.special
    with torch.inference_mode():
        padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(s) for s in sources], batch_first=True)
        states = model(padded, torch.tensor([len(source) for source in sources]), torch.tensor(tokens))
        logits, expected = model.project(states), next_log_probs(model, states, special).numpy()
    ids = found[bundle.CANDIDATE_IDS]

    np.testing.assert_allclose(found[bundle.LOG_NORMALIZER], logits.logsumexp(-1), atol=1e-4)
    np.testing.assert_allclose(found[bundle.CANDIDATE_SCORES], np.take_along_axis(expected, ids, -1), atol=1e-4)
    np.testing.assert_allclose(found[bundle.LOGITS] - found[bundle.LOG_NORMALIZER][..., None], expected, atol=1e-4)


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
