"""What benchmarks say of their numbers: medians, ratios, percentiles, verdicts."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dragoman.export.bundle import load_manifest
from dragoman.server.budget import row_bytes
from dragoman.server.slot_types import SlotTypes
from tests.benchmarks.arrivals import Answers, arrival_times, percentile
from tests.benchmarks.cost import SLOTS, slot_memory
from tests.benchmarks.report import write_report
from tests.benchmarks.rounds import Spread, alternate, ratios
from tests.benchmarks.service import Server
from tests.benchmarks.soak import Sample, drift, problems_of
from tests.benchmarks.tables import best_precisions, comparisons
from tests.benchmarks.workload import lengths, load_pairs
from tests.e2e.process import ServerProcess


def test_sides_alternate_and_begin_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each runs once per round; slow ones only in the first rounds."""
    monkeypatch.setattr("tests.benchmarks.rounds.SETTLE_S", 0.0)
    order: list[str] = []
    runs = {name: lambda name=name: float(order.append(name) or len(order)) for name in "abc"}  # type: ignore[func-returns-value]

    found = alternate(runs, 3, only={"c": 1})

    assert order == [*"abc", *"ba", *"ab"]
    assert {name: len(values) for name, values in found.items()} == {"a": 3, "b": 3, "c": 1}


def test_a_spread_is_the_median_and_half_the_distance_of_the_quartiles() -> None:
    """Also of one value; none is refused."""
    assert Spread.of([1, 2, 3, 4, 100]) == Spread(3, 1)
    assert Spread.of([5.0]) == Spread(5.0, 0.0)
    with pytest.raises(ValueError, match="no values"):
        Spread.of([])


def test_ratios_compare_within_a_round() -> None:
    """A machine that becomes slower does not change them."""
    assert ratios([10, 5, 2], [5, 2.5, 1]) == [2, 2, 2]


def test_a_percentile_is_a_value_that_so_many_do_not_exceed() -> None:
    """Nearest rank."""
    values = list(range(1, 201))
    assert [percentile(values, share) for share in (50, 95, 99)] == [100, 190, 198]
    assert percentile([7.0], 99) == 7.0
    assert percentile([], 99) is None


def test_arrivals_are_a_poisson_process_of_the_rate() -> None:
    """Equal seeds give equal times, and gaps have the exponential's mean and deviation."""
    times = arrival_times(50, 200, seed=1)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)

    assert times == arrival_times(50, 200, seed=1) != arrival_times(50, 200, seed=2)
    assert mean == pytest.approx(1 / 50, rel=0.05)
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(1 / 50, rel=0.1)


def test_a_summary_counts_failures_apart() -> None:
    """Rates are of what was answered, over the time until the last answer."""
    answers = Answers(latencies=[0.2, 0.1], failures=["UNAVAILABLE"], tokens=30, last_s=4.0)
    summary = answers.summary(2.0)

    assert (summary["calls"], summary["failures"]) == (3, {"UNAVAILABLE": 1})
    assert (summary["texts_per_s"], summary["tokens_per_s"], summary["p50_s"]) == (0.5, 7.5, 0.1)


def test_goodput_is_the_highest_load_below_which_all_loads_pass() -> None:
    """A failed call or a slow 99th percentile ends it, whatever higher loads did."""
    server = Server("one", cast(ServerProcess, None))
    for rate, p99 in ((10, 0.1), (20, 0.4), (30, 0.6), (40, 0.2)):
        server.points[rate] = [{"p99_s": p99, "failures": {}}]

    assert (server.goodput(0.5), server.first_failure(0.5)) == (20, 30)
    server.points[20][0]["failures"] = {"UNAVAILABLE": 1}
    assert (server.goodput(0.5), server.first_failure(0.5)) == (10, 20)


def samples(resident: list[float], threads: int = 10) -> list[Sample]:
    return [Sample(float(i), mb, threads, 20, 3.0, 1.0, i) for i, mb in enumerate(resident)]


FLAT = samples([100.0] * 5 + [200.0] * 15)
LAST = Sample(20.0, 200.0, 10, 20, 0.0, 0.0, 90)
ENDED = Counter({"OK": 70, "CANCELLED": 20})


def test_a_good_soak_has_no_problems() -> None:
    """What grows during the warm-up is no leak."""
    assert problems_of(FLAT, LAST, ENDED, 20) == []
    assert drift(FLAT, 20) == 0


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"samples": samples([100.0] * 5 + [200.0 + i for i in range(15)])}, "resident memory"),
        ({"last": Sample(20.0, 200.0, 11, 20, 0.0, 0.0, 90)}, "11 threads"),
        ({"last": Sample(20.0, 200.0, 10, 25, 0.0, 0.0, 90)}, "25 files"),
        ({"last": Sample(20.0, 200.0, 10, 20, 1.0, 0.0, 90)}, "1 texts still run"),
        ({"ended": ENDED + Counter({"INTERNAL": 2})}, "2 calls ended as INTERNAL"),
        ({"ended": Counter({"OK": 5})}, "not what it should be"),
        ({"samples": FLAT[:6]}, "let it run longer"),
    ],
)
def test_a_soak_finds_what_is_wrong(changed: dict[str, Any], says: str) -> None:
    """Each fault has its sentence."""
    arguments = {"samples": FLAT, "last": LAST, "ended": ENDED, "seconds": 20, **changed}
    assert any(says in problem for problem in problems_of(**arguments))


def record(side: str, precision: str, rates: list[float], **changes: Any) -> dict[str, Any]:
    return {
        "model": "m", "workload": "mixed", "beams": 1, "batch": 1, "side": side, "precision": precision,
        "rates": rates, "decode_share": 0.8, "step_s": None, "equal_to_first": 1.0, "chrf": None, **changes,
    }  # fmt: skip


def test_best_is_the_fastest_precision_that_costs_little_quality() -> None:
    """int4 is fastest here, and costs too much."""
    records = [
        record("Dragoman", "fp32", [10, 10], chrf=50.0), record("Dragoman", "int8", [20, 20], chrf=49.6),
        record("Dragoman", "int4", [40, 40], chrf=49.0), record("CTranslate2", "fp32", [5, 5], chrf=50.0),
        record("CTranslate2", "int8", [8, 16], chrf=50.0),
    ]  # fmt: skip
    counted = best_precisions(records, ["int4"])
    compared = comparisons(records, counted)

    assert counted == {"Dragoman": ["fp32", "int8"], "CTranslate2": ["fp32", "int8"]}
    assert compared["fp32 : CTranslate2 fp32"] == Spread.of([2, 2])
    assert compared["best : CTranslate2 best"] == Spread.of([20 / 8, 20 / 16])
    assert compared["fp32 : Hugging Face fp32"] is None


def test_without_a_corpus_the_caller_says_which_precisions_count() -> None:
    """Random weights have no quality."""
    records = [record("Dragoman", precision, [1.0]) for precision in ("fp32", "int4")]
    assert best_precisions(records, ["fp32", "int8"]) == {"Dragoman": ["fp32"]}


def test_sources_have_the_lengths_that_were_asked_for() -> None:
    """A mix of short and long ones, the same every time."""
    mixed = lengths("mixed", 1000)
    assert lengths("equal", 3) == [30, 30, 30]
    assert mixed == lengths("mixed", 1000)
    assert 22 < sorted(mixed)[500] < 28
    assert (min(mixed), max(mixed)) >= (2, 90)
    assert max(mixed) <= 100
    with pytest.raises(ValueError, match="choose equal or mixed"):
        lengths("other", 1)


def test_pairs_come_from_a_file_or_are_made(tmp_path: Path) -> None:
    """Lines without a translation are left out; a file without any pair is refused."""
    file = tmp_path / "pairs.tsv"
    file.write_text("one\teins\ttest\nblank\t\nno tab\ntwo\tzwei\n", "utf-8")
    found = load_pairs(file, 10)

    assert sorted(zip(found.sources, found.references, strict=True)) == [("one", "eins"), ("two", "zwei")]
    assert len(load_pairs(None, 7).sources) == 7
    file.write_text("nothing\n", "utf-8")
    with pytest.raises(ValueError, match=r"pairs\.tsv"):
        load_pairs(file, 10)


def test_a_report_has_tables_and_pictures_of_what_is_there(tmp_path: Path) -> None:
    """Of a service benchmark alone; a folder without results is refused."""
    with pytest.raises(FileNotFoundError, match=r"engine\.json"):
        write_report(tmp_path)
    draw = random.Random(0)
    points = [
        {"rate": rate, "p50_s": 0.1, "p95_s": 0.2, "p99_s": draw.random(), "repeats": [{"failures": {}}]}
        for rate in (5.0, 10.0)
    ]
    servers = [
        {"title": "Dragoman", "most": 30.0, "goodput": 20.0, "points": points},
        {"title": "CTranslate2", "most": 25.0, "goodput": 8.0, "points": points[:1]},
    ]
    machine = {
        "processor": "p", "cpus": 2, "memory_gib": 4, "threads": 2, "system": "Linux", "versions": {}, "date": "d",
        "load_before": 0.0,
    }  # fmt: skip
    settings = {"model": "built-in", "precision": "int8", "beams": 1, "objective_s": 0.5, "repeats": 1, "seconds": 5.0}
    (tmp_path / "service.json").write_text(
        json.dumps({"machine": machine, "settings": settings, "servers": servers}), "utf-8"
    )

    written = write_report(tmp_path)

    assert "| CTranslate2 | 25.0 texts/s | 8.0 texts/s | 2.50 |" in (tmp_path / "report.md").read_text("utf-8")
    assert sorted(path.name for path in written) == ["report.md", "service.png", "service.svg"]
    assert all(path.stat().st_size for path in written)


def test_memory_of_slots_is_that_of_the_bundles_types() -> None:
    """Keys and values of int8 take a quarter of those of float32; the last source position is float32 all the same."""
    manifest = load_manifest(Path(__file__).parents[2] / "data" / "tiny-v3")
    shape, limits = manifest.shape, manifest.limits
    byte = np.dtype(np.int8)
    floats, bytes_, with_last = (
        slot_memory(shape, limits, types)
        for types in (SlotTypes(), SlotTypes(byte, byte), SlotTypes(byte, byte, cross_last=True))
    )
    last = row_bytes(shape, SlotTypes(byte, byte, cross_last=True)) / 1e6

    assert [row["slots"] for row in floats] == list(SLOTS)
    for whole, quarter, more in zip(floats, bytes_, with_last, strict=True):
        for name in ("longest_mb", "short_mb"):
            assert quarter[name] == pytest.approx(whole[name] / 4)
            assert more[name] == pytest.approx(quarter[name] + whole["slots"] * last)
