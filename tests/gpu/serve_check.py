"""Does the server translate on a GPU what it translates on the CPU, how fast, and does its memory stay?

    python tests/gpu/serve_check.py prepare FOLDER     where torch is: the extras train, export, ctranslate2
    python tests/gpu/serve_check.py run FOLDER         on the machine with the GPU: the extra server-gpu alone

Two environments, because the export's onnxruntime and the GPU's overwrite each other. `prepare` needs no GPU; it writes
the built-in model and one of the paper's base size, whose texts never end by themselves, in fp32 and fp16.
`run` starts servers, prints one JSON document and is made to take less than five minutes. It exits with 1 if something
is wrong and with 2 if there is no GPU. `run --dry-run` takes every step on the CPU, to check this script. CTranslate2
is measured beside us if it is installed and finds the GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.path.insert(0, str(Path(__file__).parents[2]))

import grpc

from dragoman.model.generated import examples
from dragoman.server.device import CUDA, Device, parse_device
from dragoman.server.sessions import find_problem
from dragoman.v1 import translation_pb2 as pb
from tests.e2e import process
from tests.e2e.process import ServerProcess, clean_environment, serve_command

ROOT = Path(__file__).parents[2]
TEXTS, SPEED, CTRANSLATE2 = "texts", "speed", "ctranslate2"
PRECISIONS = ("fp32", "fp16")
# Share of texts that have to be those of the CPU in fp32. Sums in another order, and 16 bits, tip a close decision.
LEAST_EQUAL = {"fp32": 0.98, "fp16": 0.80}
# What memory may grow after the first half of the texts.
MOST_GROWTH = 0.02
BEAMS = (1, 4)
CALL_S = 120.0
START_S = 120.0


def prepare(folder: Path, *, text_model: str, speed_model: str) -> None:
    """Write the bundles, and the second model for CTranslate2."""
    from tests.benchmarks.models import open_model

    scratch = folder / "scratch"
    for kind, name in ((TEXTS, text_model), (SPEED, speed_model)):
        model = open_model(name, scratch)
        for precision in PRECISIONS:
            bundle = model.bundle(precision, devices=None)  # type: ignore[arg-type]  # mypy widens
            shutil.copytree(bundle, folder / kind / precision)
        if kind == SPEED:
            shutil.copytree(model.ctranslate2(), folder / CTRANSLATE2)
    shutil.rmtree(scratch)
    written = {str(path.parent.relative_to(folder)) for path in folder.rglob("*.json")}
    print(f"{folder}: {', '.join(sorted(written))}")


class Server:
    """A server process that was asked for one device."""

    def __init__(self, model: Path, device: str, *, rows: int) -> None:
        process.WAIT_S = START_S  # CUDA's libraries are large
        flags = ("--device", device, "--threads", "0", "--max-rows", str(rows), "--max-texts", "1024")
        self._server = ServerProcess(serve_command(*flags, model=model), clean_environment())

    def translate(self, texts: Sequence[str], *, beams: int, new_tokens: int = 0) -> tuple[list[str], int]:
        """Return the texts' translations and how many tokens these have."""
        options = pb.DecodingOptions(beam_size=beams, max_new_tokens=new_tokens)
        request = pb.TranslateRequest(texts=texts, options=options)
        found = self._server.stub.Translate(request, timeout=CALL_S).translations
        return [one.text for one in found], sum(one.target_tokens for one in found)

    @property
    def device(self) -> str:
        """What it says that it computes on."""
        return str(self._server.stub.GetModel(pb.GetModelRequest()).model.device)

    @property
    def resident_bytes(self) -> int:
        """Memory of the process."""
        pages = int(Path(f"/proc/{self._server.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> int:
        """Return the exit code."""
        return self._server.stop()


@contextmanager
def serving(model: Path, device: str, problems: list[str], *, rows: int) -> Iterator[Server]:
    """Start a server and stop it; where it computes and how it ends is looked at."""
    server = Server(model, device, rows=rows)
    try:
        wanted = str(parse_device(device))
        if server.device != wanted:
            problems.append(f"{model.name} was to be served on {wanted} and says {server.device}")
        yield server
    finally:
        if code := server.stop():
            problems.append(f"the server of {model.name} on {device} ended with {code}")


def make_texts(count: int) -> list[str]:
    """Return sentences of different lengths, the same every time."""
    sentences = [example.source for example in islice(examples(seed=7), count)]
    return [", ".join(sentences[i : i + 1 + i % 4]) for i in range(count)]


def compare(found: Sequence[str], expected: Sequence[str]) -> dict[str, float]:
    """Return the share of equal texts, and how alike those are that differ."""
    pairs = [(one, other) for one, other in zip(found, expected, strict=True) if one != other]
    alike = [SequenceMatcher(None, *pair, autojunk=False).ratio() for pair in pairs]
    return {
        "equal": round(1 - len(pairs) / len(expected), 4),
        "likeness_of_others": round(statistics.mean(alike), 4) if alike else 1.0,
    }


def gpu_bytes(device: Device) -> int:
    """Return memory in use on a GPU, of all processes; 0 for the CPU."""
    if device.kind == "cpu":
        return 0
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", str(device.index)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) << 20


def check_texts(folder: Path, arguments: argparse.Namespace, problems: list[str]) -> dict[str, Any]:
    """Compare each precision's texts with those of the CPU, and memory at half time with memory at the end."""
    device = parse_device(arguments.device)
    assert device is not None
    texts = make_texts(arguments.texts)
    with serving(folder / TEXTS / "fp32", "cpu", problems, rows=64) as server:
        expected = {beams: server.translate(texts, beams=beams)[0] for beams in BEAMS}
    report: dict[str, Any] = {}
    for precision in arguments.precisions:
        with serving(folder / TEXTS / precision, arguments.device, problems, rows=64) as server:
            found = {beams: server.translate(texts, beams=beams)[0] for beams in BEAMS}
            memory = []
            for half in range(2):
                for beams in BEAMS:
                    mixed = texts[half::2] if beams == 1 else texts[::-3]
                    server.translate(mixed, beams=beams)
                memory.append({"rss": server.resident_bytes, "gpu": gpu_bytes(device)})
        rows: dict[str, Any] = {f"beam {beams}": compare(found[beams], expected[beams]) for beams in BEAMS}
        for name, row in rows.items():
            if row["equal"] < LEAST_EQUAL[precision]:
                problems.append(f"{precision}, {name}: only {row['equal']:.1%} of the texts are those of the CPU")
        for kind, before in memory[0].items():
            if memory[1][kind] > before * (1 + MOST_GROWTH):
                problems.append(f"{precision}: {kind} memory grew from {before} to {memory[1][kind]} bytes")
        report[precision] = {**rows, "memory": memory}
    return report


def best_rate(translate: Callable[[], int], repeats: int) -> float:
    """Return tokens per second: the best of some runs, after one that is not timed."""
    translate()
    rates = []
    for _ in range(repeats):
        start = time.perf_counter()
        tokens = translate()
        rates.append(tokens / (time.perf_counter() - start))
    return round(max(rates), 1)


def check_speed(folder: Path, arguments: argparse.Namespace, problems: list[str]) -> list[dict[str, Any]]:
    """Measure one call with so many texts, through the whole service."""
    text = " ".join(f"w{4 + 37 * i % 20000}" for i in range(arguments.source_words))
    rows = []
    most = max(arguments.batches) * max(BEAMS)
    for precision in arguments.precisions:
        with serving(folder / SPEED / precision, arguments.device, problems, rows=most) as server:
            for beams in BEAMS:
                for batch in arguments.batches:
                    rate = best_rate(
                        lambda beams=beams, batch=batch: server.translate(  # type: ignore[misc]  # lambda defaults
                            [text] * batch, beams=beams, new_tokens=arguments.new_tokens
                        )[1],
                        arguments.repeats,
                    )
                    rows.append({"precision": precision, "beams": beams, "batch": batch, "tokens_per_s": rate})
    return rows


def measure_ctranslate2(folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]] | str:
    """Measure CTranslate2 in float16 on the same GPU, or say why not. It gets tokens and gives tokens."""
    try:
        import ctranslate2
    except ImportError:
        return "not installed"
    device = parse_device(arguments.device)
    assert device is not None
    if not (folder / CTRANSLATE2).is_dir():
        return f"{folder / CTRANSLATE2} is missing"
    if device.kind == "cuda" and not ctranslate2.get_cuda_device_count():
        return f"version {ctranslate2.__version__} finds no GPU"
    kind = "float16" if device.kind == "cuda" else "float32"
    translator = ctranslate2.Translator(
        str(folder / CTRANSLATE2), device=device.kind, device_index=device.index, compute_type=kind
    )
    source = [f"w{4 + 37 * i % 20000}" for i in range(arguments.source_words)]

    def translate(batch: int, beams: int) -> int:
        found = translator.translate_batch(
            [source] * batch, beam_size=beams, max_batch_size=batch, max_decoding_length=arguments.new_tokens
        )
        return sum(len(result.hypotheses[0]) for result in found)

    rows = []
    for beams in BEAMS:
        for batch in arguments.batches:
            rate = best_rate(lambda batch=batch, beams=beams: translate(batch, beams), arguments.repeats)  # type: ignore[misc]  # lambda defaults
            rows.append({"precision": kind, "beams": beams, "batch": batch, "tokens_per_s": rate})
    return rows


def describe_machine(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what numbers mean nothing without."""
    versions = {}
    for name in ("dragoman", "onnxruntime-gpu", "onnxruntime", "cuda-bindings", "ctranslate2"):
        try:
            versions[name] = version(name)
        except ImportError:
            continue
    gpu = "none"
    if arguments.device != "cpu":
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    return {"gpu": gpu, "cpu": platform.processor() or platform.machine(), "cpus": os.cpu_count(), **versions}


def run(folder: Path, arguments: argparse.Namespace) -> int:
    """Check and measure; returns the exit code."""
    started = time.monotonic()
    problems: list[str] = []
    report: dict[str, Any] = {"machine": describe_machine(arguments), "device": arguments.device}
    try:
        report["texts"] = check_texts(folder, arguments, problems)
        report["speed"] = check_speed(folder, arguments, problems)
    except (AssertionError, grpc.RpcError) as error:
        problems.append(f"{type(error).__name__}: {str(error)[:2000]}")
    report["ctranslate2"] = measure_ctranslate2(folder, arguments)
    report |= {"seconds": round(time.monotonic() - started, 1), "problems": problems}
    print(json.dumps(report, indent=2))
    return 1 if problems else 0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("prepare", help="export the bundles; needs torch and no GPU")
    first.add_argument("folder", type=Path, help="to be made")
    first.add_argument("--text-model", default="built-in", help="name as in tests/benchmarks/models.py, or a path")
    first.add_argument("--speed-model", default="base", help="likewise; random weights, so that no text ends early")
    second = commands.add_parser("run", help="serve them and look")
    second.add_argument("folder", type=Path, help="what `prepare` made")
    second.add_argument("--device", default="cuda", type=gpu, help="cuda or cuda:N")
    second.add_argument("--dry-run", action="store_true", help="take every step on the CPU, with the fp32 bundles")
    second.add_argument("--texts", type=int, default=200, help="how many are compared")
    second.add_argument("--batches", type=_numbers, default=(1, 8, 32, 64), help="texts in a call, with commas")
    second.add_argument("--source-words", type=int, default=30, help="of each text whose time is taken")
    second.add_argument("--new-tokens", type=int, default=64, help="of each text whose time is taken")
    second.add_argument("--repeats", type=int, default=3, help="of each time that is taken")
    found = parser.parse_args(arguments)
    if found.command == "run":
        found.precisions = ("fp32",) if found.dry_run else PRECISIONS
        found.device = "cpu" if found.dry_run else found.device
    return found


def gpu(text: str) -> str:
    device = parse_device(text)
    if device is None or device.kind != CUDA:
        raise ValueError("no GPU")
    return text


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def main() -> None:
    """Do what the command line says."""
    arguments = parse()
    if arguments.command == "prepare":
        prepare(arguments.folder, text_model=arguments.text_model, speed_model=arguments.speed_model)
        return
    device = parse_device(arguments.device)
    problem = find_problem(device.index) if device is not None and device.kind == "cuda" else None
    if problem is not None:
        print(f"nothing to check here: {problem}", file=sys.stderr)
        sys.exit(2)
    sys.exit(run(arguments.folder, arguments))


if __name__ == "__main__":
    main()
