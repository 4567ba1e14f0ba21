"""What the machine can do at most: bytes read per second and multiply-adds per second, with the same threads.

    python -m tests.benchmarks.limits --threads 2

Both are the best of several ways to reach them, because a limit that one library does not reach is none. Reading is
measured over a buffer as large as the weights that a decode step reads, again and again: with a large cache that is
faster than memory, and it is the limit of that model. A second buffer that fits no cache says what memory does.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

_BEYOND_CACHES = 1 << 29
_EDGE = 2048  # of the matrices of the largest product
_WIDTH = 1024  # of a matrix that is read as a layer's weights are

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates with a number of threads.

    Attributes:
        threads: How many.
        memory_gbs: GB/s of reading a buffer larger than the caches of most machines.
        fp32_gflops: Two per multiply-add, of a product of large matrices.
        int8_gops: Likewise with unsigned times signed bytes.
    """

    threads: int
    memory_gbs: float
    fp32_gflops: float
    int8_gops: float

    def to_dict(self) -> dict[str, float]:
        """Return a JSON-ready mapping."""
        return asdict(self)


def measure(threads: int, seconds: float = 0.5) -> Limits:
    """Measure all limits but those of buffers of a certain size, see `read_rate`.

    Args:
        threads: Of every measurement.
        seconds: Of each measurement.
    """
    return Limits(
        threads,
        read_rate(_BEYOND_CACHES, threads, seconds) / 1e9,
        product_rate(threads, seconds, integers=False) / 1e9,
        product_rate(threads, seconds, integers=True) / 1e9,
    )


def read_rate(size: int, threads: int, seconds: float) -> float:
    """Return bytes per second of reading a buffer of about `size` bytes, the fastest way."""
    rows = max(threads, size // (4 * _WIDTH))
    matrix = np.random.default_rng(0).standard_normal((rows, _WIDTH), np.float32)
    parts = np.array_split(matrix, threads)
    whole = np.ones((1, rows), np.float32)
    session = _session(_product_model("MatMul", (1, rows), (rows, _WIDTH), matrix), threads)
    binding = session.io_binding()
    binding.bind_cpu_input("a", whole)
    binding.bind_output("c", "cpu")
    with ThreadPoolExecutor(threads) as pool:
        ways: list[Callable[[], object]] = [
            lambda: list(pool.map(np.max, parts)),
            lambda: list(pool.map(np.sum, parts)),
            lambda: list(pool.map(_dot, parts)),
            lambda: session.run_with_iobinding(binding),
        ]
        return max(_rate(way, matrix.nbytes, seconds) for way in ways)


def product_rate(threads: int, seconds: float, *, integers: bool) -> float:
    """Return operations per second of the product of two large matrices, in ONNX Runtime and in NumPy's library."""
    edge, operations = _EDGE, 2.0 * _EDGE**3
    generator = np.random.default_rng(0)
    if integers:
        left: Array = generator.integers(0, 255, (edge, edge), np.uint8)
        right: Array = generator.integers(-127, 127, (edge, edge), np.int8)
    else:
        left, right = (generator.standard_normal((edge, edge), np.float32) for _ in range(2))
    name = "MatMulInteger" if integers else "MatMul"
    session = _session(_product_model(name, left.shape, right.shape, right), threads)
    found = _rate(lambda: session.run(None, {"a": left}), operations, seconds)
    if integers:
        return found
    return max(found, _rate(lambda: left @ right, operations, seconds))


def _dot(part: Array) -> float:
    flat = part.reshape(-1)
    half = len(flat) // 2
    return float(flat[:half] @ flat[half : 2 * half])


def _rate(work: Callable[[], object], amount: float, seconds: float) -> float:
    """Return amount per second of the fastest call within some seconds; it takes three at least."""
    work()
    fastest, calls, end = float("inf"), 0, time.perf_counter() + seconds
    while calls < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        fastest = min(fastest, time.perf_counter() - start)
        calls += 1
    return amount / fastest


def _product_model(name: str, left: tuple[int, ...], right: tuple[int, ...], weights: Array) -> bytes:
    kinds = {"MatMul": (TensorProto.FLOAT, TensorProto.FLOAT), "MatMulInteger": (TensorProto.UINT8, TensorProto.INT32)}
    input_type, output_type = kinds[name]
    tensor = onnx.numpy_helper.from_array(weights, "b")
    graph = helper.make_graph(
        [helper.make_node(name, ["a", "b"], ["c"])],
        "product",
        [helper.make_tensor_value_info("a", input_type, left)],
        [helper.make_tensor_value_info("c", output_type, (left[0], right[1]))],
        [tensor],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    content: bytes = model.SerializeToString()
    return content


def _session(model: bytes, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])


def main() -> None:
    """Print the limits as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--megabytes", type=float, default=154.0, help="of the buffer that is read again and again")
    arguments = parser.parse_args()
    found = measure(arguments.threads).to_dict()
    found["read_gbs"] = read_rate(int(arguments.megabytes * 1e6), arguments.threads, 0.5) / 1e9
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
