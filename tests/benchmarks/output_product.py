"""Times of decode steps with small vocabularies, and of the product that a shortlist would put in the output's place.

A shortlist's matrix is not a constant of the graph, so ONNX Runtime cannot pack it when it loads: it is gathered from
the whole matrix when texts join, and packed in every product. `ProductBench` has the same operator both ways.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from dragoman.server.options import SearchOptions
from dragoman.server.sessions import session_options
from tests.benchmarks.compute_clock import ComputeClock
from tests.benchmarks.cost import AGE, StepBench
from tests.benchmarks.models import SIZES, random_model
from tests.benchmarks.rounds import alternate, repeated
from tests.benchmarks.sides import Countdown, Loaded, load, make_request
from tests.benchmarks.workload import EQUAL, FIRST_WORD, random_sources

WHOLE, CUT, GATHERED, GATHERED_COLUMNS, KEPT = "whole", "cut", "gathered rows", "gathered columns", "kept"
_ENCODED_TOGETHER = 8
_INTEGER_TO_FLOAT = ("a", "b", "a_scale", "b_scales", "a_zero", "b_zeros", "bias")

Array = np.ndarray[Any, Any]


def cpu_milliseconds(
    makes: Mapping[str, Callable[[], Callable[[], float]]], rounds: int, seconds: float
) -> dict[str, float]:
    """Return the CPU time of each per what it did, median over the rounds, by name.

    Args:
        makes: Make the calls, anew in every round; a call returns how much it did, mostly 1.
        rounds: How many.
        seconds: CPU time of each round and call.
    """

    def run(make: Callable[[], Callable[[], float]]) -> float:
        call = make()
        call()
        return 1e3 / repeated(call, seconds, time.process_time)()

    found = alternate({name: lambda make=make: run(make) for name, make in makes.items()}, rounds)  # type: ignore[misc]  # mypy cannot infer lambda defaults
    return {name: statistics.median(values) for name, values in found.items()}


def step_times(loaded: Loaded, rows: Sequence[int], rounds: int, seconds: float) -> dict[int, float]:
    """Return milliseconds of a decode step by its rows."""
    makes = {str(count): lambda count=count: StepBench(loaded, count, AGE) for count in rows}
    found = cpu_milliseconds(makes, rounds, seconds)
    return {count: found[str(count)] for count in rows}


def vocabulary_steps(
    name: str, vocabularies: Sequence[int], rows: Sequence[int], rounds: int, seconds: float, folder: Path
) -> dict[int, dict[int, float]]:
    """Return milliseconds of a decode step by vocabulary and rows, in int8-static.

    Args:
        name: Size of a model, see `SIZES`; everything but its vocabulary is kept.
        vocabularies: Sizes to try.
        rows: Likewise.
        rounds: Of all of them in turn.
        seconds: CPU time of each round and point.
        folder: For exported models.
    """
    makes: dict[str, Callable[[], Callable[[], float]]] = {}
    for vocabulary in vocabularies:
        size = replace(SIZES[name], vocab_size=vocabulary)
        bundle = random_model(vocabulary_folder(name, vocabulary), size, folder).bundle("int8-static")
        loaded = load(bundle, rows=max(rows), threads=1)
        for count in rows:
            makes[f"{vocabulary} {count}"] = lambda loaded=loaded, count=count: StepBench(loaded, count, AGE)  # type: ignore[misc]  # mypy cannot infer lambda defaults
    found = cpu_milliseconds(makes, rounds, seconds)
    return {v: {count: found[f"{v} {count}"] for count in rows} for v in vocabularies}


def encode_times(name: str, rows: Sequence[int], rounds: int, seconds: float, folder: Path) -> dict[int, float]:
    """Return milliseconds that the encoder takes per text, by texts that are alive: a few of them are encoded together.

    Args:
        name: Size of a model, see `SIZES`.
        rows: Texts alive.
        rounds: Of all of them in turn.
        seconds: CPU time of each round and point.
        folder: For exported models.
    """
    vocabulary = SIZES[name].vocab_size
    runtime = load(
        random_model(vocabulary_folder(name, vocabulary), SIZES[name], folder).bundle("int8-static"), rows=1, threads=1
    ).runtime

    def encode(count: int) -> float:
        runtime.encode(random_sources([EQUAL] * count, vocabulary, first=FIRST_WORD, eos=FIRST_WORD))
        return count

    counts = {count: min(count, _ENCODED_TOGETHER) for count in rows}
    makes = {str(count): lambda count=count: functools.partial(encode, count) for count in set(counts.values())}
    found = cpu_milliseconds(makes, rounds, seconds)
    return {rows: found[str(count)] for rows, count in counts.items()}


def vocabulary_folder(name: str, vocabulary: int) -> str:
    """Return what the exported model of a size with another vocabulary is called."""
    return f"{name}-vocabulary-{vocabulary}"


def engine_milliseconds(endless: Path, rows: int, steps: int) -> float:
    """Return CPU time of an iteration of the engine outside ONNX Runtime, median.

    Args:
        endless: Bundle of a model that never ends a text.
        rows: Greedy texts alive.
        steps: Iterations that count.
    """
    loaded = load(endless, rows=rows, threads=1)
    manifest, engine, times = loaded.manifest, loaded.engine, []
    options = SearchOptions(max_new_tokens=manifest.limits.max_target_tokens)
    sources = random_sources([EQUAL] * rows, manifest.shape.vocab_size, first=FIRST_WORD, eos=manifest.special.eos)
    engine.submit([make_request(source, options, Countdown(rows)) for source in sources])
    with ComputeClock().installed() as clock:
        while loaded.pool.live < rows:
            engine.iterate()
        for _ in range(steps):
            start, before = time.thread_time(), clock.cpu_seconds
            engine.iterate()
            times.append(time.thread_time() - start - (clock.cpu_seconds - before))
    return 1e3 * statistics.median(times)


class ProductBench:
    """One output product that can be repeated: [rows, K] uint8 times n of the V columns."""

    def __init__(self, way: str, vocabulary: int, width: int, count: int, rows: int) -> None:
        """Build a graph and bind its inputs and outputs.

        Args:
            way: `WHOLE`: a constant matrix of all V columns. `CUT`: a constant one of n. `GATHERED`: of n, gathered
                from a constant [V, K] and transposed in the same graph. `GATHERED_COLUMNS`: gathered from a constant
                [K, V]. `KEPT`: of n, an input, as if it had been gathered in an earlier step.
            vocabulary: V.
            width: K.
            count: n.
            rows: Of the activation.
        """
        generator = np.random.default_rng(0)
        ids = np.sort(generator.choice(vocabulary, count, replace=False))
        matrix = generator.integers(-63, 64, (width, vocabulary), np.int8)
        inputs = {"a": generator.integers(0, 256, (rows, width), np.uint8), "ids": ids}
        if way == KEPT:
            inputs["b"] = np.ascontiguousarray(matrix[:, ids])
        model = product_model(way, matrix, ids)
        self._session = onnxruntime.InferenceSession(model, session_options(1), ["CPUExecutionProvider"])
        self._inputs = {value.name: inputs[value.name] for value in self._session.get_inputs()}
        self._binding = self._session.io_binding()
        for name, value in self._inputs.items():
            self._binding.bind_cpu_input(name, value)
        self.result = np.empty((rows, vocabulary if way == WHOLE else count), np.float32)
        self._binding.bind_output("c", "cpu", 0, np.float32, self.result.shape, self.result.ctypes.data)

    def __call__(self) -> float:
        """Multiply; returns 1."""
        self._session.run_with_iobinding(self._binding)
        return 1.0


def product_model(way: str, matrix: Array, ids: Array) -> bytes:
    """Return the graph of a product, see `ProductBench`.

    Args:
        way: How the matrix comes about.
        matrix: [K, V] int8.
        ids: [n] int64, columns of a shortlist.
    """
    width, vocabulary = matrix.shape
    scales = np.linspace(1e-4, 1e-3, vocabulary, dtype=np.float32)
    columns = {"b": matrix, "b_scales": scales, "b_zeros": np.zeros(vocabulary, np.int8), "bias": 100 * scales}
    constants: dict[str, Array] = {"a_scale": np.array(0.02, np.float32), "a_zero": np.array(128, np.uint8)}
    inputs = [helper.make_tensor_value_info("a", TensorProto.UINT8, ["rows", width])]
    nodes = []
    if way in (WHOLE, CUT):
        constants |= columns if way == WHOLE else {name: value[..., ids].copy() for name, value in columns.items()}
    else:
        inputs.append(helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"]))
        for name in ("b_scales", "b_zeros", "bias"):
            constants[f"{name}_all"] = columns[name]
            nodes.append(helper.make_node("Gather", [f"{name}_all", "ids"], [name]))
    if way == KEPT:
        inputs.append(helper.make_tensor_value_info("b", TensorProto.INT8, [width, "n"]))
    elif way == GATHERED:
        constants["b_all"] = np.ascontiguousarray(matrix.T)
        nodes.append(helper.make_node("Gather", ["b_all", "ids"], ["b_rows"]))
        nodes.append(helper.make_node("Transpose", ["b_rows"], ["b"], perm=[1, 0]))
    elif way == GATHERED_COLUMNS:
        constants["b_all"] = matrix
        nodes.append(helper.make_node("Gather", ["b_all", "ids"], ["b"], axis=1))
    nodes.append(helper.make_node("MatMulIntegerToFloat", list(_INTEGER_TO_FLOAT), ["c"], domain="com.microsoft"))
    tensors = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    outputs = [helper.make_tensor_value_info("c", TensorProto.FLOAT, ["rows", "columns"])]
    graph = helper.make_graph(nodes, "product", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    content: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return content


def product_times(
    vocabulary: int, width: int, counts: Sequence[int], rows: Sequence[int], rounds: int, seconds: float
) -> list[dict[str, Any]]:
    """Return milliseconds of products: one record per way, n and rows."""
    points = [(WHOLE, vocabulary, r) for r in rows]
    points += [(way, n, r) for way in (CUT, KEPT, GATHERED, GATHERED_COLUMNS) for n in counts for r in rows]
    makes = {
        f"{way} {n} {r}": lambda way=way, n=n, r=r: ProductBench(way, vocabulary, width, n, r) for way, n, r in points
    }
    found = cpu_milliseconds(makes, rounds, seconds)
    return [{"way": way, "columns": n, "rows": r, "ms": found[f"{way} {n} {r}"]} for way, n, r in points]
