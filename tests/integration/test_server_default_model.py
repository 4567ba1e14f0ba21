"""The model that comes with the package, in int8: the server's runtime against the plain loop."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dragoman.export import bundle
from dragoman.export.bundle import load_manifest
from dragoman.export.decode import BundleSession
from dragoman.server.config import DEFAULT_BUNDLE
from dragoman.server.runtime import OnnxRuntime
from tests.fakes.bundle_bench import BundleBench
from tests.fakes.pools import make_pool

SENTENCES = (
    "Password",
    "The file could not be found.",
    "Click the button to save the file.",
    "If you want to print only one page, select the page in the list and click the print button.",
    "Select the text that you want to copy, then open the context menu and choose the command for copying it.",
)


BEHAVIOUR = Path(__file__).parents[1] / "data" / "behaviour.tsv"
# How many of each kind must be right; the model card says what is wrong with the others.
EXPECTED = {
    "one word": 17, "capitals": 6, "title case": 5, "lower case": 5, "number": 9, "URL": 7, "emoji": 7,
}  # fmt: skip


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    """Each sentence alone, through plain session calls without binding or a pool."""
    session = BundleSession(DEFAULT_BUNDLE)
    tokenizer = bundle.load_tokenizer(DEFAULT_BUNDLE, session.manifest)
    return {text: session.greedy([tokenizer.encode(text)], [40])[0] for text in SENTENCES}


def test_it_is_what_the_readme_says() -> None:
    """English to German, int8 with scales from calibration, for the CPU, small enough for every clone."""
    manifest = load_manifest(DEFAULT_BUNDLE)

    assert (manifest.source_language, manifest.target_language) == ("en", "de")
    assert (manifest.precision, manifest.devices) == ("int8-static", ("cpu",))
    assert sum(path.stat().st_size for path in DEFAULT_BUNDLE.iterdir()) < 15_000_000


def test_input_that_a_corpus_rarely_shows() -> None:
    """One word, capitals, title case, lower case, numbers, links and emoji come out as `behaviour.tsv` expects."""
    session = BundleSession(DEFAULT_BUNDLE)
    tokenizer = bundle.load_tokenizer(DEFAULT_BUNDLE, session.manifest)
    failed: dict[str, list[str]] = {}
    count: Counter[str] = Counter()
    for line in BEHAVIOUR.read_text("utf-8").splitlines():
        kind, source, expected = line.split("\t")
        ids = tokenizer.encode(source)
        limit = session.manifest.limits.default_max_new_tokens(len(ids))
        found = tokenizer.decode(session.greedy([ids], [limit])[0])
        count[kind] += 1
        if not re.search(expected, found):
            failed.setdefault(kind, []).append(f"{source!r} -> {found!r}, expected {expected!r}")
    report = "\n".join(line for lines in failed.values() for line in lines)

    assert all(count[kind] - len(failed.get(kind, ())) >= needed for kind, needed in EXPECTED.items()), report


def test_rows_of_different_age_share_steps_in_int8(expected: dict[str, list[int]]) -> None:
    """Rows join and leave a shared pool and every text equals the one alone, to the token."""
    manifest = load_manifest(DEFAULT_BUNDLE)
    tokenizer = bundle.load_tokenizer(DEFAULT_BUNDLE, manifest)
    runtime = OnnxRuntime(DEFAULT_BUNDLE, manifest, device="cpu", threads=1, encode_tokens=512)
    pool = make_pool(3, manifest.shape, manifest.limits, types=runtime.slot_types)
    waiting, running = list(SENTENCES), []  # type: list[str], list[str]
    found: dict[str, list[int]] = {text: [] for text in SENTENCES}
    steps = 0
    while waiting or running:
        if waiting and pool.free and steps % 2 == 0:
            text = waiting.pop(0)
            ids = tokenizer.encode(text)
            pool.admit(runtime.encode([ids]), [len(ids)], [1], manifest.special.start)
            running.append(text)
        pool.reserve()
        next_ids = runtime.step(pool).next_ids
        pool.append(next_ids)
        for text, token in zip(running, next_ids.tolist(), strict=True):
            found[text].append(token)
        ended = [
            i for i, text in enumerate(running) if found[text][-1] == manifest.special.eos or len(found[text]) == 40
        ]
        for slot in reversed(ended):
            running[slot] = running[pool.release(slot)]
            running.pop()
        pool.tighten()
        steps += 1

    assert found == expected
    assert len(np.unique([len(ids) for ids in found.values()])) > 1


def test_a_step_writes_each_rows_next_position_and_leaves_the_sources_alone() -> None:
    """The graph writes caches of both kinds; what it writes into those of sources is there already."""
    manifest = load_manifest(DEFAULT_BUNDLE)
    tokenizer = bundle.load_tokenizer(DEFAULT_BUNDLE, manifest)
    bench = BundleBench(DEFAULT_BUNDLE, manifest, rows=4)
    bench.start([tokenizer.encode(text) for text in SENTENCES[2:4]])
    bench.engine.iterate()
    bench.start([tokenizer.encode(SENTENCES[4])])
    bench.engine.iterate()
    pool = bench.pool
    pool.reserve()
    states = [view.copy() for view in pool.states.views()]
    sources = [view.copy() for view in pool.cross_attention.views()]

    bench.runtime.step(pool)

    for old, new in zip(sources, pool.cross_attention.views(), strict=True):
        np.testing.assert_array_equal(new, old)
    for old, new in zip(states, pool.states.views(), strict=True):
        changed = (old != new).any(axis=(1, 3))
        expected = np.zeros_like(changed)
        expected[[0, 1, 2], pool.cache_lengths[:3]] = True
        np.testing.assert_array_equal(changed, expected)
