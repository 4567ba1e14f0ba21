"""8-bit keys and values: whose scales they have, what is stored, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from dragoman.export import bundle
from dragoman.export.cache_scales import LIMIT, largest_by_channel, scales_of
from dragoman.export.calibration import calibrate
from dragoman.export.decode import BundleSession
from dragoman.export.grouped import use_grouped_attention
from dragoman.export.last_source import hand_over
from dragoman.export.precision import Precision
from dragoman.export.reductions import add_reductions
from dragoman.export.storage import save
from dragoman.export.to_onnx import decoder_graph, encoder_graph
from dragoman.export.verify import verify
from dragoman.export.write import write_bundle
from dragoman.model.attention import KeyValue
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.masks import ValidLengths
from tests.fakes.bundles import converted, make_checkpoint, plant, random_calibration, random_sources
from tests.fakes.verification import check, held_out, one_pair

Array = NDArray[Any]
VARIANTS: dict[str, dict[str, Any]] = {
    "heads of 8": {},
    "heads of 16": {"num_heads": 2},
    "shared keys, rotary": {"num_key_value_heads": 2, "positions": "rotary", "norm": "rms", "bias": False},
    "ssru": {"decoder_layer": "ssru"},
    "one layer, post": {"num_decoder_layers": 1, "norm_position": "post"},
}
torch.set_num_threads(1)


class Scaled:
    """A model, its scales, and its two graphs with and without them, in fp32 besides.

    Attributes:
        calibrated: Scales of random texts.
        scales: Those of the graphs.
        encoders: With floats and with integers.
        decoders: Likewise.
    """

    def __init__(self, settings: dict[str, Any], folder: Path, *, merge: bool = True) -> None:
        self.checkpoint: Checkpoint = make_checkpoint(gain=2, **settings)
        self.config, special = self.checkpoint.model.config, self.checkpoint.tokenizer.special
        encoder, decoder = encoder_graph(self.checkpoint.model), decoder_graph(self.checkpoint.model, special)
        self.pairs = random_calibration(self.config, special)
        self.calibrated = calibrate(encoder, decoder, self.pairs, special).scales
        # With room for other tokens than those: what is cut off is another matter than what is rounded.
        self.scales = {name: 1.5 * scales for name, scales in self.calibrated.items()}
        self.encoders: list[onnxruntime.InferenceSession] = []
        self.decoders: list[onnxruntime.InferenceSession] = []
        for number, scales in enumerate(({}, self.scales)):
            encoder = encoder_graph(self.checkpoint.model, merge=merge)
            decoder = decoder_graph(self.checkpoint.model, special)
            add_reductions(decoder, self.config, None)
            assert use_grouped_attention(decoder, self.config, scales)
            hand_over(encoder, self.config, scales)
            for graph, sessions in ((encoder, self.encoders), (decoder, self.decoders)):
                path = folder / f"{number}.onnx"
                save(graph, path)
                options = onnxruntime.SessionOptions()
                options.log_severity_level, options.intra_op_num_threads = 3, 1
                sessions.append(onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"]))

    def encode(self, lengths: list[int]) -> list[dict[str, Array]]:
        """Return what both encoders give."""
        sources = random_sources(self.checkpoint, lengths)
        ids = np.zeros((len(sources), max(lengths)), np.int64)
        for row, source in enumerate(sources):
            ids[row, : len(source)] = source
        feeds = {bundle.INPUT_IDS: ids, bundle.SOURCE_LENGTHS: np.array(lengths)}
        return [run(session, feeds) for session in self.encoders]

    def decoder_feeds(self, lengths: list[int], ages: list[int]) -> list[dict[str, Array]]:
        """Return inputs of both decoders: the second's integers, and what they mean."""
        _, encoded = self.encode(lengths)
        generator = np.random.default_rng(5)
        integers: dict[str, Array] = {
            bundle.INPUT_IDS: generator.integers(4, 300, (len(ages), 1)),
            bundle.SOURCE_LENGTHS: np.array(lengths),
            bundle.CACHE_LENGTHS: np.array(ages),
            bundle.WITH_ALIGNMENT: np.ones(1, np.bool_),
            **encoded,
        }
        for value in self.decoders[1].get_inputs():
            size = [{"batch": len(ages), "cache": max(ages) + 1}.get(axis, axis) for axis in value.shape]
            if value.type == "tensor(int8)" and value.name not in integers:
                integers[value.name] = generator.integers(-100, 101, size).astype(np.int8)
            elif value.name.startswith("cell"):
                integers[value.name] = generator.normal(size=size).astype(np.float32)
        meant = {
            name: value * self.scales[name][:, None] if name in self.scales else value
            for name, value in integers.items()
        }
        return [meant, integers]


def run(session: onnxruntime.InferenceSession, feeds: dict[str, Array]) -> dict[str, Array]:
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def rounded(values: Array, scales: Array) -> Array:
    """Return [B, H, K, D] as the integers that it should become with scales [H, D]."""
    found: Array = np.clip(np.rint(values / scales[:, None]), -128, 127).astype(np.int8)
    return found


@pytest.fixture(scope="module", params=VARIANTS)
def scaled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scaled:
    return Scaled(VARIANTS[request.param], tmp_path_factory.mktemp("scaled"))


LENGTHS, AGES = [1, 23, 7, 12], [0, 5, 18, 1]


def test_a_scale_is_the_largest_that_pytorch_computes_on_the_texts(scaled: Scaled) -> None:
    """Of every layer, key and value, head and channel; keys of self-attention as they are stored, with rotation."""
    model, special = scaled.checkpoint.model, scaled.checkpoint.tokenizer.special
    largest: dict[str, Array] = {}
    with torch.inference_mode():
        for pair in scaled.pairs:
            lengths = torch.tensor([len(pair.source)])
            cross = model.encode(torch.tensor([pair.source]), ValidLengths(lengths))
            ids = torch.tensor([[special.start, *pair.target]])
            past = model.initial_state(1, ids.shape[1])
            _, updated = model.decode_step(ids, cross, lengths, past, torch.zeros(1, dtype=torch.int64))
            found: dict[str, torch.Tensor] = {}
            for i, (of_source, state) in enumerate(zip(cross, updated, strict=True)):
                found |= zip(bundle.cross_names(i), of_source, strict=True)
                if scaled.config.decoder_layer == bundle.SELF_ATTENTION:
                    found |= zip((f"self_key.{i}", f"self_value.{i}"), cast(KeyValue, state), strict=True)
            for name, tensor in found.items():
                reached = tensor[0].abs().amax(1).numpy()
                largest[name] = np.maximum(largest.get(name, reached), reached)

    assert set(scaled.calibrated) == set(largest)
    for name, reached in largest.items():
        np.testing.assert_allclose(scaled.calibrated[name] * LIMIT, reached, rtol=1e-3, atol=1e-5, err_msg=name)


def test_padding_has_no_part_in_a_scale() -> None:
    """Only what is read; a channel that was never anything but zero has a scale all the same."""
    values = np.array([[[[1.0, 0.0], [-3.0, 0.0], [99.0, 99.0]]], [[[2.0, 0.0], [99.0, 99.0], [99.0, 99.0]]]])
    largest = largest_by_channel(values, np.array([2, 1]))

    np.testing.assert_array_equal(largest, [[3.0, 0.0]])
    scales = scales_of({"cross_key.0": largest})["cross_key.0"]
    assert scales.dtype == np.float32
    assert scales[0, 0] == pytest.approx(3 / 127)
    assert 0 < scales[0, 1] < 1e-7


@pytest.mark.parametrize("merge", [True, False], ids=["one product", "a product for each"])
def test_the_encoder_rounds_what_it_computes(merge: bool, tmp_path: Path) -> None:
    """To the bit; what it hands over of the last position is not rounded, and is that of each row."""
    scaled = Scaled(VARIANTS["shared keys, rotary"], tmp_path, merge=merge)
    floats, integers = scaled.encode(LENGTHS)
    rows, ends = np.arange(len(LENGTHS)), np.array(LENGTHS) - 1

    for layer in range(scaled.config.num_decoder_layers):
        for part, name in enumerate(bundle.cross_names(layer)):
            np.testing.assert_array_equal(integers[name], rounded(floats[name], scaled.scales[name]))
            last = floats[name][rows, :, ends].reshape(len(rows), -1)
            np.testing.assert_array_equal(floats[bundle.CROSS_LAST][:, 2 * layer + part], last)
    np.testing.assert_array_equal(integers[bundle.CROSS_LAST], floats[bundle.CROSS_LAST])
    assert len(np.unique(integers["cross_key.0"])) > 80


@pytest.mark.parametrize("precision", ["int8", "int8-static"])
def test_layers_of_equal_weights_have_their_outputs_too(precision: Precision, tmp_path: Path) -> None:
    """Their keys are computed once, and are outputs under the name of each layer."""
    checkpoint = make_checkpoint(gain=2)
    layers: Any = checkpoint.model.decoder.layers
    layers[1].cross_attention = layers[0].cross_attention
    calibration = random_calibration(checkpoint.model.config, checkpoint.tokenizer.special)
    out = tmp_path / precision
    write_bundle(checkpoint, out, name="b", precision=precision, verify=None, calibration=calibration)
    encoded = BundleSession(out, threads=1).encode(random_sources(checkpoint, [5, 9]))

    for first, second in zip(bundle.cross_names(0), bundle.cross_names(1), strict=True):
        np.testing.assert_array_equal(encoded[first], encoded[second])
    last = encoded[bundle.CROSS_LAST]
    assert last.shape == (2, 4, 32)
    np.testing.assert_array_equal(last[:, :2], last[:, 2:])
    assert np.abs(last[:, 0] - last[:, 1]).max() > 0.1
    if precision == "int8":
        np.testing.assert_array_equal(last[1, 1].reshape(4, 8), encoded["cross_value.0"][1, :, 8])


def test_where_layers_are_one_product_it_is_rounded_once(scaled: Scaled) -> None:
    """In front of the split into heads, which then copies bytes."""
    encoder = encoder_graph(scaled.checkpoint.model)
    hand_over(encoder, scaled.config, scaled.scales)
    [node] = [node for node in encoder.graph if node.op_type == "QuantizeLinear"]
    [reader] = node.outputs[0].consumers()

    assert reader.op_type == "Reshape"


def test_a_step_on_integers_is_one_on_what_they_mean(scaled: Scaled) -> None:
    """Logits and alignments, for rows of all ages, but for the rounding of the newest key and value."""
    floats, integers = (
        run(session, feeds) for session, feeds in zip(scaled.decoders, scaled.decoder_feeds(LENGTHS, AGES), strict=True)
    )
    allowed = np.isfinite(floats[bundle.LOGITS])
    exact, near = (found[bundle.LOGITS][allowed] for found in (floats, integers))

    assert 0 < np.abs(exact - near).max() < 0.1 * exact.std()
    assert integers[bundle.ALIGNMENT].std() > 0.01
    np.testing.assert_allclose(integers[bundle.ALIGNMENT], floats[bundle.ALIGNMENT], atol=0.02)


def test_what_a_step_stores_is_rounded(scaled: Scaled) -> None:
    """The new key and value behind each row's others, which stay to the bit; so does all of the source."""
    meant, integers = scaled.decoder_feeds(LENGTHS, AGES)
    before, after = run(scaled.decoders[0], meant), run(scaled.decoders[1], integers)
    for name in (name for name in scaled.scales if name.startswith("self")):
        found, expected = after[f"updated_{name}"], rounded(before[f"updated_{name}"], scaled.scales[name])
        # Layers behind the first read what was rounded in front of them, and so are a little elsewhere.
        tolerance = 1 if name.endswith(".0") else 4
        for row, age in enumerate(AGES):
            np.testing.assert_array_equal(found[row, :, :age], integers[name][row, :, :age])
            np.testing.assert_allclose(found[row, :, age], expected[row, :, age], atol=tolerance)
    for layer in range(scaled.config.num_decoder_layers):
        for name, updated in zip(bundle.cross_names(layer), bundle.updated_cross_names(layer), strict=True):
            for row, length in enumerate(LENGTHS):
                np.testing.assert_array_equal(after[updated][row, :, :length], integers[name][row, :, :length])


# Bundles


@pytest.fixture(scope="module", params=VARIANTS)
def bundles(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Path]:
    """A model and a folder of its fp32 and int8-static bundles."""
    checkpoint, folder = make_checkpoint(gain=2, **VARIANTS[request.param]), tmp_path_factory.mktemp("bundles")
    write_bundle(checkpoint, folder / "fp32", name="b", precision="fp32", verify=None)
    converted(folder / "fp32", folder / "int8-static", "int8-static")
    return checkpoint, folder


def logits_of(session: BundleSession, sources: list[list[int]], tokens: Array) -> Array:
    encoded, states = session.encode(sources), session.initial_states(*tokens.shape)
    _, logits, _ = session.step(tokens, np.zeros(len(tokens), np.int64), states, encoded)
    return logits


def test_a_bundle_decodes_as_the_model_does(bundles: tuple[Checkpoint, Path]) -> None:
    """Within what int8 may lose, and what shares a batch changes nothing, by the gate's own checks."""
    checkpoint, folder = bundles
    report = verify(folder / "int8-static", checkpoint, None, sentences=20)
    sources, tokens = random_sources(checkpoint, [5, 12, 30, 64]), np.random.default_rng(0).integers(4, 300, (4, 8))
    exact, near = (logits_of(BundleSession(folder / name), sources, tokens) for name in ("fp32", "int8-static"))
    allowed = np.isfinite(exact)

    assert report.problems == ()
    error = np.sqrt(np.mean((near[allowed] - exact[allowed]) ** 2)) / exact[allowed].std()
    assert 0 < error < 0.1


def test_a_row_alone_is_the_row_in_a_batch(bundles: tuple[Checkpoint, Path]) -> None:
    """To the bit: scales are constants, and sums are of integers or of the row's own numbers."""
    checkpoint, folder = bundles
    session = BundleSession(folder / "int8-static", threads=1)
    sources, tokens = random_sources(checkpoint, [7, 30, 12, 64]), np.random.default_rng(1).integers(4, 300, (4, 6))
    together, alone = session.encode(sources), [session.encode([source]) for source in sources]

    for row, (source, encoded) in enumerate(zip(sources, alone, strict=True)):
        for layer in range(checkpoint.model.config.num_decoder_layers):
            for name in bundle.cross_names(layer):
                assert encoded[name].dtype == np.int8
                np.testing.assert_array_equal(encoded[name][0], together[name][row, :, : len(source)])
    all_rows = logits_of(session, sources, tokens)
    for row, source in enumerate(sources):
        np.testing.assert_allclose(logits_of(session, [source], tokens[row : row + 1])[0], all_rows[row], atol=1e-5)


FLOAT, INTEGERS = "tensor(float)", "tensor(int8)"


@pytest.mark.parametrize(
    ("settings", "precision", "state", "cross", "last"),
    [
        ({}, "int8-static", INTEGERS, INTEGERS, FLOAT),
        ({"decoder_layer": "ssru"}, "int8-static", FLOAT, INTEGERS, FLOAT),
        ({}, "int8", FLOAT, FLOAT, FLOAT),
        ({}, "int4", FLOAT, FLOAT, FLOAT),
        ({}, "fp16", "tensor(float16)", "tensor(float16)", None),
        ({"positions": "relative"}, "int8-static", FLOAT, FLOAT, None),
        ({"d_head": 12}, "int8-static", FLOAT, FLOAT, None),
    ],
)
def test_who_has_integers(
    settings: dict[str, Any], precision: Precision, state: str, cross: str, last: str | None, tmp_path: Path
) -> None:
    """int8-static, unless the attention is not grouped; format 3 says that there is cross_last."""
    write_bundle(make_checkpoint(**settings), tmp_path / "fp32", name="b", precision="fp32", verify=None)
    manifest = bundle.load_manifest(converted(tmp_path / "fp32", tmp_path / "other", precision))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    encoder, decoder = (onnxruntime.InferenceSession(tmp_path / "other" / name, options) for name in bundle.GRAPHS)
    returned = {value.name: value.type for value in encoder.get_outputs()}
    taken = {value.name: value.type for value in decoder.get_inputs()}
    updated = {value.name: value.type for value in decoder.get_outputs()}

    for layer in range(manifest.shape.num_decoder_layers):
        assert {taken[name] for name in manifest.shape.state_names(layer)} == {state}
        assert {updated[name] for name in manifest.shape.updated_state_names(layer)} == {state}
        assert {taken[name] for name in bundle.cross_names(layer)} == {cross}
        assert {updated.get(name, cross) for name in bundle.updated_cross_names(layer)} == {cross}
    assert taken.get(bundle.CROSS_LAST) == last
    assert {name: kind for name, kind in returned.items() if taken[name] != kind} == {}
    assert (manifest.cross_last, manifest.format_version) == (last is not None, 3 if last else 1)


# Faults


def hand_over_the_first_position(model: onnx.ModelProto) -> None:
    """Let the encoder return the keys and values of the first source position as those of the last."""
    for node in model.graph.node:
        if node.op_type == "GatherND" and node.output[0].endswith("_last"):
            node.input[1] = "zeros"
    lengths = helper.make_node("Sub", [bundle.SOURCE_LENGTHS, bundle.SOURCE_LENGTHS], ["nothing"])
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "one"))
    for node in (helper.make_node("Unsqueeze", ["nothing", "one"], ["zeros"]), lengths):
        model.graph.node.insert(0, node)


def exchange_layers(model: onnx.ModelProto) -> None:
    """Let the decoder take the last position of one layer for that of the other."""
    [split] = [node for node in model.graph.node if bundle.CROSS_LAST in node.input]
    names = list(split.output)
    split.output[:] = [*names[2:], *names[:2]]


def shrink_scales(name: str) -> Callable[[onnx.ModelProto], None]:
    """Let stored keys or values mean a quarter of what they are."""

    def shrink(model: onnx.ModelProto) -> None:
        [tensor] = [tensor for tensor in model.graph.initializer if tensor.name == name]
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) / np.float32(4), name))

    return shrink


@pytest.fixture(scope="module")
def whole(fp32_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The int8-static bundle of `one_pair`."""
    return converted(fp32_bundle, tmp_path_factory.mktemp("whole") / "bundle", "int8-static")


@pytest.fixture(scope="module")
def whole_chrf(whole: Path) -> float:
    return check(whole, one_pair(), held_out()).search("greedy").chrf_bundle or 0.0


@pytest.mark.parametrize(
    ("graph", "fault"),
    [
        (bundle.ENCODER, hand_over_the_first_position),
        (bundle.DECODER, exchange_layers),
        (bundle.ENCODER, shrink_scales("cross_scales")),
        (bundle.DECODER, shrink_scales("cross_value.1_scale")),
        (bundle.DECODER, shrink_scales("self_value.1_scale")),
        (bundle.DECODER, shrink_scales("self_key.0_scale")),
    ],
)
def test_a_planted_fault_is_caught(
    graph: str, fault: Callable[[onnx.ModelProto], None], whole: Path, whole_chrf: float, tmp_path: Path
) -> None:
    """By what it costs: a precision that changes the numbers is measured in chrF."""
    report = check(plant(whole, tmp_path / "broken", graph, fault), one_pair(), held_out())

    assert (report.search("greedy").chrf_bundle or 0.0) < whole_chrf - 3
    assert any("chrF" in problem for problem in report.problems)
