"""Size and speed of exported graphs: every precision, beside Optimum's export of the same weights.

    python -m tests.benchmarks.graphs --optimum .venv-optimum/bin/python

A MarianMT model with random weights is exported by Optimum (encoder, and a decoder that concatenates its cache)
and, imported, by us. Both get the same token, cache and source, and must return the same logits. A decode step
includes the choice of the next token: the graph makes it here, NumPy's argmax there. Runs alternate; a cell is
the median of the rounds and, behind ±, half the distance of their quartiles, in milliseconds.

Without --optimum, only our graphs are measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnx
import onnxruntime
import torch
from safetensors.torch import load_file

from dragoman.export import bundle
from dragoman.export.precision import DEVICES, Precision, write_graphs
from dragoman.model.config import ModelConfig
from dragoman.model.importers.hf.bart import build_model
from dragoman.model.transformer import Transformer, count_parameters
from dragoman.model.vocab import SPECIAL_IDS
from tests.benchmarks.models import random_calibration

# Widths of the model that is built in, and of the paper's base model.
SIZES: dict[str, dict[str, int]] = {
    "default": {"vocab_size": 8000, "d_model": 256, "ffn": 1024, "heads": 4, "encoder": 6, "decoder": 2},
    "base": {"vocab_size": 32000, "d_model": 512, "ffn": 2048, "heads": 8, "encoder": 6, "decoder": 6},
}
BATCHES = (1, 8, 32)
SOURCE = 30
AGE = 24  # tokens in the cache
BUFFER = 32  # positions there is room for
OPTIMUM = "Optimum, fp32"
DYNAMIC = "Optimum, quantize_dynamic"
_NUMPY = {
    "tensor(float)": np.float32,
    "tensor(int8)": np.int8,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}

Array = np.ndarray[Any, Any]
Run = Callable[[], object]


def main() -> None:
    """Print two tables per size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimum", type=Path, help="Python of an environment with optimum-onnx")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.2, help="of each graph and round")
    arguments = parser.parse_args()
    for name in arguments.sizes:
        with tempfile.TemporaryDirectory() as folder:
            measure(name, Path(folder), arguments)


def measure(name: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Export one size in every way and print what came out."""
    model = make_model(name, folder, arguments.optimum)
    print(f"\n## {name}: {count_parameters(model) / 1e6:.1f} M parameters, {arguments.threads} threads\n")
    ours: dict[str, Path] = {}
    calibration = random_calibration(model.config.vocab_size, SPECIAL_IDS.eos)
    for precision in DEVICES:
        ours[precision] = folder / precision
        ours[precision].mkdir()
        write_graphs(model, SPECIAL_IDS, ours[precision], precision, calibration)
    theirs = {OPTIMUM: folder / "optimum"} if arguments.optimum else {}
    if theirs:
        theirs[DYNAMIC] = quantize_theirs(folder / "optimum", folder / "dynamic")
    table = Table(arguments)
    sizes = {title: sizes_of(path) for title, path in {**theirs, **ours}.items()}
    for batch in BATCHES:
        steps = {title: TheirStep(path, batch, model.config, table.threads) for title, path in theirs.items()}
        mine = {p: OurStep(path, batch, table.threads) for p, path in ours.items() if "cpu" in DEVICES[as_precision(p)]}
        if theirs:
            check_equal(steps[OPTIMUM], mine["fp32"])
        on_request = {
            f"{p}, {what}": OurStep(ours[p], batch, table.threads, wanted=(what,))
            for p in ("fp32", "int8")
            for what in (bundle.WITH_CANDIDATES, bundle.WITH_ALIGNMENT)
        }
        table.add(f"step, batch {batch}", {**steps, **mine, **on_request})
    for batch in BATCHES[:2]:
        encoders = {p: OurEncoder(path, batch, table.threads) for p, path in ours.items() if p != "fp16"}
        table.add(f"encode, batch {batch}", encoders)
    table.print(sizes)


def as_precision(name: str) -> Precision:
    """Return a name as the type says."""
    return next(precision for precision in DEVICES if precision == name)


def make_model(name: str, folder: Path, optimum: Path | None) -> Transformer:
    """Return random weights: those that Optimum exports, or, without it, others of the same sizes."""
    size = SIZES[name]
    config = ModelConfig(
        vocab_size=size["vocab_size"],
        d_model=size["d_model"],
        d_ff=size["ffn"],
        num_heads=size["heads"],
        num_encoder_layers=size["encoder"],
        num_decoder_layers=size["decoder"],
        norm_position="post",
        positions="sinusoidal-half-paper",
    )
    if optimum is None:
        torch.manual_seed(0)
        return Transformer(config).eval()
    theirs = {"vocab_size": size["vocab_size"], "d_model": size["d_model"]}
    for stack in ("encoder", "decoder"):
        theirs[f"{stack}_layers"] = size[stack]
        theirs[f"{stack}_attention_heads"] = size["heads"]
        theirs[f"{stack}_ffn_dim"] = size["ffn"]
    script = Path(__file__).with_name("optimum_export.py")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [str(optimum), str(script), json.dumps(theirs), str(folder)]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    weights = load_file(folder / "model" / "model.safetensors")
    return build_model(config, weights, folder, tied_output=True).eval()


def quantize_theirs(source: Path, target: Path) -> Path:
    """Return a folder with ONNX Runtime's own int8 of the decoder, scales per channel of the weights."""
    from onnxruntime.quantization import quantize_dynamic

    target.mkdir()
    for path in source.glob("*.onnx"):
        if path.name in ("encoder_model.onnx", "decoder_with_past_model.onnx"):
            quantize_dynamic(path, target / path.name, per_channel=True, reduce_range=True)
    return target


def sizes_of(folder: Path) -> tuple[int, int, float, float]:
    """Return nodes and MB of encoder and decoder."""
    names = ("encoder_model.onnx", "decoder_with_past_model.onnx")
    paths = [
        folder / (own if (folder / own).exists() else other) for own, other in zip(bundle.GRAPHS, names, strict=True)
    ]
    encoder, decoder = (len(onnx.load(path).graph.node) for path in paths)
    return encoder, decoder, paths[0].stat().st_size / 1e6, paths[1].stat().st_size / 1e6


class OurStep:
    """One step with the cache in place, everything bound once."""

    def __init__(self, folder: Path, batch: int, threads: int, wanted: Sequence[str] = ()) -> None:
        self.session = open_session(folder / bundle.DECODER, threads)
        sizes = {"batch": batch, "new": 1, "source": SOURCE, "cache": BUFFER}
        self.inputs = {value.name: example(value, sizes) for value in self.session.get_inputs()}
        self.inputs |= {name: np.ones(1, np.bool_) for name in wanted}
        self.binding = self.session.io_binding()
        self.outputs: dict[str, Array] = {}
        for name, array in self.inputs.items():
            bind(self.binding.bind_input, name, array)
        for value in self.session.get_outputs():
            if value.name.startswith("updated_"):
                bind(self.binding.bind_output, value.name, self.inputs[value.name.removeprefix("updated_")])
            elif value.name in (bundle.NEXT_IDS, bundle.LOGITS):
                self.outputs[value.name] = example(value, sizes)
                bind(self.binding.bind_output, value.name, self.outputs[value.name])
        for name in (name for asked in wanted for name in bundle.ON_REQUEST[asked]):
            self.binding.bind_output(name, "cpu")

    def __call__(self) -> None:
        """Run it."""
        self.session.run_with_iobinding(self.binding)


class TheirStep:
    """One step that returns a new, longer cache."""

    def __init__(self, folder: Path, batch: int, config: ModelConfig, threads: int) -> None:
        self.session = open_session(folder / "decoder_with_past_model.onnx", threads)
        sizes = {"batch_size": batch, "decoder_sequence_length": 1, "encoder_sequence_length": SOURCE}
        sizes["past_decoder_sequence_length"] = AGE
        self.inputs = {value.name: example(value, sizes) for value in self.session.get_inputs()}
        self.inputs["encoder_attention_mask"] = np.ones((batch, SOURCE), np.int64)
        self.binding = self.session.io_binding()
        self.layers = config.num_decoder_layers
        self.logits = np.zeros((batch, 1, config.vocab_size), np.float32)
        for value in self.session.get_outputs():
            if value.name == "logits":
                bind(self.binding.bind_output, value.name, self.logits)
            else:
                self.binding.bind_output(value.name, "cpu")

    def copy_inputs(self, ours: OurStep) -> None:
        """Take token, cache and source of one of our steps."""
        self.inputs["input_ids"] = ours.inputs[bundle.INPUT_IDS]
        for i in range(self.layers):
            for kind in ("key", "value"):
                cache = ours.inputs[f"self_{kind}.{i}"][:, :, :AGE]
                self.inputs[f"past_key_values.{i}.decoder.{kind}"] = np.ascontiguousarray(cache)
                self.inputs[f"past_key_values.{i}.encoder.{kind}"] = ours.inputs[f"cross_{kind}.{i}"]

    def __call__(self) -> Array:
        """Run it; returns the next token of each row."""
        for name, array in self.inputs.items():
            bind(self.binding.bind_input, name, array)
        self.session.run_with_iobinding(self.binding)
        found: Array = self.logits.argmax(axis=-1)
        return found


class OurEncoder:
    """One batch of sources."""

    def __init__(self, folder: Path, batch: int, threads: int) -> None:
        self.session = open_session(folder / bundle.ENCODER, threads)
        ids = np.random.default_rng(0).integers(4, 1000, (batch, SOURCE))
        self.feeds = {bundle.INPUT_IDS: ids, bundle.SOURCE_LENGTHS: np.full(batch, SOURCE, np.int64)}

    def __call__(self) -> None:
        """Run it."""
        self.session.run(None, self.feeds)


def check_equal(theirs: TheirStep, ours: OurStep) -> None:
    """Refuse to compare two graphs that do not say the same.

    Raises:
        AssertionError: Logits differ.
    """
    theirs.copy_inputs(ours)
    ours()
    theirs()
    logits = ours.outputs[bundle.LOGITS]
    allowed = np.isfinite(logits)
    difference = np.abs(logits - theirs.logits)[allowed].max()
    assert difference < 1e-3 * max(1.0, np.abs(theirs.logits).max()), f"logits differ by {difference}"
    assert len(np.unique(ours.outputs[bundle.NEXT_IDS])) > 1 or len(logits) == 1, "every row says the same"


def open_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """Load a graph as the server does."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])


def example(value: Any, sizes: dict[str, int]) -> Array:
    """Return content for an input or output of a graph."""
    size = [sizes.get(axis, 1) if isinstance(axis, str) else axis for axis in value.shape]
    dtype = _NUMPY[value.type]
    generator = np.random.default_rng(len(value.name))
    if value.name == bundle.SOURCE_LENGTHS:
        return np.full(size, SOURCE, np.int64)
    if value.name == bundle.CACHE_LENGTHS:
        return np.full(size, AGE, np.int64)
    if dtype == np.float32:
        return generator.standard_normal(size, np.float32)
    if dtype == np.int8:
        return generator.integers(-127, 128, size, np.int8)
    return generator.integers(4, 1000, size)


def bind(function: Any, name: str, array: Array) -> None:
    """Bind memory of ours without a copy."""
    function(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


class Table:
    """Times by column and row."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.threads: int = arguments.threads
        self._rounds: int = arguments.rounds
        self._seconds: float = arguments.seconds
        self._cells: dict[str, dict[str, str]] = {}

    def add(self, column: str, runs: Mapping[str, Run]) -> None:
        """Measure alternating runs for one column."""
        repeats = {}
        for title, run in runs.items():
            run()
            start = time.perf_counter()
            run()
            repeats[title] = max(2, round(self._seconds / (time.perf_counter() - start)))
        times: dict[str, list[float]] = {title: [] for title in runs}
        for _ in range(self._rounds):
            for title, run in runs.items():
                start = time.perf_counter()
                for _ in range(repeats[title]):
                    run()
                times[title].append((time.perf_counter() - start) / repeats[title] * 1e3)
        for title, found in times.items():
            low, middle, high = statistics.quantiles(found, n=4)
            self._cells.setdefault(title, {})[column] = f"{middle:.2f} ± {(high - low) / 2:.2f}"

    def print(self, sizes: dict[str, tuple[int, int, float, float]]) -> None:
        """Print everything as Markdown."""
        columns = [f"step, batch {batch}" for batch in BATCHES]
        columns += [f"encode, batch {batch}" for batch in BATCHES[:2]]
        print("| graph | nodes, encoder + decoder | MB | " + " | ".join(columns) + " |")
        print("|---" * (len(columns) + 3) + "|")
        for title in dict.fromkeys([*sizes, *self._cells]):
            nodes = megabytes = ""
            if title in sizes:
                encoder, decoder, *parts = sizes[title]
                nodes, megabytes = f"{encoder} + {decoder}", f"{parts[0]:.1f} + {parts[1]:.1f}"
            cells = [self._cells.get(title, {}).get(column, "") for column in columns]
            print(f"| {title} | {nodes} | {megabytes} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
