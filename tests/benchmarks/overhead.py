"""What the service costs besides the model: plan and commit of a step, and everything around the engine."""

from __future__ import annotations

import asyncio
import contextlib
import cProfile
import json
import os
import pstats
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dragoman.export.bundle import load_manifest
from dragoman.server.app import Server
from dragoman.server.config import ServerConfig
from dragoman.server.metrics import Metrics
from dragoman.server.options import SearchOptions
from tests.benchmarks.compute_clock import ComputeClock, cpu_by_thread
from tests.benchmarks.sides import Countdown, load, make_request
from tests.benchmarks.workload import FIRST_WORD, lengths, load_pairs, random_sources

_LISTED = 12
_KINDS: dict[str, dict[str, Any]] = {"greedy": {}, "beam 4": {"beams": 4}}


def per_step(folder: Path, rows: int, steps: int) -> list[dict[str, Any]]:
    """Measure CPU time of an iteration of the engine outside ONNX Runtime, with `rows` live rows.

    Args:
        folder: Bundle of a model that never ends a text.
        rows: Slots, all of them in use.
        steps: Iterations that count.

    Returns:
        Per kind of search: microseconds (median and 90th percentile) and the functions that took most of them.
    """
    found = []
    for kind, options in _KINDS.items():
        loaded = load(folder, rows=rows, threads=1)
        manifest, pool, engine = loaded.manifest, loaded.pool, loaded.engine
        search = SearchOptions(max_new_tokens=manifest.limits.max_target_tokens, **options)
        count = rows // search.beams
        sources = random_sources(
            lengths("mixed", count), manifest.shape.vocab_size, first=FIRST_WORD, eos=manifest.special.eos
        )
        engine.submit([make_request(source, search, Countdown(count)) for source in sources])
        with ComputeClock().installed() as clock:
            while pool.live < rows:
                engine.iterate()
            times = []
            for _ in range(steps):
                start, before = time.thread_time(), clock.cpu_seconds
                engine.iterate()
                times.append(time.thread_time() - start - (clock.cpu_seconds - before))
            assert clock.calls > steps, "the runtime no longer calls sessions in the way that is measured"
            profile = cProfile.Profile()
            profile.enable()
            for _ in range(steps):
                engine.iterate()
            profile.disable()
        times.sort()
        found.append(
            {
                "kind": kind, "rows": rows, "median_us": 1e6 * statistics.median(times),
                "p90_us": 1e6 * times[int(0.9 * len(times))], "profile": _costliest(profile, steps),
            }
        )  # fmt: skip
    return found


def _costliest(profile: cProfile.Profile, steps: int) -> list[dict[str, Any]]:
    """Return the functions that took most time themselves; profiling makes small ones look more than they are."""
    statistics_of: Any = pstats.Stats(profile)
    rows = []
    for (file, line, name), (_, calls, own, _, _) in statistics_of.stats.items():
        where = f"{Path(file).name}:{line} {name}" if line else name
        rows.append({"function": where, "calls_per_step": calls / steps, "us_per_step": 1e6 * own / steps})
    return sorted(rows, key=lambda row: -row["us_per_step"])[:_LISTED]


def served(folder: Path, rows: int, threads: int, seconds: float, texts: Path | None) -> dict[str, Any]:
    """Serve calls of another process with `rows` calls open, and return where CPU time went.

    Args:
        folder: Bundle of a model that ends its texts.
        rows: Slots, and calls of one text that are open.
        threads: Of operators.
        seconds: That count.
        texts: TSV of texts; None makes some.
    """
    with contextlib.redirect_stdout(sys.stderr), ComputeClock().installed() as clock:
        return asyncio.run(_serve(folder, rows, threads, seconds, texts, clock))


async def _serve(
    folder: Path, rows: int, threads: int, seconds: float, texts: Path | None, clock: ComputeClock
) -> dict[str, Any]:
    config = ServerConfig(model=str(folder), max_rows=rows, threads=threads, grpc_port=0, http_port=0)
    server = Server(config, load_manifest(folder))
    await server.start()
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "texts.json"
        file.write_text(json.dumps(load_pairs(texts, 500).sources), "utf-8")
        command = [
            "-m", "tests.benchmarks.arrivals", "--address", f"127.0.0.1:{server.port}", "--texts", str(file),
            "--closed", str(rows), "--seconds", str(seconds), "--warm-up-s", "0.2",
        ]  # fmt: skip
        before, compute_before, start = cpu_by_thread(), (clock.cpu_seconds, clock.seconds), time.perf_counter()
        client = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
        output, _ = await client.communicate()
        wall, after = time.perf_counter() - start, cpu_by_thread()
        children = os.times().children_user + os.times().children_system
    step_rows = _mean(server.metrics, "decode_step_rows")
    await server.stop()
    spent = {number: (name, cpu - before.get(number, ("", 0.0))[1]) for number, (name, cpu) in after.items()}
    in_session, in_session_wall = clock.cpu_seconds - compute_before[0], clock.seconds - compute_before[1]
    return {
        **_groups(spent, in_session),
        "wall_s": wall, "session_wall_s": in_session_wall, "client_cpu_s": children, "rows_per_step": step_rows,
        "client": json.loads(output),
    }  # fmt: skip


def _groups(spent: dict[int, tuple[str, float]], in_session: float) -> dict[str, Any]:
    """Sum up CPU seconds: the engine's thread computes and plans; nameless threads are the runtime's workers."""
    groups = {"engine thread, outside sessions": -in_session, "workers of ONNX Runtime": 0.0}
    for name, cpu in spent.values():
        if name == "engine":
            group = "engine thread, outside sessions"
        elif name.startswith("python"):
            group = "workers of ONNX Runtime"
        elif name == "MainThread":
            group = "event loop: gRPC, validation, answers"
        elif name.startswith("tokenizer"):
            group = "tokenizer"
        else:
            group = "gRPC's own threads and others"
        groups[group] = groups.get(group, 0.0) + cpu
    compute = in_session + groups.pop("workers of ONNX Runtime")
    return {"compute_cpu_s": compute, "overhead_cpu_s": groups, "overhead_share": sum(groups.values()) / compute}


def _mean(metrics: Metrics, name: str) -> float:
    values = {
        sample.name: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name in (f"dragoman_{name}_sum", f"dragoman_{name}_count")
    }
    return values[f"dragoman_{name}_sum"] / max(1.0, values[f"dragoman_{name}_count"])
