"""Results of `tricks` as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.benchmarks.machine import sentence
from tests.benchmarks.output_product import WHOLE
from tests.benchmarks.tables import markdown


def tricks_report(result: Mapping[str, Any]) -> str:
    """Return all tables; `result` is what the benchmark wrote as JSON."""
    shortlist = result["shortlist"]
    around = ", ".join(f"{1e3 * ms:.0f} µs with {n}" for n, ms in result["around_ms"].items())
    parts = [
        f"{sentence(result['machine'])}. All times are CPU times of one thread. The engine's own time beside a step, "
        f"by texts alive: {around}.",
        "### Prompt lookup",
        *_speculation(result["speculation"]),
        "### Shortlist",
        *map(_coverage, shortlist["lexicons"]),
    ]
    for model in shortlist["models"].values():
        parts += _model(model)
    return "\n\n".join(parts)


def _speculation(found: Mapping[str, Any]) -> list[str]:
    cost = found["cost_ms"]
    lanes = list(found["records"][0]["gains"])
    header = ["tokens that match, at least", "proposed, at most", "tokens per step", "rows per step", "accepted",
              *(f"gain, {n} text{'s' * (n != '1')}: graph / with the engine" for n in lanes)]  # fmt: skip
    rows = [
        [
            str(r["shortest"]), str(r["proposed"]), f"{r['tokens_per_step']:.3f}", f"{r['rows_per_step']:.2f}",
            f"{100 * r['accepted']:.0f} %",
            *(f"{r['gains'][n]['graph']:.2f} / {r['gains'][n]['engine']:.2f}" for n in lanes),
        ]
        for r in found["records"]
    ]  # fmt: skip
    steps = markdown(["rows", *cost], [["ms", *(f"{ms:.3f}" for ms in cost.values())]])
    return [
        "A step of the built-in model by its rows.",
        steps,
        f"{found['texts']} texts, {found['tokens']} tokens, greedy. Tokens per step is the bound, if a step cost the "
        "same whatever its rows.",
        markdown(header, rows),
    ]


def _coverage(lexicon: Mapping[str, Any]) -> str:
    header = ["texts that share a shortlist", "ids in it, mean", "output tokens outside", "texts with one outside"]
    rows = [
        [str(c["texts"]), f"{c['size']:.0f}", f"{100 * c['tokens_outside']:.2f} %", f"{100 * c['texts_outside']:.1f} %"]
        for c in lexicon["coverage"]
    ]
    return (
        f"Lexicon of {lexicon['pairs']} pairs. With each text's own shortlist {100 * lexicon['equal_texts']:.1f} % "
        f"of the texts stay as they are, chrF {lexicon['chrf']:.2f} becomes {lexicon['chrf_restricted']:.2f}.\n\n"
        f"{markdown(header, rows)}"
    )


def _model(model: Mapping[str, Any]) -> list[str]:
    steps, gains = model["steps"], model["gains"]
    rows = [str(gain["rows"]) for gain in gains]
    by_vocabulary = [[vocabulary, *(f"{times[r]:.3f}" for r in rows)] for vocabulary, times in steps.items()]
    ways = list(dict.fromkeys((p["way"], p["columns"]) for p in model["products"]))
    products = [
        [
            f"{way}, {columns}",
            *(
                f"{p['ms']:.3f}"
                for r in rows
                for p in model["products"]
                if (p["way"], p["columns"], str(p["rows"])) == (way, columns, r)
            ),
        ]
        for way, columns in ways
    ]
    net = [
        [
            str(g["rows"]), f"{g['size']:.0f}", f"{100 * g['joins']:.0f} %", f"{g['whole_ms']:.3f}",
            f"{g['shortlist_ms']:.3f}", f"{g['bound']:.2f}", f"{g['gain']:.2f}", f"{g['gain_in_all']:.2f}",
        ]
        for g in gains
    ]  # fmt: skip
    encode = " / ".join(f"{ms:.2f}" for ms in model["encode_ms"].values())
    return [
        f"#### {model['title']}, random weights, V = {model['vocabulary']}, int8-static",
        "Milliseconds of a step by vocabulary and rows.",
        markdown(["V", *(f"{r} rows" for r in rows)], by_vocabulary),
        f"Milliseconds of the output's product alone (\"{WHOLE}\" is today's).",
        markdown(["way, columns", *(f"{r} rows" for r in rows)], products),
        "Gain of a step; its bound is a model with so small a vocabulary for good. In all: with the engine's own time "
        f"and the encoder's, {encode} ms per text.",
        markdown(
            ["rows", "shortlist", "steps that gather", "ms, whole", "ms, shortlist", "bound", "gain", "gain in all"],
            net,
        ),
    ]
