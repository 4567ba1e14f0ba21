"""int8 with scales from calibration: what is measured, what becomes of it, and who is refused."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnxscript import ir

from dragoman.export import bundle
from dragoman.export.activations import Probe, measure
from dragoman.export.calibration import MOST_TEXTS, CalibrationPair, calibrate, tokenize
from dragoman.export.commands.publish import calibration_texts, check_publish_options
from dragoman.export.errors import ExportError
from dragoman.export.precision import adapt, write_graphs
from dragoman.export.rewriting import array_of, required
from dragoman.export.static import inputs_of_products, quantize_static
from dragoman.export.to_onnx import decoder_graph, encoder_graph
from dragoman.export.write import write_bundle
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.readers import Pair
from tests.fakes.bundles import make_checkpoint, random_calibration

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return make_checkpoint()


def graphs(checkpoint: Checkpoint) -> tuple[ir.Model, ir.Model]:
    special = checkpoint.tokenizer.special
    encoder, decoder = encoder_graph(checkpoint.model), decoder_graph(checkpoint.model, special)
    for graph in (encoder, decoder):
        adapt(graph, "int8-static")
    return encoder, decoder


def calibration(checkpoint: Checkpoint, count: int = 40) -> list[CalibrationPair]:
    return random_calibration(checkpoint.model.config, checkpoint.tokenizer.special, count)


def test_maxima_are_those_of_all_texts(checkpoint: Checkpoint) -> None:
    """The maximum over batches is the largest of what each text reaches alone, and every product has one."""
    encoder, decoder = graphs(checkpoint)
    special, pairs = checkpoint.tokenizer.special, calibration(checkpoint, 20)
    found = calibrate(encoder, decoder, pairs, special)
    totals = (found.encoder, found.decoder)
    with Probe(encoder, inputs_of_products(encoder)) as one, Probe(decoder, inputs_of_products(decoder)) as other:
        alone = [measure(one, other, [pair.source], [pair.target], special) for pair in pairs]

    for total, parts in zip(totals, zip(*((one.encoder, one.decoder) for one in alone), strict=True), strict=True):
        assert len(total) > 4
        for name, value in total.items():
            # Padding is computed too, and may be the largest.
            assert value >= max(part[name] for part in parts) - 1e-4
            assert value < 3 * max(part[name] for part in parts)


def test_a_scale_is_the_largest_activation_and_biases_are_part_of_products(checkpoint: Checkpoint) -> None:
    """One quantisation per activation, one node per product, and no bias is added by a node of its own."""
    _, decoder = graphs(checkpoint)
    largest = {name: 2.0 + index for index, name in enumerate(inputs_of_products(decoder))}
    quantize_static(decoder, largest)
    types = Counter(node.op_type for node in decoder.graph)

    assert types["QuantizeLinear"] == len(largest)
    assert types["MatMul"] == types["Gemm"] == types["MatMulInteger"] == 0
    steps = {
        str(node.outputs[0].name).removesuffix("_u8"): float(required(array_of(node.inputs[1])))
        for node in decoder.graph
        if node.op_type == "QuantizeLinear"
    }
    counts = {name: 255 if name.startswith("relu") else 127 for name in largest}
    assert set(counts.values()) == {127, 255}
    assert steps == pytest.approx({name: value / counts[name] for name, value in largest.items()})
    added = [
        array.ndim
        for node in decoder.graph
        if node.op_type in ("Add", "Sum")
        for value in node.inputs
        if (array := array_of(value)) is not None
    ]
    assert 1 not in added


def test_a_relu_is_part_of_the_rounding(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """There is none left, and with one in front of what is rounded from 0 on, every number is the same."""
    encoder, _ = graphs(checkpoint)
    kinds = Counter(node.op_type for node in encoder.graph)
    quantize_static(encoder, dict.fromkeys(inputs_of_products(encoder), 1.5))  # so that some are cut off
    ir.save(encoder, tmp_path / "without.onnx")
    model = onnx.load(tmp_path / "without.onnx")
    zeros = {t.name for t in model.graph.initializer if not onnx.numpy_helper.to_array(t).any()}
    rounded = [n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[2] in zeros]
    products = [n for n in model.graph.node if n.op_type == "MatMulIntegerToFloat" and n.input[4] in zeros]
    for node in rounded:
        before, name = node.input[0], f"{node.input[0]}_positive"
        node.input[0] = name
        place = list(model.graph.node).index(node)
        model.graph.node.insert(place, onnx.helper.make_node("Relu", [before], [name]))
    onnx.save(model, tmp_path / "with.onnx")
    feeds = {bundle.INPUT_IDS: np.arange(4, 34).reshape(3, 10), bundle.SOURCE_LENGTHS: np.array([10, 1, 7])}
    with_relu, without = (
        onnxruntime.InferenceSession(tmp_path / f"{name}.onnx", providers=["CPUExecutionProvider"]).run(None, feeds)
        for name in ("with", "without")
    )

    assert kinds["Relu"] == len(rounded) == len(products) == 2  # one per layer
    assert not [node for node in encoder.graph if node.op_type == "Relu"]
    for one, other in zip(with_relu, without, strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_activation_beyond_calibration_is_cut_off(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """With far too small a maximum the text is another one: the scales are really used."""
    special = checkpoint.tokenizer.special
    for name, factor in (("right", 1.0), ("small", 0.01)):
        encoder, decoder = graphs(checkpoint)
        maxima = calibrate(encoder, decoder, calibration(checkpoint), special).decoder
        quantize_static(decoder, {key: value * factor for key, value in maxima.items()})
        ir.save(decoder, tmp_path / f"{name}.onnx")
    right, small = (
        {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / f"{name}.onnx").graph.initializer}
        for name in ("right", "small")
    )
    changed = [name for name in right if not np.array_equal(right[name], small[name])]

    assert changed
    assert all(name.endswith("_step") for name in changed)


def test_texts_become_what_a_server_sends(checkpoint: Checkpoint) -> None:
    """Tokens with EOS on both sides; what the model does not take is left out."""
    pairs = [Pair("one", "eins"), Pair("one " * 200, "eins"), Pair("two", "zwei " * 200)]
    [found] = tokenize(checkpoint, pairs, ("en", "de"))

    assert found.source == checkpoint.tokenizer.encode("one")
    assert list(found.target) == checkpoint.tokenizer.encode_target("eins")


def test_without_texts_there_is_no_calibration(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """The message says what to give; nothing is written."""
    with pytest.raises(ExportError, match="give --data"):
        write_graphs(checkpoint.model, checkpoint.tokenizer.special, tmp_path, "int8-static")

    assert list(tmp_path.iterdir()) == []


def test_a_model_of_no_numbers_is_refused(tmp_path: Path) -> None:
    """NaN is no scale."""
    broken = make_checkpoint()
    with torch.no_grad():
        next(broken.model.encoder.parameters()).fill_(float("nan"))

    with pytest.raises(ExportError, match="no number"):
        write_graphs(broken.model, broken.tokenizer.special, tmp_path, "int8-static", calibration(broken))


def test_only_so_many_texts_are_read(checkpoint: Checkpoint) -> None:
    """The first ones: a corpus may be given."""
    encoder, decoder = graphs(checkpoint)
    special, pairs = checkpoint.tokenizer.special, calibration(checkpoint, 4)
    many = [pairs[0]] * MOST_TEXTS + pairs

    first, second = (calibrate(encoder, decoder, texts, special) for texts in (many, pairs[:1]))
    assert (first.encoder, first.decoder) == (second.encoder, second.decoder)
    for name, scales in first.scales.items():
        np.testing.assert_array_equal(scales, second.scales[name])


@pytest.mark.parametrize(("count", "compared", "expected"), [(1000, 200, range(200, 712)), (300, 200, range(300))])
def test_scales_and_quality_come_from_different_texts(count: int, compared: int, expected: range) -> None:
    """Where there are enough of them."""
    pairs = [Pair(str(number), "") for number in range(count)]

    assert [int(pair.source) for pair in calibration_texts(pairs, compared)] == list(expected)


def test_the_command_asks_for_texts_even_if_nothing_is_compared() -> None:
    """The scales have to come from somewhere."""
    options = argparse.Namespace(precision="int8-static", device=None, data=None, no_verify=True)

    with pytest.raises(ExportError, match="int8-static takes its scales from texts: give --data"):
        check_publish_options(options)


def test_weights_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    """In any precision, verified or not: the texts would be empty or nonsense. Nothing is written."""
    broken = make_checkpoint()
    with torch.no_grad():
        broken.model.get_parameter("encoder.layers.0.feed_forward.expand.weight")[3, 5] = float("inf")

    with pytest.raises(ExportError, match=r"infinite: encoder\.layers\.0\.feed_forward\.expand\.weight; take another"):
        write_bundle(broken, tmp_path / "out", name="b", precision="fp32", verify=None)

    assert list(tmp_path.iterdir()) == []
