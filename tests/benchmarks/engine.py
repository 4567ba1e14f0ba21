"""Tokens per second of our engine, CTranslate2 and the `generate` of transformers, with the same weights.

    python -m tests.benchmarks.engine --pairs build/corpus/en-de/test.gnomehelp.tsv
    python -m tests.benchmarks.engine --quick

Two kinds of work:

- `mixed` and `equal`: one call with as many texts as the batch has rows, sources of random ids (lengths as texts
  have them, or all the same), a model that never ends a text, a fixed number of steps. Every side does exactly the
  same work, so this compares engines and nothing else.
- `corpus`, for trained models: texts of a file, ended by the model; `rows` texts are worked on at a time. Here an
  engine that refills its batch, or sorts by length, gains what it gains in life. chrF says what a precision costs.

CTranslate2 runs as it is installed and, in a process of its own, with OpenMP threads that wait awake (`names.AWAKE`).

Every number is target tokens per second of whole calls, encoding included, tokenizing not. Sides alternate (see
`rounds`). In fp32 the outputs of all sides are compared, so that it is known that they compute the same model.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import sacrebleu

from dragoman.export.bundle import DECODER
from tests.benchmarks import limits, machine
from tests.benchmarks.baselines import Job, Outcome, Side
from tests.benchmarks.models import BUILT_IN_NAME, SIZES, BenchModel, open_model
from tests.benchmarks.names import HUGGING_FACE, OURS, PRECISIONS
from tests.benchmarks.rounds import Spread, alternate, repeated
from tests.benchmarks.sides import as_precision, open_side
from tests.benchmarks.tables import engine_report
from tests.benchmarks.workload import FIRST_WORD, Pairs, lengths, load_pairs, random_sources

CORPUS = "corpus"
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(slots=True)
class Record:
    """One side in one case.

    Attributes:
        model: Title of the model.
        workload: "mixed", "equal" or "corpus".
        beams: 1 is greedy.
        batch: Rows.
        side: Engine.
        precision: Of its weights.
        rates: Target tokens per second, by round.
        decode_share: Of the side's own time, what decode steps took; None where it does not say.
        step_s: Seconds of a decode step, likewise; only where all rows make every step together.
        equal_to_first: Share of outputs equal to those of the case's first side.
        chrf: Of a corpus.
    """

    model: str
    workload: str
    beams: int
    batch: int
    side: str
    precision: str
    rates: list[float] = field(default_factory=list)
    decode_share: float | None = None
    step_s: float | None = None
    equal_to_first: float | None = None
    chrf: float | None = None


class Case:
    """Several sides with one job."""

    def __init__(self, model: BenchModel, workload: str, job: Job, pairs: Pairs | None) -> None:
        """Keep what is compared."""
        self._model = model
        self._workload = workload
        self._job = job
        self._pairs = pairs

    def measure(self, sides: Sequence[Side], arguments: argparse.Namespace) -> list[Record]:
        """Run every side in every round; the slow ones in the first rounds only."""
        clock = CLOCKS[arguments.clock]
        first: list[list[int]] = []
        records: dict[str, Record] = {}
        runs: dict[str, Callable[[], float]] = {}
        for side in sides:
            side.prepare(self._job)
            outcome = side.run()
            first = first or outcome.targets
            title = f"{side.title} {side.precision}"
            records[title] = self._describe(side, outcome, first)
            runs[title] = repeated(lambda side=side, r=records[title]: self._once(side, r), arguments.seconds, clock)  # type: ignore[misc]  # mypy cannot infer lambda defaults
        only = {title: arguments.slow_rounds for title in runs if title.startswith(HUGGING_FACE)}
        for title, rates in alternate(runs, arguments.rounds, only=only).items():
            records[title].rates = rates
        return list(records.values())

    def _once(self, side: Side, record: Record) -> float:
        start = time.perf_counter()
        outcome = side.run()
        whole = time.perf_counter() - start
        if outcome.decode_s is not None:
            record.decode_share = outcome.decode_s / whole
            if outcome.steps == self._job.new_tokens:  # all rows together from the first step to the last
                record.step_s = outcome.decode_s / outcome.steps
        return outcome.tokens

    def _describe(self, side: Side, outcome: Outcome, first: Sequence[list[int]]) -> Record:
        same = sum(one == other for one, other in zip(outcome.targets, first, strict=True)) / len(first)
        record = Record(
            self._model.title, self._workload, self._job.beams, self._job.rows, side.title, side.precision,
            equal_to_first=same,
        )  # fmt: skip
        if self._pairs is not None:
            tokenizer = self._model.checkpoint.tokenizer
            texts = [tokenizer.decode(target) for target in outcome.targets]
            record.chrf = float(sacrebleu.corpus_chrf(texts, [self._pairs.references]).score)
        elif outcome.tokens != self._job.new_tokens * len(self._job.sources):
            raise RuntimeError(f"{side.title} made {outcome.tokens} tokens, not as many as it was told")
        return record


def cases(model: BenchModel, arguments: argparse.Namespace) -> list[tuple[BenchModel, Case]]:
    """Return what is measured with a model; cases of one BenchModel follow each other."""
    special = model.checkpoint.tokenizer.special
    found: list[tuple[BenchModel, Case]] = []
    endless = model.endless()
    for workload in arguments.workloads:
        for beams in arguments.beams if workload == "mixed" else [1]:
            for batch in arguments.batches:
                sizes = lengths(workload, batch)
                sources = random_sources(sizes, model.config.vocab_size, first=FIRST_WORD, eos=special.eos)
                found.append((endless, Case(endless, workload, Job(sources, arguments.steps, beams, batch), None)))
    if model.trained and arguments.pairs is not None:
        for beams in arguments.beams:
            for batch in arguments.batches:
                # Enough for some batches, and not so many that one row at a time takes minutes.
                pairs = load_pairs(arguments.pairs, min(arguments.texts, max(16, 4 * batch)))
                sources = [model.checkpoint.tokenizer.encode(text) for text in pairs.sources]
                limit = min(model.config.max_target_tokens, 2 * max(map(len, sources)))
                found.append((model, Case(model, CORPUS, Job(sources, limit, beams, batch), pairs)))
    return found


def open_sides(model: BenchModel, arguments: argparse.Namespace) -> list[Side]:
    """Load a model into all engines that were asked for, ours in fp32 first."""
    return [
        open_side(title, precision, model, arguments.threads)
        for title in arguments.sides
        for precision in PRECISIONS[title]
        if precision in arguments.precisions
    ]


def step_costs(model: BenchModel, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what a decode step has to compute and to read, and how fast the machine reads so many bytes."""
    config = model.config
    layer = 6 * config.d_model**2 + 2 * config.d_model * config.d_ff  # cross keys and values belong to the encoder
    products = config.num_decoder_layers * layer + config.d_model * config.vocab_size
    sizes = {p: _decoder_bytes(model.bundle(as_precision(p))) for p in arguments.precisions}
    rates = {p: limits.read_rate(size, arguments.threads, arguments.limit_seconds) for p, size in sizes.items()}
    return {
        "model": model.title,
        "flop_per_row": 2 * products,
        "bytes_per_step": sizes,
        "read_gbs": {p: rate / 1e9 for p, rate in rates.items()},
    }


def _decoder_bytes(folder: Path) -> int:
    """Return bytes of a bundle's decoder: every weight in it is read by a step, the embedding as output matrix."""
    return sum(path.stat().st_size for path in folder.glob(f"{DECODER}*"))


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print tables, write JSON."""
    arguments = read_arguments(argv)
    result: dict[str, Any] = {"machine": machine.describe(arguments.threads), "settings": _settings(arguments)}
    records: list[Record] = []
    result["limits"] = limits.measure(arguments.threads, arguments.limit_seconds).to_dict()
    result["steps"] = []
    for name in arguments.models:
        model = open_model(name, arguments.folder, arguments.calibration)
        result["steps"].append(step_costs(model.endless(), arguments))
        sides: list[Side] = []
        loaded: BenchModel | None = None
        for variant, case in cases(model, arguments):
            if variant is not loaded:
                for side in sides:
                    side.close()
                sides, loaded = open_sides(variant, arguments), variant
            found = case.measure(sides, arguments)
            records += found
            print(_progress(found), file=sys.stderr, flush=True)
            _write(arguments.out, {**result, "records": [asdict(record) for record in records]})
        for side in sides:
            side.close()
        del sides
        gc.collect()
    result["machine"]["load_after"] = round(os.getloadavg()[0], 2)
    result["records"] = [asdict(record) for record in records]
    _write(arguments.out, result)
    print(engine_report(result))


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's values; --quick has the smallest defaults that run everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models",
        nargs="+",
        default=["base", BUILT_IN_NAME],
        help=f"sizes with random weights ({', '.join(SIZES)}), '{BUILT_IN_NAME}', checkpoint folders",
    )
    parser.add_argument("--checkpoint", type=Path, help="one more model: a checkpoint folder or training run")
    parser.add_argument("--pairs", type=Path, help="TSV of texts and references, for the corpus workload")
    parser.add_argument("--calibration", type=Path, help="TSV of other pairs, for int8-static of a --checkpoint")
    parser.add_argument("--texts", type=int, default=192, help="of a corpus case, at most")
    parser.add_argument("--sides", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS[OURS], default=list(PRECISIONS[OURS]))
    parser.add_argument(
        "--workloads",
        nargs="*",
        choices=("mixed", "equal"),
        default=["mixed", "equal"],
        help="equal: greedy only, for the shares of what the machine can do",
    )
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32, 64])
    parser.add_argument("--steps", type=int, default=30, help="new tokens of every text, but in a corpus")
    parser.add_argument(
        "--best",
        nargs="+",
        choices=PRECISIONS[OURS],
        default=["fp32", "int8", "int8-static", "int8-weights"],
        help="precisions that may be a side's best for models without a corpus, which would tell",
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu: per second of CPU time; with --threads 1 a rough answer from a machine that is not idle",
    )
    parser.add_argument("--slow-rounds", type=int, default=2, help="of transformers, which is many times slower")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each side and round, at least")
    parser.add_argument("--limit-seconds", type=float, default=0.5, help="of each measurement of the machine's limits")
    parser.add_argument("--folder", type=Path, default=Path("build/bench/models"), help="for exported models")
    parser.add_argument("--out", type=Path, default=Path("build/bench/engine.json"))
    parser.add_argument("--quick", action="store_true", help="a trial run of a minute, with a tiny model")
    if parser.parse_args(argv).quick:  # other defaults
        parser.set_defaults(models=["tiny"], batches=[1, 8], rounds=3, slow_rounds=1, seconds=0.05, steps=8)
        parser.set_defaults(limit_seconds=0.02)
    arguments = parser.parse_args(argv)
    if arguments.checkpoint is not None:
        arguments.models.append(str(arguments.checkpoint))
    return arguments


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()}


def _progress(records: Sequence[Record]) -> str:
    one = records[0]
    rates = ", ".join(f"{r.side} {r.precision} {Spread.of(r.rates).median:.0f}" for r in records)
    return f"{one.model}, {one.workload}, beam {one.beams}, batch {one.batch}: {rates} tokens/s"


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
