"""Latency against offered load: our server and a dynamic-batching server around CTranslate2, same weights.

    python -m tests.benchmarks.service --texts build/corpus/en-de/test.gnomehelp.tsv
    python -m tests.benchmarks.service --quick

Servers and client are processes of their own on loopback and share the machine's CPUs. At each offered load every
server gets the same arrivals, one after the other in changing order, several times; a point is the median of the
repeats. Goodput is the highest load whose p99 stays within the objective and that no call fails at; between the
last load that does and the first that does not, it is searched for by halving.

The model has to end its texts itself, so it is a trained one. Both sides decode in int8. The threads of a CTranslate2
replica wait awake (`names.AWAKE`), with which it is several times as fast here as it is as installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks import machine
from tests.benchmarks.models import BUILT_IN_NAME, BenchModel, open_model
from tests.benchmarks.names import AWAKE, CTRANSLATE2, OURS
from tests.benchmarks.service_report import service_report
from tests.benchmarks.sides import as_precision
from tests.benchmarks.workload import load_pairs
from tests.e2e.process import ServerProcess, clean_environment, serve_command

_CALLS = 64  # open at a time, when the most is measured
_CLIENT_SLACK_S = 60.0  # beyond the sending: answers, imports


@dataclass(slots=True)
class Server:
    """One side.

    Attributes:
        title: For tables.
        process: The running server.
        most: Texts per second with many calls open.
        points: Summaries of the client by offered load.
    """

    title: str
    process: ServerProcess
    most: float = 0.0
    points: dict[float, list[dict[str, Any]]] = field(default_factory=dict)

    def value(self, rate: float, name: str) -> float | None:
        """Return the median of a summary's number over the repeats; None if a repeat has none."""
        found = [summary[name] for summary in self.points.get(rate, [])]
        return None if not found or None in found else statistics.median(found)

    def passes(self, rate: float, objective_s: float) -> bool:
        """Whether the load is within the objective and no call failed."""
        p99 = self.value(rate, "p99_s")
        failed = any(summary["failures"] for summary in self.points.get(rate, []))
        return p99 is not None and not failed and p99 <= objective_s

    def goodput(self, objective_s: float) -> float:
        """Return the highest load below which every load passes; 0 if none does."""
        best = 0.0
        for rate in sorted(self.points):
            if not self.passes(rate, objective_s):
                break
            best = rate
        return best

    def first_failure(self, objective_s: float) -> float | None:
        """Return the lowest load that does not pass, or None."""
        return next((rate for rate in sorted(self.points) if not self.passes(rate, objective_s)), None)


class Bench:
    """Sends loads to servers."""

    def __init__(self, servers: Sequence[Server], texts: Path, arguments: argparse.Namespace) -> None:
        """Keep what is compared."""
        self._servers = servers
        self._texts = texts
        self._arguments = arguments
        self._turn = 0

    def measure_most(self) -> None:
        """Find what each server does with many calls open."""
        for server in self._servers:
            summary = self._client(server, "--closed", str(_CALLS), seed=0)
            server.most = summary["texts_per_s"]
            _say(f"{server.title}: {server.most:.1f} texts/s with {_CALLS} calls open")

    def sweep(self, rates: Sequence[float]) -> None:
        """Measure all loads, alternating; a server that is far beyond the objective is spared higher ones."""
        lost: set[str] = set()
        for rate in rates:
            for server in self._measure(rate, [server for server in self._servers if server.title not in lost]):
                p99 = server.value(rate, "p99_s")
                if p99 is None or p99 > 4 * self._arguments.objective_s:
                    lost.add(server.title)

    def search(self) -> None:
        """Halve the gap between the last load that passes and the first that does not, for each server."""
        for _ in range(self._arguments.halvings):
            for server in self._servers:
                above = server.first_failure(self._arguments.objective_s)
                below = server.goodput(self._arguments.objective_s)
                if above is not None:
                    self._measure((above + below) / 2, [server])

    def _measure(self, rate: float, servers: list[Server]) -> list[Server]:
        for repeat in range(self._arguments.repeats):
            self._turn += 1
            turned = servers[::-1] if self._turn % 2 else servers
            for server in turned:
                summary = self._client(server, "--rate", str(rate), seed=repeat)
                server.points.setdefault(rate, []).append(summary)
                p99 = f"{1e3 * summary['p99_s']:.0f} ms" if summary["p99_s"] is not None else "no answer"
                _say(f"{server.title}: {rate:.1f} texts/s offered, p99 {p99}, failures {summary['failures']}")
        return servers

    def _client(self, server: Server, *load: str, seed: int) -> dict[str, Any]:
        arguments = self._arguments
        command = [
            sys.executable, "-m", "tests.benchmarks.arrivals", "--address", server.process.address,
            "--texts", str(self._texts), "--seconds", str(arguments.seconds), "--beams", str(arguments.beams),
            "--seed", str(seed), *load,
        ]  # fmt: skip
        limit = arguments.seconds + _CLIENT_SLACK_S
        done = subprocess.run(command, check=True, capture_output=True, timeout=limit)
        summary: dict[str, Any] = json.loads(done.stdout)
        return summary


@contextlib.contextmanager
def running(model: BenchModel, arguments: argparse.Namespace) -> Iterator[list[Server]]:
    """Start all servers; they stop at the end."""
    bundle = model.bundle(as_precision(arguments.precision))
    threads = str(arguments.threads)
    commands: dict[str, list[str]] = {}
    for replicas in sorted(arguments.replicas, reverse=True):
        of_each = max(1, arguments.threads // replicas)
        title = f"{OURS}, {replicas} x {of_each} threads" if commands else OURS
        commands[title] = serve_command("--threads", str(of_each), "--replicas", str(replicas), model=bundle)
    for replicas in arguments.replicas:
        of_each = max(1, arguments.threads // replicas)
        title = f"{CTRANSLATE2}, {replicas} x {of_each} threads" + (", awake" if of_each > 1 else "")
        commands[title] = [
            sys.executable, "-m", "tests.benchmarks.ctranslate2_server", "--model", str(model.ctranslate2()),
            "--bundle", str(bundle), "--threads", threads, "--replicas", str(replicas),
            "--window-ms", str(arguments.window_ms), "--max-batch", str(arguments.max_batch),
        ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        yield [
            Server(title, stack.enter_context(ServerProcess(command, {**clean_environment(), **AWAKE})))
            for title, command in commands.items()
        ]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print tables, write JSON."""
    arguments = read_arguments(argv)
    result: dict[str, Any] = {
        "machine": machine.describe(arguments.threads),
        "settings": {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()},
    }
    model = open_model(arguments.model, arguments.folder)
    with tempfile.TemporaryDirectory() as folder, running(model, arguments) as servers:
        texts = Path(folder) / "texts.json"
        texts.write_text(json.dumps(load_pairs(arguments.texts, arguments.count).sources), "utf-8")
        bench = Bench(servers, texts, arguments)
        bench.measure_most()
        most = max(server.most for server in servers)
        bench.sweep([most * share for share in arguments.shares])
        bench.search()
        result["servers"] = [
            {
                "title": server.title,
                "most": server.most,
                "goodput": server.goodput(arguments.objective_s),
                "points": [
                    {"rate": rate, **{name: server.value(rate, name) for name in ("p50_s", "p95_s", "p99_s")},
                     "repeats": server.points[rate]}
                    for rate in sorted(server.points)
                ],
            }
            for server in servers
        ]  # fmt: skip
    result["machine"]["load_after"] = round(os.getloadavg()[0], 2)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(service_report(result))


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's values; --quick has the smallest defaults that run everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=BUILT_IN_NAME, help=f"'{BUILT_IN_NAME}' or a checkpoint folder")
    parser.add_argument(
        "--texts",
        type=Path,
        help="TSV whose first column is sent, its lengths are the mix; without it generated phrases, for a trial run",
    )
    parser.add_argument("--count", type=int, default=500, help="texts that are used")
    parser.add_argument("--precision", default="int8-static", help="of our bundle")
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each server")
    parser.add_argument(
        "--replicas",
        nargs="+",
        type=int,
        default=[1, 2],
        help="of each side, each a server of its own: they share the threads; ours without a number has the most",
    )
    parser.add_argument("--window-ms", type=float, default=5.0, help="of CTranslate2's batches")
    parser.add_argument("--max-batch", type=int, default=32, help="of CTranslate2")
    parser.add_argument("--objective-s", type=float, default=0.5, help="that p99 has to stay within")
    parser.add_argument(
        "--shares",
        nargs="+",
        type=float,
        default=[0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.1],
        help="of the fastest server's most: offered loads",
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="of each load and repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--halvings", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("build/bench/models"), help="for exported models")
    parser.add_argument("--out", type=Path, default=Path("build/bench/service.json"))
    parser.add_argument("--quick", action="store_true", help="a trial run of about a minute")
    if parser.parse_args(argv).quick:  # other defaults
        parser.set_defaults(shares=[0.2, 0.6], seconds=2.0, repeats=1, halvings=1, replicas=[1])
    return parser.parse_args(argv)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
