"""Do the exported graphs run on a GPU as a whole, with the cache in place, and do they say what they say on the CPU?

    pip install --editable '.[export]'        # in an environment of its own
    pip uninstall --yes onnxruntime           # first: it and onnxruntime-gpu overwrite each other's files
    pip install 'onnxruntime-gpu[cuda,cudnn]>=1.27'
    python tests/gpu/export_check.py

Exports small models of every kind and one of the paper's base size with random weights in fp32 and fp16, runs
encoder and decoder on the GPU with all tensors bound to its memory, and prints a table. Exits with 1 if anything is
wrong, with 2 if there is no GPU to check on. `--dry-run` takes the same steps on the CPU, to check this script.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import onnxruntime
import torch

from dragoman.export import bundle
from dragoman.export.precision import Precision, write_graphs
from dragoman.model.config import ModelConfig
from dragoman.model.transformer import Transformer
from dragoman.model.vocab import SPECIAL_IDS, SpecialIds
from tests.fakes.bundles import make_checkpoint
from tests.fakes.variants import VARIANTS

BASE: dict[str, Any] = {"vocab_size": 32000}
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16")
SOURCES = (30, 7, 64, 12)
STEPS = 16
# Of the spread of the logits: sums in another order, and the rounding of fp16.
TOLERANCE = {"fp32": 1e-3, "fp16": 5e-2}
# ONNX Runtime computes with sizes on the CPU.
SIZE_OPERATORS = {"Shape", "Squeeze", "Unsqueeze", "Concat", "Range", "Gather", "Add"}
NOT_IN_PLACE = "in-place optimization not activated"
_NUMPY = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}

Array = np.ndarray[Any, Any]


@dataclass
class Result:
    """What one model in one precision did.

    Attributes:
        error: Of the logits, by their spread.
        equal: Rows whose next ids are those of the CPU throughout.
        elsewhere: Operators that ran on the CPU, but for those on sizes.
        copies: Nodes between devices in a step.
        milliseconds: Of a decode step by batch.
        problems: Sentences.
    """

    error: float = 0.0
    equal: int = 0
    elsewhere: Counter[str] = field(default_factory=Counter)
    copies: int = 0
    milliseconds: dict[int, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class Graphs:
    """Both sessions of one model on one device."""

    def __init__(self, folder: Path, device: str, *, profile: bool = False) -> None:
        self.device = device
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # it warns of optional inputs, which are meant
        self.run_options = onnxruntime.RunOptions()
        self.run_options.log_severity_level = 2
        if profile:
            options.enable_profiling = True
            options.profile_file_prefix = str(folder / "profile")
        # TF32 would compare a product of 10 bits with one of 23.
        providers: list[Any] = [("CUDAExecutionProvider", {"use_tf32": "0"})] if device == "cuda" else []
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(folder / name, options, [*providers, "CPUExecutionProvider"])
            for name in bundle.GRAPHS
        )
        self.types = {value.name: _NUMPY[value.type] for value in self.decoder.get_inputs()}

    def value(self, array: Array) -> Any:
        """Return a copy of an array in the device's memory."""
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), self.device, 0)

    def run(self, session: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        """Run with everything bound."""
        binding = session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            binding.bind_ortvalue_output(name, value)
        session.run_with_iobinding(binding, self.run_options)

    def encode(self, ids: Array, lengths: Array) -> dict[str, Any]:
        """Return what a step needs to know about the sources, on the device."""
        known = {bundle.SOURCE_LENGTHS: self.value(lengths)}
        outputs = {
            value.name: self.value(
                np.zeros((len(ids), value.shape[1], ids.shape[1], value.shape[3]), self.types[value.name])
            )
            for value in self.encoder.get_outputs()
        }
        self.run(self.encoder, {bundle.INPUT_IDS: self.value(ids), **known}, outputs)
        return {**known, **outputs}


class Decoder:
    """Steps of some rows; caches are bound to one buffer for reading and writing."""

    def __init__(self, graphs: Graphs, encoded: dict[str, Any], rows: int, positions: int, vocab_size: int) -> None:
        self.graphs, self.encoded, self.rows, self.vocab_size = graphs, encoded, rows, vocab_size
        sizes = {"batch": rows, "cache": positions}
        self.states, self.others = {}, {}
        for value in graphs.decoder.get_inputs():
            if value.name.startswith(("self_", "cell")):
                size = [sizes.get(axis, axis) for axis in value.shape]
                self.states[value.name] = graphs.value(np.zeros(size, graphs.types[value.name]))
                if value.name.startswith("cell"):  # a cell is not written where it is read
                    self.others[value.name] = graphs.value(np.zeros(size, graphs.types[value.name]))

    def step(self, tokens: Array, ages: Array) -> tuple[Array, Array]:
        """Return next ids [B, Q] and logits [B, Q, V]."""
        graphs, new = self.graphs, tokens.shape[1]
        next_ids = graphs.value(np.zeros((self.rows, new), np.int64))
        logits = graphs.value(np.zeros((self.rows, new, self.vocab_size), np.float32))
        inputs = {bundle.INPUT_IDS: graphs.value(tokens), bundle.CACHE_LENGTHS: graphs.value(ages)}
        outputs = {bundle.NEXT_IDS: next_ids, bundle.LOGITS: logits}
        outputs |= {f"updated_{name}": self.others.get(name, value) for name, value in self.states.items()}
        graphs.run(graphs.decoder, {**inputs, **self.encoded, **self.states}, outputs)
        for name, other in self.others.items():
            self.others[name], self.states[name] = self.states[name], other
        return np.array(next_ids.numpy()), np.array(logits.numpy())  # copies: the memory goes with the value


def decode(graphs: Graphs, ids: Array, lengths: Array, special: SpecialIds, vocab_size: int) -> tuple[Array, Array]:
    """Return next ids [B, steps] and logits [B, steps, V]; the first call reads three tokens, later ones one."""
    rows = len(ids)
    decoder = Decoder(graphs, graphs.encode(ids, lengths), rows, STEPS + 4, vocab_size)
    prefix = np.random.default_rng(0).integers(4, vocab_size, (rows, 3))
    prefix[:, 0] = special.start
    tokens, age = prefix, 0
    all_ids, all_logits = [], []
    for _ in range(STEPS):
        next_ids, logits = decoder.step(tokens, np.full(rows, age, np.int64))
        age += tokens.shape[1]
        tokens = next_ids[:, -1:]
        all_ids.append(tokens)
        all_logits.append(logits[:, -1:])
    return np.concatenate(all_ids, 1), np.concatenate(all_logits, 1)


def on_request(graphs: Graphs, ids: Array, lengths: Array, special: SpecialIds, vocab_size: int) -> dict[str, Array]:
    """Return what a first step of two tokens computes only if it is asked: candidates, normalizer, alignment."""
    rows = len(ids)
    encoded = graphs.encode(ids, lengths)
    decoder = Decoder(graphs, encoded, rows, 4, vocab_size)
    tokens = np.full((rows, 2), special.start)
    tokens[:, 1] = np.arange(4, 4 + rows)
    binding = graphs.decoder.io_binding()
    inputs = {bundle.INPUT_IDS: graphs.value(tokens), bundle.CACHE_LENGTHS: graphs.value(np.zeros(rows, np.int64))}
    for name, value in {**inputs, **encoded, **decoder.states}.items():
        binding.bind_ortvalue_input(name, value)
    names: list[str] = []
    for asked, outputs in bundle.ON_REQUEST.items():
        # The runtime looks at it to choose a branch; on the GPU it would be fetched first.
        binding.bind_ortvalue_input(asked, onnxruntime.OrtValue.ortvalue_from_numpy(np.ones(1, np.bool_), "cpu", 0))
        names += outputs
    for name in names:
        binding.bind_output(name, graphs.device)
    graphs.decoder.run_with_iobinding(binding)
    return dict(zip(names, binding.copy_outputs_to_cpu(), strict=True))


def on_request_problems(found: dict[str, Array], expected: dict[str, Array], tolerance: float) -> list[str]:
    """Compare what two devices computed on request; ids only where their scores tell them apart."""
    problems = []
    for name in (bundle.CANDIDATE_SCORES, bundle.LOG_NORMALIZER, bundle.ALIGNMENT):
        difference = float(np.abs(found[name] - expected[name]).max())
        if not difference <= tolerance:
            problems.append(f"{name} differs by {difference:.2g}")
    best = bundle.CANDIDATE_IDS
    gap = expected[bundle.CANDIDATE_SCORES][..., 0] - expected[bundle.CANDIDATE_SCORES][..., 1]
    if (found[best][..., 0] != expected[best][..., 0])[gap > 2 * tolerance].any():
        problems.append("the best candidates differ")
    return problems


def check(model: Transformer, special: SpecialIds, precision: Precision, device: str, *, timed: bool) -> Result:
    """Export a model, run it on the device and on the CPU, and compare."""
    result = Result()
    size = model.config.vocab_size
    generator = np.random.default_rng(1)
    lengths = np.minimum(np.array(SOURCES, np.int64), model.config.max_source_tokens)
    ids = generator.integers(4, model.config.source_vocab_size or size, (len(lengths), lengths.max()))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_graphs(model, special, folder, precision)
        graphs = Graphs(folder, device)
        log, (found_ids, found) = logged(lambda: decode(graphs, ids, lengths, special, size))
        if NOT_IN_PLACE in log:
            result.problems.append("the cache is copied in every step")
        on_cpu = Graphs(folder, "cpu")
        expected_ids, expected = decode(on_cpu, ids, lengths, special, size)
        allowed = np.isfinite(expected)
        # Behind a token that differs, the rows read different texts.
        same = np.cumprod(np.pad(found_ids == expected_ids, ((0, 0), (1, 0)), constant_values=True)[:, :-1], 1).astype(
            bool
        )
        compared = allowed & same[..., None]
        result.error = float(np.abs(found[compared] - expected[compared]).max() / expected[allowed].std())
        result.equal = int((found_ids == expected_ids).all(1).sum())
        if not result.error <= TOLERANCE[precision]:
            result.problems.append(f"logits differ by {result.error:.2g} of their spread")
        asked = [on_request(of_device, ids, lengths, special, size) for of_device in (graphs, on_cpu)]
        tolerance = TOLERANCE[precision] * max(1.0, float(expected[allowed].std()))
        result.problems += on_request_problems(asked[0], asked[1], tolerance)
        if len(np.unique(expected_ids)) < 3:
            result.problems.append("the texts do not vary, so their equality proves nothing")
        result.elsewhere, result.copies = nodes_elsewhere(folder, device, ids, lengths, special, size)
        if result.elsewhere:
            result.problems.append(f"ran on the CPU: {dict(result.elsewhere)}")
        if timed:
            result.milliseconds = {batch: step_time(graphs, batch, special, size) for batch in (1, 8, 32)}
    return result


def nodes_elsewhere(
    folder: Path, device: str, ids: Array, lengths: Array, special: SpecialIds, size: int
) -> tuple[Counter[str], int]:
    """Return operators that the profiler saw on the CPU, and copies between devices in each step."""
    graphs = Graphs(folder, device, profile=True)
    decode(graphs, ids, lengths, special, size)
    elsewhere: Counter[str] = Counter()
    copies = 0
    for session in (graphs.encoder, graphs.decoder):
        for event in json.loads(Path(session.end_profiling()).read_text()):
            arguments = event.get("args", {})
            if "provider" not in arguments or not event["name"].endswith("kernel_time"):
                continue
            copies += arguments["op_name"].startswith("Memcpy")
            if device == "cuda" and arguments["provider"] == "CPUExecutionProvider":
                elsewhere[arguments["op_name"]] += arguments["op_name"] not in SIZE_OPERATORS
    return +elsewhere, round(copies / STEPS)


def step_time(graphs: Graphs, rows: int, special: SpecialIds, vocab_size: int) -> float:
    """Return the median milliseconds of a step with everything bound before."""
    lengths = np.full(rows, 30, np.int64)
    encoded = graphs.encode(np.full((rows, 30), 7), lengths)
    decoder = Decoder(graphs, encoded, rows, 32, vocab_size)
    inputs = {
        bundle.INPUT_IDS: graphs.value(np.full((rows, 1), special.start)),
        bundle.CACHE_LENGTHS: graphs.value(np.full(rows, 24)),
    }
    outputs = {bundle.NEXT_IDS: graphs.value(np.zeros((rows, 1), np.int64))}
    outputs |= {f"updated_{name}": decoder.others.get(name, value) for name, value in decoder.states.items()}
    binding = graphs.decoder.io_binding()
    for name, value in {**inputs, **encoded, **decoder.states}.items():
        binding.bind_ortvalue_input(name, value)
    for name, value in outputs.items():
        binding.bind_ortvalue_output(name, value)
    times = []
    for _ in range(60):
        start = time.perf_counter()
        graphs.decoder.run_with_iobinding(binding)
        binding.synchronize_outputs()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[10:])


def logged(function: Callable[[], Any]) -> tuple[str, Any]:
    """Return what the runtime wrote to its log meanwhile, and the result."""
    with tempfile.TemporaryFile() as log:
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            result = function()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        log.seek(0)
        return log.read().decode(errors="replace"), result


def device_or_exit(*, dry: bool) -> str:
    """Return where to run."""
    if dry:
        return "cpu"
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        print(
            "this onnxruntime has no CUDA provider; in an environment of its own: pip uninstall --yes onnxruntime "
            "onnxruntime-gpu, then pip install 'onnxruntime-gpu[cuda,cudnn]>=1.27'"
        )
        sys.exit(2)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = make_checkpoint()
        write_graphs(checkpoint.model, checkpoint.tokenizer.special, Path(folder), "fp32")
        log, session = logged(
            lambda: onnxruntime.InferenceSession(Path(folder) / bundle.ENCODER, providers=["CUDAExecutionProvider"])
        )
    if session.get_providers()[0] != "CUDAExecutionProvider":
        print(f"there is no GPU that ONNX Runtime can use:\n{log.strip()}")
        sys.exit(2)
    return "cuda"


def main() -> None:
    """Print a row per model and precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="take every step on the CPU")
    parser.add_argument("--skip-base", action="store_true", help="small models only")
    arguments = parser.parse_args()
    device = device_or_exit(dry=arguments.dry_run)
    print(f"onnxruntime {onnxruntime.__version__} on {device}\n")
    print("| model | precision | logit error | equal rows | copies | step at batch 1 / 8 / 32, ms | |")
    print("|---|---|---|---|---|---|---|")
    models: dict[str, tuple[Transformer, SpecialIds]] = {}
    for name, settings in {"default": {}, **VARIANTS}.items():
        checkpoint = make_checkpoint(gain=2, **settings)
        models[name] = checkpoint.model, checkpoint.tokenizer.special
    if not arguments.skip_base:
        torch.manual_seed(0)
        models["base"] = Transformer(ModelConfig(**BASE)).eval(), SPECIAL_IDS
    wrong = 0
    for name, (model, special) in models.items():
        for precision in PRECISIONS:
            result = check(model, special, precision, device, timed=name == "base")
            wrong += bool(result.problems)
            times = " / ".join(f"{value:.2f}" for value in result.milliseconds.values())
            verdict = "; ".join(result.problems) or "ok"
            equal = f"{result.equal} of {len(SOURCES)}"
            print(f"| {name} | {precision} | {result.error:.1e} | {equal} | {result.copies} | {times} | {verdict} |")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
