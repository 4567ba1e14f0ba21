"""No node of an fp16 or fp32 graph falls back to the CPU: each has a kernel in the newest onnxruntime-gpu."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnxscript import ir

from dragoman.export import bundle
from dragoman.export.cuda_kernels import nodes_without_kernel, table
from dragoman.export.precision import Precision
from dragoman.export.single_graphs import write_encoder, write_language_model
from dragoman.model.single_stack import DecoderOnly, EncoderOnly
from dragoman.model.vocab import SPECIAL_IDS
from tests.fakes.bundles import converted
from tests.fakes.models import make_config
from tests.fakes.variants import Exported


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_every_node_has_a_cuda_kernel(exported: Exported, precision: Precision, tmp_path: Path) -> None:
    """Operator, version and types of every node of both graphs, branches included, are in the recorded table."""
    folder = exported.fp32 if precision == "fp32" else converted(exported.fp32, tmp_path / "out", precision)

    for graph in bundle.GRAPHS:
        assert nodes_without_kernel(ir.load(folder / graph)) == []


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("layer", ["self-attention", "ssru"])
def test_every_node_of_a_single_stack_has_one(layer: str, precision: Precision, tmp_path: Path) -> None:
    """Models of one stack are graphs of their own."""
    language_model = DecoderOnly(make_config(vocab_size=2039, decoder_layer=layer, output_bias=True)).eval()
    write_language_model(language_model, SPECIAL_IDS, tmp_path / "decoder.onnx", precision)
    write_encoder(EncoderOnly(make_config()).eval(), tmp_path / "encoder.onnx", precision)

    for name in ("decoder.onnx", "encoder.onnx"):
        assert nodes_without_kernel(ir.load(tmp_path / name)) == []


def test_integer_products_have_none(exported: Exported) -> None:
    """The check finds what it is for: int8 graphs are not for CUDA, and the manifest says so."""
    missing = nodes_without_kernel(ir.load(exported.int8 / bundle.ENCODER))

    assert {line.split()[0] for line in missing} >= {"MatMulInteger"}


def test_types_count() -> None:
    """A kernel for another type is none: MatMul has one for fp16 and none for integers."""
    assert nodes_without_kernel(one_node("MatMul", "FLOAT16")) == []
    assert nodes_without_kernel(one_node("MatMul", "INT64")) == ["MatMul product (int64, int64)"]


def test_nodes_in_branches_count() -> None:
    """What runs on request only would fall back on request."""
    asked = ir.val("asked", ir.DataType.BOOL, [1])
    values = [ir.val(name, ir.DataType.INT64, [2, 2]) for name in ("a", "b")]
    branches = {}
    for name, op_type in (("then_branch", "MatMul"), ("else_branch", "Add")):
        result = ir.val(f"{name}_result", ir.DataType.INT64, [2, 2])
        node = ir.node(op_type, values, outputs=[result], name=op_type.lower())
        branches[name] = ir.Graph([], [result], nodes=[node], name=name)
    result = ir.val("result", ir.DataType.INT64, [2, 2])
    choice = ir.node("If", [asked], branches, outputs=[result], name="choice")
    graph = ir.Graph([asked, *values], [result], nodes=[choice], opset_imports={"": 24}, name="g")

    assert nodes_without_kernel(ir.Model(graph, ir_version=10)) == ["MatMul matmul (int64, int64)"]


def test_the_table_is_of_a_release_that_runs_the_graphs() -> None:
    """It says which release and which operator set it was recorded for, and knows the operators of the cache."""
    assert tuple(map(int, table()["onnxruntime-gpu"].split("."))) >= (1, 31)
    assert table()["opset"] == 24
    assert {"TensorScatter", "Attention"} <= set(table()["kernels"][""])


def one_node(op_type: str, dtype: str) -> ir.Model:
    values = [ir.val(name, ir.DataType[dtype], [2, 2]) for name in ("a", "b", "c")]
    node = ir.node(op_type, values[:2], outputs=[values[2]], name="product")
    graph = ir.Graph(values[:2], values[2:], nodes=[node], opset_imports={"": 24}, name="g")
    return ir.Model(graph, ir_version=10)
