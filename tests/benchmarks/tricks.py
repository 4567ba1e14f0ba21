"""Two tricks of fast translation that the engine does not have, and what each could gain: measured before it is built.

    python -m tests.benchmarks.tricks --texts build/corpus/en-de/test.gnomehelp.tsv --pairs build/corpus/en-de/train.tsv
    python -m tests.benchmarks.tricks --quick

Prompt lookup (`lookup`): tokens that one step could check together, in the built-in model's greedy outputs, against the
time of steps with more rows, which are the same products. Vocabulary shortlist (`lexicon`, `output_product`): time
of steps with a small vocabulary, what the product costs more because its matrix is no constant, how large shortlists
are, and what they do to texts. All times are CPU times of one thread, so a busy machine disturbs them little.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import sacrebleu

from dragoman.export.bundle import load_manifest, load_tokenizer
from dragoman.export.decode import BundleSession
from dragoman.model.tokenizers import Tokenizer
from tests.benchmarks import machine
from tests.benchmarks.lexicon import Lexicon, coverage, learn_lexicon
from tests.benchmarks.lookup import Lookup, decode_time, verified_rows
from tests.benchmarks.models import BUILT_IN, BUILT_IN_NAME, SIZES, open_model
from tests.benchmarks.output_product import (
    encode_times,
    engine_milliseconds,
    product_times,
    step_times,
    vocabulary_steps,
)
from tests.benchmarks.shortlist_gain import net_gains
from tests.benchmarks.sides import load
from tests.benchmarks.tricks_report import tricks_report
from tests.benchmarks.workload import Pairs, load_pairs

LANES = (1, 8)
LONGEST_MATCH = 3
MATCHES = (1, 2, 3)
PROPOSED = (3, 5)
COST_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
BEST, FREQUENT = 50, 200
_LONGEST_PAIR = 100  # tokens; longer pairs cost memory by the square and teach little
_BATCH = 32


def greedy(
    session: BundleSession, sources: Sequence[Sequence[int]], allowed: Callable[[Sequence[int]], Any] | None = None
) -> list[list[int]]:
    """Return greedy outputs, EOS included, of up to twice the source and 16 tokens, as the server limits them.

    Args:
        session: The model.
        sources: Ids, EOS last.
        allowed: Says which ids the text of a source may have; None means all.
    """
    outputs: list[list[int]] = []
    for start in range(0, len(sources), _BATCH):
        outputs += _greedy_batch(session, sources[start : start + _BATCH], allowed)
    return outputs


def _greedy_batch(
    session: BundleSession, sources: Sequence[Sequence[int]], allowed: Callable[[Sequence[int]], Any] | None
) -> list[list[int]]:
    manifest, rows = session.manifest, len(sources)
    limits = [min(2 * len(source) + 16, manifest.limits.max_target_tokens) for source in sources]
    bias = np.zeros((rows, manifest.shape.vocab_size), np.float32)
    if allowed is not None:
        bias.fill(-np.inf)
        for row, source in enumerate(sources):
            bias[row, allowed(source)] = 0
    encoded, states = session.encode(sources), session.initial_states(rows, max(limits) + 1)
    tokens = np.full((rows, 1), manifest.special.start, np.int64)
    outputs: list[list[int]] = [[] for _ in sources]
    alive = set(range(rows))
    for read in range(max(limits)):
        _, logits, states = session.step(tokens, np.full(rows, read, np.int64), states, encoded)
        tokens = (logits[:, -1] + bias).argmax(axis=-1)[:, None]
        for row in tuple(alive):
            outputs[row].append(int(tokens[row, 0]))
            if outputs[row][-1] == manifest.special.eos or len(outputs[row]) == limits[row]:
                alive.remove(row)
        if not alive:
            break
    return outputs


def speculation(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    around: Mapping[int, float],
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """Return what prompt lookup could gain with each setting and number of texts at once.

    Args:
        sources: Ids of the texts.
        targets: Their greedy outputs.
        around: Milliseconds of the engine's own time per step, by texts at once.
        arguments: Of the command line.
    """
    cost = step_times(load(BUILT_IN, rows=max(COST_ROWS), threads=1), COST_ROWS, arguments.rounds, arguments.seconds)
    tokens, records = sum(map(len, targets)), []
    plain = [[1] * len(target) for target in targets]
    for shortest in MATCHES:
        for count in PROPOSED:
            lookup = Lookup(shortest, LONGEST_MATCH, count)
            texts = [verified_rows(source, target, lookup) for source, target in zip(sources, targets, strict=True)]
            steps, rows = sum(map(len, texts)), sum(map(sum, texts))
            gains = {lanes: _gains(plain, texts, lanes, cost, around[lanes]) for lanes in LANES}
            records.append(
                {
                    "shortest": shortest, "proposed": count, "tokens_per_step": tokens / steps,
                    "rows_per_step": rows / steps, "accepted": (tokens - steps) / max(1, rows - steps), "gains": gains,
                }
            )  # fmt: skip
    return {"texts": len(targets), "tokens": tokens, "cost_ms": cost, "records": records}


def _gains(
    plain: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
    lanes: int,
    cost: Mapping[int, float],
    around: float,
) -> dict[str, float]:
    """Return time without lookup : with it, of the graph alone and with the engine's own time per step."""
    measured = sorted(cost)

    def of_graph(rows: int) -> float:
        return float(np.interp(rows, measured, [cost[r] for r in measured]))

    def of_engine(rows: int) -> float:
        return around + of_graph(rows)

    return {
        name: decode_time(plain, lanes, of) / decode_time(texts, lanes, of)
        for name, of in (("graph", of_graph), ("engine", of_engine))
    }


def shortlists(
    lexicon: Lexicon,
    session: BundleSession,
    texts: Pairs,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    rows: Sequence[int],
) -> dict[str, Any]:
    """Return how large shortlists are, what they miss, and the texts' chrF with each text's own shortlist."""
    tokenizer = load_tokenizer(BUILT_IN, session.manifest)
    restricted = greedy(session, sources, lambda source: lexicon.shortlist([source]))
    return {
        "coverage": [asdict(coverage(lexicon, sources, targets, count)) for count in rows],
        "equal_texts": float(np.mean([a == b for a, b in zip(targets, restricted, strict=True)])),
        "chrf": _chrf(tokenizer, targets, texts.references),
        "chrf_restricted": _chrf(tokenizer, restricted, texts.references),
    }


def _chrf(tokenizer: Tokenizer, targets: Sequence[Sequence[int]], references: Sequence[str]) -> float:
    texts = [tokenizer.decode([token for token in target if token != tokenizer.special.eos]) for target in targets]
    return float(sacrebleu.corpus_chrf(texts, [list(references)]).score)


def training_ids(tokenizer: Tokenizer, pairs: Pairs) -> list[tuple[list[int], list[int]]]:
    """Return the ids of pairs that are not too long."""
    found = [
        (tokenizer.encode(source), tokenizer.encode_target(target))
        for source, target in zip(pairs.sources, pairs.references, strict=True)
    ]
    return [pair for pair in found if max(map(len, pair)) <= _LONGEST_PAIR]


def output_costs(
    name: str, sizes: Mapping[int, float], length: float, around: Mapping[int, float], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return a model's steps by vocabulary, its output's products, and the gain of shortlists.

    Args:
        name: Size of the model.
        sizes: Of shortlists, by texts at once.
        length: Tokens of a text, mean.
        around: Milliseconds of the engine's own time per step, by texts at once.
        arguments: Of the command line.
    """
    size, rows, counts = SIZES[name], sorted(sizes), sorted(arguments.shortlists)
    timing = arguments.rounds, arguments.seconds
    steps = vocabulary_steps(name, [*counts, size.vocab_size], rows, *timing, arguments.folder)
    products = product_times(size.vocab_size, size.d_model, counts, rows, *timing)
    encode = encode_times(name, rows, *timing, arguments.folder)
    beside = {count: encode[count] * count / length + around[count] for count in rows}
    gains = net_gains(steps, products, size.vocab_size, sizes, length, beside)
    return {
        "title": size.title, "vocabulary": size.vocab_size, "steps": steps, "products": products, "encode_ms": encode,
        "gains": gains,
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print tables, write JSON."""
    arguments = read_arguments(argv)
    result: dict[str, Any] = {
        "machine": machine.describe(1),
        "settings": {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()},
    }
    manifest = load_manifest(BUILT_IN)
    tokenizer, session = load_tokenizer(BUILT_IN, manifest), BundleSession(BUILT_IN, threads=1)
    texts = load_pairs(arguments.texts, arguments.count)
    sources = [tokenizer.encode(text) for text in texts.sources]
    targets = greedy(session, sources)
    endless = open_model(BUILT_IN_NAME, arguments.folder).endless().bundle("int8-static")
    around = {n: engine_milliseconds(endless, n, arguments.steps) for n in sorted({*LANES, *arguments.rows})}
    result["around_ms"] = around
    result["speculation"] = speculation(sources, targets, around, arguments)
    lexicons = []
    for count in arguments.pair_counts:
        pairs = training_ids(tokenizer, load_pairs(arguments.pairs, count))
        lexicon = learn_lexicon(pairs, manifest.shape.vocab_size, best=BEST, frequent=FREQUENT)
        lexicons.append({"pairs": len(pairs), **shortlists(lexicon, session, texts, sources, targets, arguments.rows)})
    sizes = {entry["texts"]: entry["size"] for entry in lexicons[-1]["coverage"]}
    length = float(np.mean([len(target) for target in targets]))
    models = {name: output_costs(name, sizes, length, around, arguments) for name in arguments.models}
    result["shortlist"] = {"lexicons": lexicons, "mean_tokens": length, "models": models}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(tricks_report(json.loads(arguments.out.read_text("utf-8"))))


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's values; --quick has the smallest defaults that run everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, help="TSV of texts to translate; without it generated phrases")
    parser.add_argument("--count", type=int, default=300, help="of these texts")
    parser.add_argument("--pairs", type=Path, help="TSV that word translations are learnt from; others than the texts")
    parser.add_argument(
        "--pair-counts", nargs="+", type=int, default=[20_000, 100_000], help="of these pairs; gains are of the last"
    )
    parser.add_argument(
        "--models", nargs="+", default=["default", "base"], choices=list(SIZES), help="of random weights"
    )
    parser.add_argument("--shortlists", nargs="+", type=int, default=[500, 1_000, 2_000, 4_000], help="sizes to time")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 32], help="texts at once, of shortlists")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="CPU time of each round and point")
    parser.add_argument("--steps", type=int, default=100, help="iterations of the engine that its own time is taken of")
    parser.add_argument("--folder", type=Path, default=Path("build/bench/models"), help="for exported models")
    parser.add_argument("--out", type=Path, default=Path("build/bench/tricks.json"))
    parser.add_argument("--quick", action="store_true", help="a trial run of a minute, with a tiny model")
    if parser.parse_args(argv).quick:  # other defaults
        parser.set_defaults(count=24, pair_counts=[300], models=["tiny"], shortlists=[500, 1_000], rows=[1, 8])
        parser.set_defaults(rounds=1, seconds=0.01, steps=10)
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
