"""`dragoman inspect`: numbers that can be checked against the model, and refusals that are the server's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from dragoman.cli.main import main
from dragoman.export import bundle
from dragoman.export.bundle import Limits, load_manifest
from dragoman.export.errors import BundleError
from dragoman.export.graph_facts import GraphFacts, read_graph, total
from dragoman.export.graph_parts import SHARED, UNKNOWN
from dragoman.export.inspect import _state_memory, inspect_bundle
from dragoman.export.to_onnx import shape_of
from dragoman.export.write import write_bundle
from dragoman.model.checkpoint import Checkpoint
from tests.fakes.bundles import make_checkpoint, plant

DATA = Path(__file__).parents[2] / "data"
TINY = DATA / "tiny-v1"
# Enough for scales, epsilons, axes and the rates of rotary positions; far fewer than any matrix has.
SMALL = 40
VARIANTS: dict[str, dict[str, Any]] = {
    "pre": {},
    "post, learned positions, nothing tied": {
        "norm_position": "post", "positions": "learned", "tied_embeddings": "none", "output_bias": True,
    },
    "pre, no bias, rotary, gated": {
        "positions": "rotary", "norm": "rms", "gated": True, "bias": False, "num_key_value_heads": 2,
    },
    "post, no bias, relative": {
        "norm_position": "post", "bias": False, "positions": "relative", "relative_buckets": 8,
        "relative_max_distance": 16,
    },
    "ssru": {"decoder_layer": "ssru"},
}  # fmt: skip


class Exported:
    """The two graphs of a model, as exported, without the exporter's notes, and in int8."""

    def __init__(self, settings: dict[str, Any], folder: Path) -> None:
        self.checkpoint: Checkpoint = make_checkpoint(**settings)
        self.folder = folder
        write_bundle(self.checkpoint, folder / "fp32", name="b", precision="fp32", verify=None)
        write_bundle(self.checkpoint, folder / "int8", name="b", precision="int8", verify=None)
        (folder / "bare").mkdir()
        for name in bundle.GRAPHS:
            model = onnx.load(folder / "fp32" / name)
            strip_names(model)
            onnx.save(model, folder / "bare" / name)

    def read(self, form: str) -> list[GraphFacts]:
        """Read both graphs in the form of that folder."""
        post_norm = self.checkpoint.model.config.norm_position == "post"
        return [read_graph(self.folder / form / name, post_norm=post_norm) for name in bundle.GRAPHS]


@pytest.fixture(scope="module", params=VARIANTS.values(), ids=list(VARIANTS))
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported(request.param, tmp_path_factory.mktemp("graphs"))


def strip_names(model: onnx.ModelProto) -> None:
    """Leave what torch's exporter alone leaves, less its notes: names of vectors and tables, no others."""
    del model.graph.value_info[:]
    new = {
        tensor.name: f"matrix_{i}"
        for i, tensor in enumerate(model.graph.initializer)
        if len(tensor.dims) == 2 and ".layers." in tensor.name
    }
    for tensor in model.graph.initializer:
        tensor.name = new.get(tensor.name, tensor.name)
    for node in model.graph.node:
        del node.metadata_props[:]
        node.name = node.doc_string = ""
        node.input[:] = [new.get(name, name) for name in node.input]


def weights_of(checkpoint: Checkpoint) -> dict[str, int]:
    """Return how many weights each layer has, by the names that inspect gives them."""
    weights = checkpoint.model.state_dict()
    found: dict[str, int] = {}
    for name, tensor in weights.items():
        words = name.split(".")
        if words[1:2] == ["layers"]:
            part = ".".join(words[:3])
            found[part] = found.get(part, 0) + tensor.numel()
    return found


def of_both(graphs: list[GraphFacts], kinds: tuple[str, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for graph in graphs:
        for part, amounts in graph.parts.items():
            found[part] = found.get(part, 0) + sum(amounts[kind].parameters for kind in kinds if kind in amounts)
    # A product of all decoder layers with the encoder's states may be one.
    of_all = found.pop("decoder.layers", 0)
    return {part: count + of_all // 2 if part.startswith("decoder.layers.") else count for part, count in found.items()}


@pytest.mark.parametrize("form", ["fp32", "bare"], ids=["as exported", "without names of matrices"])
def test_every_weight_is_counted_in_its_layer(exported: Exported, form: str) -> None:
    """The table of a graph adds up to the model's own layers, with names or without."""
    found = of_both(exported.read(form), ("float32",))
    expected = weights_of(exported.checkpoint)

    assert set(expected) == {f"{stack}.layers.{i}" for stack in ("encoder", "decoder") for i in range(2)}
    assert {part: 0 <= found[part] - count <= SMALL for part, count in expected.items()} == dict.fromkeys(
        expected, True
    )
    assert found.get(SHARED, 0) + found.get(UNKNOWN, 0) <= SMALL


def test_every_quantised_weight_is_counted_in_its_layer(exported: Exported) -> None:
    """int8 invents names, and loses the exporter's notes on the nodes that it replaces."""
    found = of_both(exported.read("int8"), ("int8",))
    expected: dict[str, int] = {}
    for name, tensor in exported.checkpoint.model.state_dict().items():
        words = name.split(".")
        if words[1:2] == ["layers"] and tensor.dim() == 2:
            part = ".".join(words[:3])
            expected[part] = expected.get(part, 0) + tensor.numel()

    assert {part: found[part] for part in expected} == expected
    assert found.get(SHARED, 0) + found.get(UNKNOWN, 0) == 0


def test_bytes_and_nodes_of_a_graph_add_up(exported: Exported) -> None:
    """What is listed is all there is."""
    for name, facts in zip(bundle.GRAPHS, exported.read("fp32"), strict=True):
        model = onnx.load(exported.folder / "fp32" / name)
        sizes = [numpy_helper.to_array(tensor).nbytes for tensor in model.graph.initializer]
        assert sum(amount.bytes for amount in facts.amounts.values()) == sum(sizes)
        assert total(facts.parts.values()) == facts.amounts
        assert sum(facts.operators.values()) == facts.nodes >= len(model.graph.node)
        assert facts.opsets == {"": 24}
        assert facts.unused == facts.external == []


@pytest.mark.parametrize("name", ["tiny-v1", "tiny-v2", "tiny-v3"])
def test_json_of_a_committed_bundle(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever automates finds all of the manifest and what was measured."""
    assert main(["inspect", str(DATA / name), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    manifest = json.loads((DATA / name / bundle.MANIFEST).read_text())

    assert {key: facts[key] for key in manifest} == manifest
    assert facts["version"] == load_manifest(DATA / name).version
    assert facts["files"] == {path.name: path.stat().st_size for path in (DATA / name).iterdir()}
    assert facts["problems"] == []
    assert facts["tokenizer_kind"] == "sentencepiece"
    shape, limits = manifest["shape"], manifest["limits"]
    numbers = 2 * shape["num_heads"] * shape["head_dim"] * shape["num_decoder_layers"]
    per_token, fixed = (numbers, 4 * numbers) if name == "tiny-v3" else (4 * numbers, 0)
    assert facts["state_bytes"] == {
        "per_source_token": per_token,
        "per_target_token": per_token,
        "fixed": fixed,
        "longest": per_token * (limits["max_source_tokens"] + limits["max_target_tokens"]) + fixed,
    }
    languages = {"tiny-v1": (["en"], ["de"])}.get(name, (["en", "de", "fr"],) * 2)
    assert (facts["languages"]["sources"], facts["languages"]["targets"]) == languages
    assert set(facts["graphs"]) == set(bundle.GRAPHS)


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Every kind of fact has a line."""
    assert main(["inspect", str(DATA / "tiny-v2")]) == 0
    out = capsys.readouterr().out

    for expected in (
        f"tiny, version {load_manifest(DATA / 'tiny-v2').version}, format 2",
        "languages   en, de, fr -> en, de, fr",
        "tokenizer   sentencepiece, 90 tokens",
        "special ids pad 0, unk 1, start 2, eos 3, 3 more are never generated",
        "precision   fp32, for cpu and cuda",
        "limits      48 source tokens, 48 target tokens; by default 2 per source token + 16",
        "on request  nothing",
        "verified    no",
        "encoder.onnx: 46 nodes, opset ai.onnx 24",
        "8 MatMul",
        "memory for each text: 192 bytes per source token, 192 per target token",
    ):
        assert expected in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.startswith("  encoder.layers.0")}
    assert rows == {"encoder.layers.0": ["4,876", "19,520", "float32", "4,872,", "int64", "4"]}


def test_many_languages_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model of 200 languages does not fill the screen."""
    copy = Path(shutil.copytree(DATA / "tiny-v2", tmp_path / "copy"))
    manifest = json.loads((copy / bundle.MANIFEST).read_text())
    manifest["several"]["targets"] |= {f"x{i}": {} for i in range(197)}
    (copy / bundle.MANIFEST).write_text(json.dumps(manifest))

    assert main(["inspect", str(copy)]) == 0
    assert "-> 200 languages (en, de, fr, x0, x1, x2, x3, x4, ...)" in capsys.readouterr().out


def test_memory_is_what_the_graph_reads(exported: Exported) -> None:
    """Keys and values for each token, or one cell for any number of them."""
    config = exported.checkpoint.model.config
    manifest = replace(
        load_manifest(TINY), shape=shape_of(config), limits=Limits(config.max_source_tokens, config.max_target_tokens)
    )
    state = _state_memory(manifest, exported.read("fp32")[1])

    per_token = 4 * 2 * config.num_decoder_layers * config.key_value_heads * config.head_dim
    cells = config.decoder_layer == "ssru"
    expected = (per_token, 0, 4 * 2 * 32) if cells else (per_token, per_token, 0)
    assert (state.per_source_token, state.per_target_token, state.fixed) == expected
    assert state.longest == expected[0] * 70 + expected[1] * 24 + expected[2]


BREAKS: dict[str, Callable[[Path], object]] = {
    "no folder": lambda folder: shutil.rmtree(folder),
    "no manifest": lambda folder: (folder / bundle.MANIFEST).unlink(),
    "damaged graph": lambda folder: (folder / bundle.ENCODER).write_bytes(b"x"),
    "missing tokenizer": lambda folder: (folder / "tokenizer.model").unlink(),
    "newer format": lambda folder: (folder / bundle.MANIFEST).write_text('{"format_version": 9}'),
}


@pytest.mark.parametrize("break_it", BREAKS.values(), ids=BREAKS)
def test_a_broken_bundle_gives_the_servers_error(
    break_it: Callable[[Path], object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence on stderr, exit code 1, nothing on stdout."""
    copy = Path(shutil.copytree(TINY, tmp_path / "copy"))
    break_it(copy)
    with pytest.raises(BundleError) as caught:
        load_manifest(copy)  # what `dragoman serve` calls first

    assert main(["inspect", str(copy)]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"dragoman inspect: {caught.value}\n")


def replaced(folder: Path, name: str, content: bytes) -> Path:
    """Replace a file and its hash."""
    (folder / name).write_bytes(content)
    manifest = json.loads((folder / bundle.MANIFEST).read_text())
    manifest["sha256"][name] = bundle.file_sha256(folder / name)
    (folder / bundle.MANIFEST).write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize(
    ("name", "message"),
    [(bundle.DECODER, "decoder.onnx is not an ONNX graph"), ("tokenizer.model", "not a tokenizer of kind")],
)
def test_a_file_of_another_kind_is_named(
    name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its hash is right, its content is not."""
    copy = Path(shutil.copytree(TINY, tmp_path / "copy"))

    assert main(["inspect", str(replaced(copy, name, b"something else"))]) == 1
    assert message in capsys.readouterr().err


def rename_output(model: onnx.ModelProto) -> None:
    for value in [*model.graph.output, *model.graph.input]:
        if value.name == "updated_self_key.0":
            value.name = "present.0"
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["present.0" if name == "updated_self_key.0" else name for name in names]


def widen_cache(model: onnx.ModelProto) -> None:
    for value in model.graph.input:
        if value.name == "self_key.0":
            value.type.tensor_type.shape.dim[1].dim_value = 8


def drop_last(model: onnx.ModelProto) -> None:
    kept = [value for value in model.graph.output if value.name != bundle.CROSS_LAST]
    del model.graph.output[:]
    model.graph.output.extend(kept)


def return_floats(model: onnx.ModelProto) -> None:
    for value in model.graph.output:
        if value.name == "cross_key.0":
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            [node] = [node for node in model.graph.node if value.name in node.output]
            node.output[list(node.output).index(value.name)] = "integers"
    model.graph.node.append(helper.make_node("Cast", ["integers"], ["cross_key.0"], to=onnx.TensorProto.FLOAT))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_last, "encoder.onnx has no output cross_last, which the decoder or the manifest promises; export"),
        (
            return_floats,
            "encoder.onnx returns cross_key.0 as float32, decoder.onnx takes int8; export the bundle again",
        ),
    ],
)
def test_graphs_that_do_not_fit_together_are_a_problem(
    change: Callable[[onnx.ModelProto], None], message: str, tmp_path: Path
) -> None:
    """What one returns the other must be able to take."""
    [problem] = inspect_bundle(plant(DATA / "tiny-v3", tmp_path / "broken", bundle.ENCODER, change)).problems

    assert message in problem


def test_a_manifest_that_does_not_say_that_there_is_cross_last_is_a_problem(tmp_path: Path) -> None:
    """An older server would take such a bundle for one that it can feed."""
    copy = Path(shutil.copytree(DATA / "tiny-v3", tmp_path / "copy"))
    replace(load_manifest(copy), cross_last=False).write(copy)

    assert [problem for problem in inspect_bundle(copy).problems if "cross_last" in problem]


def add_unused(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.float32), "left.over"))


def move_outside(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rename_output, "decoder.onnx has no output updated_self_key.0, which the manifest's shape promises"),
        (widen_cache, r"self_key.0 is float32 [batch, 8, cache, 16], the manifest's shape says [any, 4, any, 16]"),
    ],
)
def test_a_graph_that_breaks_the_contract_is_a_problem(
    change: Callable[[onnx.ModelProto], None], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The facts are shown all the same, and the exit code is 1."""
    broken = plant(TINY, tmp_path / "broken", bundle.DECODER, change)

    assert main(["inspect", str(broken)]) == 1
    out = capsys.readouterr().out
    assert "PROBLEM: " in out
    assert message in out
    assert "encoder.layers.0" in out


def test_weights_without_a_hash_are_a_problem(tmp_path: Path) -> None:
    """A graph may name files beside it; those must be part of the bundle."""
    folder = plant(TINY, tmp_path / "outside", bundle.DECODER, lambda _: None)
    (folder / "weights.bin").write_bytes(b"\0" * 400 * 64 * 4)
    model = onnx.load(folder / bundle.DECODER)
    move_outside(model)
    replaced(folder, bundle.DECODER, model.SerializeToString())

    facts = inspect_bundle(folder)
    assert facts.graphs[1].external == ["weights.bin"]
    assert facts.problems == (
        "decoder.onnx reads weights.bin, which the manifest has no hash of; export the bundle again",
    )

    replaced(folder, "weights.bin", b"\0" * 400 * 64 * 4)
    assert inspect_bundle(folder).problems == ()


def test_what_no_node_reads_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Dead weights are the exporter's mistake, not a reason to refuse."""
    folder = plant(TINY, tmp_path / "dead", bundle.DECODER, add_unused)

    assert main(["inspect", str(folder)]) == 0
    assert "not read by any node: left.over" in capsys.readouterr().out


def test_packed_weights_are_counted_one_by_one(tmp_path: Path) -> None:
    """Two 4-bit numbers share a byte; a contributed operator is shown with its domain."""
    packed = numpy_helper.from_array(np.zeros((6, 2, 16), np.uint8), "model.decoder.layers.0.x_packed")
    scales = numpy_helper.from_array(np.zeros(12, np.float32), "model.decoder.layers.0.x_scales")
    node = helper.make_node(
        "MatMulNBits", ["x", packed.name, scales.name], ["y"], domain="com.microsoft", K=64, N=6, bits=4, block_size=32
    )
    axes = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", n]) for name, n in (("x", 64), ("y", 6))
    ]
    graph = helper.make_graph([node], "g", axes[:1], axes[1:], [packed, scales])
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "g.onnx")

    facts = read_graph(tmp_path / "g.onnx", post_norm=False)
    amount = facts.parts["decoder.layers.0"]["4 bits"]
    assert (amount.parameters, amount.bytes) == (6 * 64, 6 * 32)
    assert facts.operators == {"com.microsoft.MatMulNBits": 1}
    assert facts.opsets == {"": 24, "com.microsoft": 1}


def test_wrong_usage_has_its_own_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """As of every subcommand."""
    with pytest.raises(SystemExit) as caught:
        main(["inspect"])

    assert caught.value.code == 2
    assert "usage" in capsys.readouterr().err
