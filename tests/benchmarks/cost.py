"""How cost grows: time of a decode step with rows, cache length and vocabulary, memory with slots, and overheads.

    python -m tests.benchmarks.cost --texts build/corpus/en-de/test.gnomehelp.tsv
    python -m tests.benchmarks.cost --quick

Steps are steps of the real runtime over the real pool, whose rows all have the same age; nothing is appended, so a
step can be repeated. Points of a curve alternate like sides do. What the engine does around its steps, and the
service around the engine, is in `overhead`.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dragoman.export.bundle import Limits, Shape
from dragoman.server.budget import plan_pool
from dragoman.server.slot_types import SlotTypes
from dragoman.server.step import Wanted
from tests.benchmarks import machine, overhead
from tests.benchmarks.cost_report import cost_report
from tests.benchmarks.models import BUILT_IN_NAME, SIZES, open_model, random_model
from tests.benchmarks.rounds import Spread, alternate, repeated
from tests.benchmarks.sides import Loaded, as_precision, load
from tests.benchmarks.workload import FIRST_WORD, random_sources

SOURCE = 30
AGE = 24
ROWS = (1, 2, 4, 8, 16, 32, 48, 64)
AGES = (8, 16, 32, 64, 128, 240)
VOCABULARIES = (4_000, 8_000, 16_000, 32_000, 64_000)
SLOTS = (8, 16, 32, 64, 128, 256, 512)
_PLENTY = 1 << 50
_SHORT = 32  # tokens of source and of target


class StepBench:
    """Live rows of one age, and a step over them that can be repeated."""

    def __init__(self, loaded: Loaded, rows: int, age: int) -> None:
        """Encode `rows` sources and pretend that each has read `age` tokens."""
        self._loaded = loaded
        pool, manifest = loaded.pool, loaded.manifest
        while pool.live:
            pool.release(pool.live - 1)
        sources = random_sources([SOURCE] * rows, manifest.shape.vocab_size, first=FIRST_WORD, eos=manifest.special.eos)
        per_batch = max(1, 2048 // SOURCE)
        for start in range(0, rows, per_batch):
            batch = sources[start : start + per_batch]
            cross = loaded.runtime.encode(batch)
            pool.admit(cross, [SOURCE] * len(batch), [1] * len(batch), manifest.special.start)
        pool.cache_lengths[:rows] = age
        pool.reserve()

    def __call__(self) -> float:
        """Run one step; returns 1."""
        self._loaded.runtime.step(self._loaded.pool, Wanted.NOTHING)
        return 1.0


def step_curve(loads: Sequence[Callable[[], StepBench]], rounds: int, seconds: float) -> list[dict[str, float]]:
    """Return milliseconds of a step for each point of a curve, median and half the distance of the quartiles.

    Args:
        loads: Make the points; one is alive at a time, and each round makes them anew.
        rounds: How many.
        seconds: Of each point and round.
    """

    def run(make: Callable[[], StepBench]) -> float:
        step = make()
        step()
        return 1e3 / repeated(step, seconds)()

    found = alternate({str(i): lambda make=make: run(make) for i, make in enumerate(loads)}, rounds)  # type: ignore[misc]  # mypy cannot infer lambda defaults
    spreads = [Spread.of(values) for values in found.values()]
    return [{"ms": spread.median, "half_iqr": spread.half_iqr} for spread in spreads]


def growth(arguments: argparse.Namespace, precision: str) -> dict[str, list[dict[str, float]]]:
    """Measure all curves of a precision."""
    rounds, seconds, threads = arguments.rounds, arguments.seconds, arguments.threads
    kind = as_precision(precision)
    model = open_model(arguments.model, arguments.folder)
    loaded = load(model.bundle(kind), rows=max(arguments.rows), threads=threads)
    curves: dict[str, list[dict[str, float]]] = {}
    points = [lambda rows=rows: StepBench(loaded, rows, AGE) for rows in arguments.rows]
    curves["rows"] = _labelled(arguments.rows, step_curve(points, rounds, seconds))
    points = [lambda age=age: StepBench(loaded, arguments.at, age) for age in arguments.ages]
    curves["cache length"] = _labelled(arguments.ages, step_curve(points, rounds, seconds))
    base = SIZES["default"]
    by_vocabulary = []
    for vocabulary in arguments.vocabularies:
        size = replace(base, vocab_size=vocabulary)
        variant = random_model(f"vocabulary-{vocabulary}", size, arguments.folder)
        by_vocabulary.append(load(variant.bundle(kind), rows=arguments.at, threads=threads))
    points = [lambda loaded=loaded: StepBench(loaded, arguments.at, AGE) for loaded in by_vocabulary]
    curves["vocabulary"] = _labelled(arguments.vocabularies, step_curve(points, rounds, seconds))
    return curves


def slot_memory(shape: Shape, limits: Limits, types: SlotTypes) -> list[dict[str, float]]:
    """Return the pool's bytes by slots of the longest texts, and by those of 32 + 32 positions.

    Args:
        shape: Of the bundle.
        limits: Of the bundle.
        types: Of what the decoder keeps in a slot, as its inputs say.
    """
    short = replace(limits, max_source_tokens=_SHORT, max_target_tokens=_SHORT)

    def megabytes(slots: int, longest: Limits) -> float:
        return plan_pool(slots, shape, longest, types, cache_bytes=_PLENTY).nbytes / 1e6

    return [
        {"slots": slots, "longest_mb": megabytes(slots, limits), "short_mb": megabytes(slots, short)} for slots in SLOTS
    ]


def _labelled(values: Sequence[int], points: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{"at": value, **point} for value, point in zip(values, points, strict=True)]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print tables, write JSON."""
    arguments = read_arguments(argv)
    result: dict[str, Any] = {
        "machine": machine.describe(arguments.threads),
        "settings": {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()},
    }
    model = open_model(arguments.model, arguments.folder)
    result["growth"] = {precision: growth(arguments, precision) for precision in arguments.precisions}
    loaded = load(model.bundle(as_precision(arguments.precisions[0])), rows=1, threads=arguments.threads)
    result["memory"] = slot_memory(loaded.manifest.shape, loaded.manifest.limits, loaded.runtime.slot_types)
    service_model = open_model(BUILT_IN_NAME, arguments.folder)
    result["per_step"] = overhead.per_step(service_model.endless().bundle("int8-static"), 64, arguments.steps)
    result["served"] = overhead.served(
        service_model.bundle("int8-static"), 32, arguments.threads, arguments.served_seconds, arguments.texts
    )
    result["machine"]["load_after"] = round(os.getloadavg()[0], 2)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(cost_report(result))


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's values; --quick has the smallest defaults that run everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="base", help="of the curves over rows and cache length")
    parser.add_argument("--precisions", nargs="+", default=["fp32", "int8"])
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument("--ages", nargs="+", type=int, default=list(AGES), help="tokens in the cache")
    parser.add_argument(
        "--vocabularies", nargs="+", type=int, default=list(VOCABULARIES), help="of the built-in model's shape"
    )
    parser.add_argument("--at", type=int, default=32, help="rows of the other two curves")
    parser.add_argument("--texts", type=Path, help="TSV of texts for the served model; without it generated phrases")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each point and round")
    parser.add_argument("--steps", type=int, default=80, help="iterations that the engine's overhead is measured over")
    parser.add_argument("--served-seconds", type=float, default=20.0)
    parser.add_argument("--folder", type=Path, default=Path("build/bench/models"), help="for exported models")
    parser.add_argument("--out", type=Path, default=Path("build/bench/cost.json"))
    parser.add_argument("--quick", action="store_true", help="a trial run of a minute, with a tiny model")
    if parser.parse_args(argv).quick:  # other defaults
        parser.set_defaults(model="tiny", precisions=["int8"], at=8, rows=[1, 8], ages=[8, 64], rounds=2, seconds=0.02)
        parser.set_defaults(vocabularies=[4_000, 8_000], steps=20, served_seconds=2.0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
