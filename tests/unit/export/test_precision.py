"""Every precision of every model: its numbers are near those of fp32, and no text depends on what shares its batch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnxscript import ir

from dragoman.export import bundle
from dragoman.export.activations import largest_of_both
from dragoman.export.bundle import load_manifest
from dragoman.export.decode import BundleSession
from dragoman.export.errors import ExportError
from dragoman.export.half import LARGEST, to_half
from dragoman.export.precision import DEVICES, Precision, devices_for, write_graphs
from dragoman.export.quantize import quantize_rows
from dragoman.export.to_onnx import decoder_graph, encoder_graph
from dragoman.export.weights_only import quantize_blocks
from dragoman.export.write import write_bundle
from dragoman.model.checkpoint import Checkpoint
from tests.fakes.bundles import converted, make_checkpoint, random_sources
from tests.fakes.variants import Exported

REDUCED = ("fp16", "int8", "int8-static", "int8-weights", "int4")
# Of the spread of the logits. Random matrices are the worst that can be quantised to 4 bits.
NEAR = {"fp16": 0.02, "int8": 0.3, "int8-static": 0.4, "int8-weights": 0.2, "int4": 1.2}


@pytest.fixture(scope="module", params=REDUCED)
def reduced(
    request: pytest.FixtureRequest, exported: Exported, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Precision, Path]:
    """One of the variants in one of the precisions."""
    out = tmp_path_factory.mktemp("reduced") / "bundle"
    return request.param, converted(exported.fp32, out, request.param)


def logits_of(session: BundleSession, sources: list[list[int]], tokens: NDArray[Any]) -> NDArray[Any]:
    """Return logits [B, 3, V]: two tokens in one call, then one."""
    encoded, states = session.encode(sources), session.initial_states(len(sources), 4)
    _, first, states = session.step(tokens[:, :2], np.zeros(len(sources), np.int64), states, encoded)
    _, second, _ = session.step(tokens[:, 2:], np.full(len(sources), 2), states, encoded)
    return np.concatenate([first, second], axis=1)


def test_every_precision_has_devices() -> None:
    """What can be chosen, what a manifest can say, and what is for which device are the same list."""
    assert set(DEVICES) == set(get_args(Precision))
    assert all(set(devices) <= {"cpu", "cuda"} and devices for devices in DEVICES.values())
    assert [precision for precision, devices in DEVICES.items() if "cuda" in devices] == ["fp32", "fp16"]


def test_numbers_are_near_those_of_fp32(reduced: tuple[Precision, Path], exported: Exported) -> None:
    """By a share of their spread, over rows and positions; what is never generated stays at -inf."""
    precision, folder = reduced
    sources = random_sources(exported.checkpoint, [5, 12, 30, 64])
    tokens = np.random.default_rng(0).integers(4, 300, (4, 3))
    exact, near = (logits_of(BundleSession(path), sources, tokens) for path in (exported.fp32, folder))
    allowed = np.isfinite(exact)

    assert near.dtype == np.float32
    np.testing.assert_array_equal(np.isfinite(near), allowed)
    error = float(np.sqrt(np.mean((near[allowed] - exact[allowed]) ** 2)) / exact[allowed].std())
    assert 0 < error < NEAR[precision]


def test_masked_ids_keep_their_share(reduced: tuple[Precision, Path], exported: Exported) -> None:
    """What the normalizer counts besides the graph's own logits is what it counts in fp32, near enough."""
    precision, folder = reduced
    sources = random_sources(exported.checkpoint, [5, 12])
    tokens = np.random.default_rng(0).integers(4, 300, (2, 3))
    shares, spreads = [], []
    for path in (exported.fp32, folder):
        session = BundleSession(path)
        encoded, states = session.encode(sources), session.initial_states(2, 3)
        logits, normalizer, _ = session.normalized_step(tokens, np.zeros(2, np.int64), states, encoded)
        assert session.has_normalizer
        assert normalizer.dtype == np.float32
        shares.append(np.log(np.exp(normalizer.astype(np.float64)) - np.exp(logits.astype(np.float64)).sum(-1)))
        spreads.append(logits[np.isfinite(logits)].std())

    assert np.isfinite(shares).all()
    error = float(np.sqrt(np.mean((shares[1] - shares[0]) ** 2)) / spreads[0])
    assert error < NEAR[precision]


def test_no_row_depends_on_its_batch(reduced: tuple[Precision, Path], exported: Exported) -> None:
    """Rows of other lengths beside it do not change a bit, or in fp16, computed in fp32 here, a rounding."""
    precision, folder = reduced
    session = BundleSession(folder)
    sources = random_sources(exported.checkpoint, [7, 30, 12, 64])
    tokens = np.random.default_rng(1).integers(4, 300, (4, 3))
    together = logits_of(session, sources, tokens)

    for row, source in enumerate(sources):
        alone = logits_of(session, [source], tokens[row : row + 1])[0]
        if precision == "fp16":
            np.testing.assert_allclose(together[row], alone, atol=0.02)
        else:
            np.testing.assert_allclose(together[row], alone, rtol=1e-5, atol=1e-5)


def test_integers_are_the_models_weights_rounded(reduced: tuple[Precision, Path], exported: Exported) -> None:
    """PyTorch with the same rounded weights says the same, but for the rounding of activations and embeddings."""
    precision, folder = reduced
    if precision not in ("int8", "int8-weights", "int4"):
        pytest.skip("no integers, or others that are made of calibration")
    sources = random_sources(exported.checkpoint, [5, 12, 30, 64])
    tokens = np.random.default_rng(0).integers(4, 300, (4, 3))
    model = copy.deepcopy(exported.checkpoint.model)
    with torch.inference_mode():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "position" not in name and "relative" not in name:
                weight.copy_(torch.tensor(rounded(weight.numpy(), precision, table=".layers." not in name)))
        padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(source) for source in sources], batch_first=True)
        lengths = torch.tensor([len(source) for source in sources])
        expected = model.project(model(padded, lengths, torch.tensor(tokens))).numpy()
    exact, found = (logits_of(BundleSession(path), sources, tokens) for path in (exported.fp32, folder))
    allowed = np.isfinite(exact)
    from_rounded, from_exact = (
        float(np.sqrt(np.mean((found[allowed] - other[allowed]) ** 2)) / exact[allowed].std())
        for other in (expected, exact)
    )

    assert from_rounded < 0.17
    if precision == "int4":  # of which the weights' rounding is by far the largest part
        assert from_rounded < 0.3 * from_exact


def rounded(weight: NDArray[Any], precision: str, *, table: bool) -> NDArray[Any]:
    """Return a weight [N, K] as integers of a precision say it."""
    if precision == "int8":
        numbers, scales = quantize_rows(weight, 63)
        values: NDArray[Any] = numbers * scales
        return values
    bits = 8 if table or precision == "int8-weights" else 4
    return unpacked(*quantize_blocks(weight, bits), bits)[:, : weight.shape[1]]


def unpacked(numbers: NDArray[Any], scales: NDArray[Any], bits: int) -> NDArray[Any]:
    """Return what blocks [N, K / 32, 4 * bits] stand for, [N, K] float32."""
    if bits == 4:
        numbers = np.stack([numbers & 15, numbers >> 4], axis=-1).reshape(*numbers.shape[:2], 32)
    values: NDArray[Any] = (numbers.astype(np.float32) - (1 << (bits - 1))) * scales[..., None]
    return values.reshape(len(values), -1)


def test_no_large_constant_is_left_in_fp32(reduced: tuple[Precision, Path], exported: Exported) -> None:
    """But tables of positions, which are added and not multiplied, and the scales of what is quantised."""
    precision, folder = reduced
    smallest = exported.checkpoint.model.config.d_model * 16
    for name in bundle.GRAPHS:
        left = [
            tensor.name
            for tensor in onnx.load(folder / name).graph.initializer
            if tensor.data_type == TensorProto.FLOAT and np.prod(tensor.dims) >= smallest
        ]
        left = [name for name in left if not name.endswith("_scales")]
        assert [name for name in left if precision == "fp16" or "positions" not in name] == []


def test_the_manifest_says_for_what_it_is(exported: Exported, tmp_path: Path) -> None:
    """fp16 for CUDA only, integers for the CPU only; states have the type of the graph."""
    checkpoint = make_checkpoint()
    write_bundle(checkpoint, tmp_path / "half", name="b", precision="fp16", verify=None)
    manifest = load_manifest(tmp_path / "half")
    session = BundleSession(tmp_path / "half")

    assert (manifest.precision, manifest.devices) == ("fp16", ("cuda",))
    assert {state.dtype for state in session.initial_states(1, 3).values()} == {np.dtype(np.float16)}
    assert {value.dtype for name, value in session.encode([[5, 3]]).items() if "cross" in name} == {
        np.dtype(np.float16)
    }
    assert load_manifest(exported.int8).devices == ("cpu",)


@pytest.mark.parametrize(
    ("precision", "wanted", "expected"),
    [
        ("fp32", None, ("cpu", "cuda")),
        ("fp32", ["cuda", "cpu"], ("cpu", "cuda")),
        ("fp32", ["cpu"], ("cpu",)),
        ("fp32", ["cuda"], ("cuda",)),
        ("fp16", ["cuda"], ("cuda",)),
        ("int8", ["cpu"], ("cpu",)),
    ],
)
def test_devices_can_be_fewer(precision: Precision, wanted: list[str] | None, expected: tuple[str, ...]) -> None:
    """Those of the precision, or some of them."""
    assert devices_for(precision, wanted) == expected


@pytest.mark.parametrize(
    ("precision", "wanted", "message"),
    [
        ("fp16", ["cpu"], "fp16 cannot run on 'cpu', it is for cuda; for cpu take --precision fp32 or int8 or"),
        ("int8-static", ["cpu", "cuda"], "int8-static cannot run on 'cuda', it is for cpu; .* fp32 or fp16"),
        ("fp32", ["tpu"], "fp32 cannot run on 'tpu', it is for cpu and cuda; choose cpu or cuda"),
        ("fp32", [], "a bundle of no device cannot be run; fp32 is for cpu and cuda"),
    ],
)
def test_a_device_that_the_precision_cannot_run_on_is_refused(
    precision: Precision, wanted: list[str], message: str, tmp_path: Path
) -> None:
    """Before anything is written, and with what can be chosen."""
    with pytest.raises(ExportError, match=message):
        write_bundle(make_checkpoint(), tmp_path / "out", name="b", precision=precision, verify=None, devices=wanted)

    assert list(tmp_path.iterdir()) == []


def test_fp32_for_cuda_alone_has_the_graphs_of_both(tmp_path: Path) -> None:
    """Only the manifest says less; for CPUs alone the decoder is another one."""
    written: dict[str, tuple[tuple[str, ...], bytes]] = {}
    for name, devices in {"both": None, "cuda": ("cuda",), "cpu": ("cpu",)}.items():
        out = tmp_path / name
        manifest = write_bundle(make_checkpoint(), out, name="b", precision="fp32", verify=None, devices=devices)
        written[name] = manifest.devices, (out / bundle.DECODER).read_bytes()

    assert [devices for devices, _ in written.values()] == [("cpu", "cuda"), ("cuda",), ("cpu",)]
    assert written["cuda"][1] == written["both"][1]
    assert written["cpu"][1] != written["both"][1]


# Integers


def test_rows_use_seven_bits_and_are_half_a_step_away_at_most() -> None:
    """The largest number of a row is exact; a row of zeros stays one."""
    rows = np.random.default_rng(0).standard_normal((5, 40), np.float32)
    rows[3] = 0
    numbers, scales = quantize_rows(rows, 63)

    assert numbers.dtype == np.int8
    assert np.abs(numbers).max(axis=1).tolist() == [63, 63, 63, 0, 63]
    assert (np.abs(numbers * scales - rows) <= scales * 0.5001).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("width", [32, 96, 40])
def test_blocks_are_half_a_step_away_at_most(bits: int, width: int) -> None:
    """Also where the last block is not full, and where a block is zeros; the largest number of a block is exact."""
    rows = np.random.default_rng(0).standard_normal((6, width), np.float32)
    rows[2, :32] = 0
    numbers, scales = quantize_blocks(rows, bits)
    values = unpacked(numbers, scales, bits)[:, :width]
    steps = np.repeat(np.abs(scales), 32, axis=1)[:, :width]

    assert numbers.shape == (6, -(-width // 32), 4 * bits)
    # The highest integer is one step lower than the lowest is high, so the other extreme may be a step away.
    assert (np.abs(values - rows) <= steps * 1.0001).all()
    assert np.mean(np.abs(values - rows) <= steps * 0.5001) > 0.95
    assert (values[2, :32] == 0).all()


def test_layers_have_four_bits_and_the_vocabulary_eight(tmp_path: Path) -> None:
    """In 4 bits the table of a vocabulary would lose most."""
    checkpoint = make_checkpoint()
    write_graphs(checkpoint.model, checkpoint.tokenizer.special, tmp_path, "int4")
    nodes = [node for node in onnx.load(tmp_path / bundle.DECODER).graph.node if node.op_type == "MatMulNBits"]
    bits = {tuple(node.output): onnx.helper.get_node_attr_value(node, "bits") for node in nodes}

    assert bits.pop((bundle.LOGITS,)) == 8
    assert set(bits.values()) == {4}


# fp16


def with_large_activations(factor: float) -> Checkpoint:
    """Return a model whose feed-forward layers reach far out and back: the same function, larger in between."""
    checkpoint = make_checkpoint(activation="relu")
    stacks: list[Any] = [checkpoint.model.encoder, checkpoint.model.decoder]
    with torch.no_grad():
        for layer in (layer for stack in stacks for layer in stack.layers):
            layer.feed_forward.expand.weight.mul_(factor)
            layer.feed_forward.expand.bias.mul_(factor)
            layer.feed_forward.contract.weight.div_(factor)
    return checkpoint


def test_large_activations_are_measured() -> None:
    """By the names of the graph, on sources as long as the model takes."""
    checkpoint = with_large_activations(1e5)
    encoder, decoder = graphs_of(checkpoint)
    largest = largest_of_both(encoder, decoder, checkpoint.model.config, checkpoint.tokenizer.special)

    for found in largest:
        beyond = {name for name, magnitude in found.items() if magnitude > LARGEST}
        assert beyond
        assert all(magnitude == magnitude for magnitude in found.values())
        assert len(beyond) < 0.3 * len(found)


def test_large_activations_are_computed_in_fp32(tmp_path: Path) -> None:
    """And nothing else is: around them the graph is fp16, and its texts are those of the model."""
    checkpoint = with_large_activations(1e5)
    write_bundle(checkpoint, tmp_path / "half", name="b", precision="fp16", verify=None)
    write_bundle(checkpoint, tmp_path / "full", name="b", precision="fp32", verify=None)
    sources, tokens = random_sources(checkpoint, [5, 30]), np.array([[5, 6, 7], [8, 9, 10]])
    half, full = (logits_of(BundleSession(tmp_path / name), sources, tokens) for name in ("half", "full"))
    wide = {t.name: t for t in onnx.load(tmp_path / "half" / bundle.DECODER).graph.initializer if len(t.dims) == 2}

    allowed = np.isfinite(full)
    assert np.abs(half[allowed] - full[allowed]).max() < 0.1 * full[allowed].std()
    kinds = {name: tensor.data_type for name, tensor in wide.items() if "feed_forward" in name}
    assert set(kinds.values()) == {TensorProto.FLOAT}
    # Rows of masked ids, which only probabilities need, stay as they were.
    assert wide.pop("output.masked_weight").data_type == TensorProto.FLOAT
    assert {t.data_type for name, t in wide.items() if name not in kinds} == {TensorProto.FLOAT16}


def test_without_the_measurement_it_would_overflow() -> None:
    """What the islands are for: in fp16 alone the same weights do not even fit."""
    encoder, _ = graphs_of(with_large_activations(1e6))

    with pytest.raises(FloatingPointError):
        to_half(encoder, {})


def test_keys_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """The server keeps them in fp16, so there is no island for them."""
    checkpoint = make_checkpoint()
    layer: Any = checkpoint.model.decoder.layers[0]
    with torch.no_grad():
        layer.cross_attention.key.weight.mul_(1e5)

    with pytest.raises(ExportError, match=r"cross_key\.0 reaches .* --precision fp32"):
        write_graphs(checkpoint.model, checkpoint.tokenizer.special, tmp_path, "fp16")


def test_angles_of_positions_stay_in_fp32(tmp_path: Path) -> None:
    """Position 60 times a rate has more digits than fp16."""
    checkpoint = make_checkpoint(positions="rotary")
    write_graphs(checkpoint.model, checkpoint.tokenizer.special, tmp_path, "fp16")
    for name in bundle.GRAPHS:
        model = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / name))
        types = {value.name: value.type.tensor_type.elem_type for value in model.graph.value_info}
        angles = {types[node.input[0]] for node in model.graph.node if node.op_type in ("Sin", "Cos")}
        assert angles == {TensorProto.FLOAT}


def test_ids_that_are_never_generated_are_masked_in_fp32(tmp_path: Path) -> None:
    """The bias is added behind the cast: in fp16 it would round what it is added to once more."""
    checkpoint = make_checkpoint()
    write_graphs(checkpoint.model, checkpoint.tokenizer.special, tmp_path, "fp16")
    graph = onnx.load(tmp_path / bundle.DECODER).graph
    masks = [t for t in graph.initializer if t.dims == [330] and np.isneginf(numpy_helper.to_array(t)).any()]

    assert [tensor.data_type for tensor in masks] == [TensorProto.FLOAT]
    assert {value.name: value.type.tensor_type.elem_type for value in graph.output}[bundle.LOGITS] == TensorProto.FLOAT


def graphs_of(checkpoint: Checkpoint) -> tuple[ir.Model, ir.Model]:
    return encoder_graph(checkpoint.model), decoder_graph(checkpoint.model, checkpoint.tokenizer.special)
