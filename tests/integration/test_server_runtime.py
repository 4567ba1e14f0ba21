"""The engine on ONNX Runtime with the committed bundle: same tokens whatever shares the batch."""

import random
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from dragoman.export import bundle
from dragoman.export.bundle import Manifest
from dragoman.model.generated import examples
from dragoman.model.tokenizers import Tokenizer
from dragoman.model.vocab import SpecialIds
from dragoman.server import buffers, runtime
from dragoman.server.device_memory import Array
from dragoman.server.request import Request, RequestStatus
from tests.fakes.bundle_bench import BundleBench

BUNDLE = Path(__file__).parents[1] / "data" / "tiny-v1"
COPIED = "in-place optimization not activated"
SEED = 20


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return bundle.load_manifest(BUNDLE)


@pytest.fixture(scope="module")
def tokenizer(manifest: Manifest) -> Tokenizer:
    return bundle.load_tokenizer(BUNDLE, manifest)


@pytest.fixture(scope="module")
def sources(tokenizer: Tokenizer) -> list[list[int]]:
    """Sources of one word up to the bundle's limit, made of one or more generated sentences."""
    sentences = [example.source for example in islice(examples(seed=SEED), 60)]
    joined = [", ".join(sentences[first : first + count]) for first in (0, 9, 16) for count in range(2, 9)]
    endless = ["eight hundred thousand " * 30, "and " * 30]  # not sentences: the model repeats itself up to the limit
    texts = ["one", *sentences[:20], *joined, *endless]
    return [ids for text in texts if len(ids := tokenizer.encode(text)) <= 128]


@pytest.fixture(scope="module")
def alone(manifest: Manifest, sources: list[list[int]]) -> list[list[int]]:
    """Return the tokens of each source when nothing else is translated."""
    bench = BundleBench(BUNDLE, manifest, rows=1)
    return [bench.translate([source])[0] for source in sources]


def test_the_committed_bundle_translates(manifest: Manifest, tokenizer: Tokenizer) -> None:
    """The tiny model has learnt its task, so the tests below compare real translations."""
    pairs = list(islice(examples(seed=SEED + 1), 50))
    targets = BundleBench(BUNDLE, manifest, rows=16).translate([tokenizer.encode(pair.source) for pair in pairs])

    right = [tokenizer.decode(target) == pair.target for target, pair in zip(targets, pairs, strict=True)]
    assert sum(right) >= 45


def test_sources_reach_from_one_token_to_the_limit(sources: list[list[int]], alone: list[list[int]]) -> None:
    """The tests below cover every view size and different ages."""
    lengths = [len(source) for source in sources]

    assert min(lengths) < 5
    assert max(lengths) > 90
    assert max(map(len, alone)) == 128


def test_batched_equals_alone(manifest: Manifest, sources: list[list[int]], alone: list[list[int]]) -> None:
    """All sources in one batch have the tokens they have alone."""
    assert BundleBench(BUNDLE, manifest, rows=len(sources), encode_tokens=4096).translate(sources) == alone


def test_order_and_time_of_arrival_do_not_matter(
    manifest: Manifest, sources: list[list[int]], alone: list[list[int]]
) -> None:
    """Rows of different age share steps and slots move; the tokens stay."""
    bench = BundleBench(BUNDLE, manifest, rows=5)
    order = list(range(len(sources)))
    random.Random(SEED).shuffle(order)
    rows: dict[int, Request] = {}
    for position, index in enumerate(order):
        [rows[index]] = bench.start([sources[index]])
        for _ in range(position % 4):
            bench.engine.iterate()

    bench.finish(list(rows.values()))

    assert [rows[index].output for index in range(len(sources))] == alone


def test_cancelled_neighbours_do_not_matter(
    manifest: Manifest, sources: list[list[int]], alone: list[list[int]]
) -> None:
    """Rows that leave early move others to new slots; these go on where they were."""
    bench = BundleBench(BUNDLE, manifest, rows=len(sources))
    rows = bench.start(sources)
    for index in range(0, len(rows), 3):
        bench.engine.iterate()
        bench.engine.cancel([rows[index]])
    bench.finish(rows)

    assert any(row.status is RequestStatus.CANCELLED for row in rows)
    for row, target in zip(rows, alone, strict=True):
        assert row.output == target[: len(row.output)]
        assert row.status is RequestStatus.CANCELLED or row.output == target


def test_the_size_of_the_cache_views_does_not_matter(
    manifest: Manifest, sources: list[list[int]], alone: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views at the bundle's limit from the first token on give the tokens of tight views."""
    monkeypatch.setattr(buffers, "view_size", lambda _needed, longest: longest)
    bench = BundleBench(BUNDLE, manifest, rows=8)

    assert bench.translate(sources) == alone
    assert (bench.pool.states.size, bench.pool.cross_attention.size) == (128, 128)


def test_bindings_may_be_forgotten(
    manifest: Manifest, sources: list[list[int]], alone: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept bindings are a cache of bounded size and nothing else."""
    monkeypatch.setattr(runtime, "_MAX_STEPS", 2)

    assert BundleBench(BUNDLE, manifest, rows=8).translate(sources) == alone


def test_padding_does_not_change_a_row(manifest: Manifest, sources: list[list[int]]) -> None:
    """A row's encoder output is the same next to a longer row."""
    bench = BundleBench(BUNDLE, manifest, rows=1)
    short, long = min(sources, key=len), max(sources, key=len)
    own = [values.copy() for values in bench.runtime.encode([short]).cross]

    beside = bench.runtime.encode([long, short]).cross

    for alone_values, values in zip(own, beside, strict=True):
        np.testing.assert_allclose(values[1, :, : len(short)], alone_values[0], atol=1e-5)


def test_a_step_writes_one_position_per_row_and_nothing_else(manifest: Manifest, sources: list[list[int]]) -> None:
    """In place means: row i changes at its own cache length only, and cross-attention not at all."""
    bench = BundleBench(BUNDLE, manifest, rows=4)
    bench.start(sources[:2])
    bench.engine.iterate()
    bench.start(sources[2:3])
    bench.engine.iterate()
    pool = bench.pool
    pool.reserve()
    before = [view.copy() for view in (*pool.states.views(), *pool.cross_attention.views())]

    bench.runtime.step(pool)

    after = [*pool.states.views(), *pool.cross_attention.views()]
    count = len(pool.states.views())
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        changed = (old != new).any(axis=(1, 3))
        expected = np.zeros_like(changed)
        if index < count:
            expected[[0, 1, 2], pool.cache_lengths[:3]] = True
        np.testing.assert_array_equal(changed, expected)


def test_the_cache_is_updated_in_place(
    manifest: Manifest, sources: list[list[int]], capfd: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime never says that it copied a cache, over all view sizes and batch sizes."""
    BundleBench(BUNDLE, manifest, rows=6).translate(sources)

    assert COPIED not in capfd.readouterr().err


def test_a_copied_cache_would_be_noticed(manifest: Manifest, capfd: pytest.CaptureFixture[str]) -> None:
    """The same session says so when the updated cache is bound elsewhere: the test above can fail."""
    bench = BundleBench(BUNDLE, manifest, rows=2)
    bench.start([[7, 8, manifest.special.eos]])
    bench.engine.iterate()
    elsewhere: list[Array] = []
    original = runtime._bind

    def bind(method: object, name: str, array: Array) -> None:
        if name.startswith("updated_"):
            elsewhere.append(np.zeros_like(array))
            array = elsewhere[-1]
        original(method, name, array)

    bench.runtime._steps.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "_bind", bind)
        bench.pool.reserve()
        bench.runtime.step(bench.pool)

    assert elsewhere
    assert COPIED in capfd.readouterr().err


def test_an_empty_text_is_not_made_of_logits_that_are_no_numbers(
    manifest: Manifest, sources: list[list[int]], alone: list[list[int]]
) -> None:
    """Their argmax is id 0, which is EOS in Marian's models; neighbours go on, and it is counted.

    In the bundle EOS is another id; one that sources do not have behaves like that of a model with EOS 0.
    """
    marian = replace(manifest, special=SpecialIds(pad=1, unk=1, start=manifest.special.start, eos=0))
    bench = BundleBench(BUNDLE, marian, rows=3)
    bad, *good = bench.start(sources[1:4], max_new_tokens=8)
    for _ in range(3):
        bench.engine.iterate()
    [slot] = bench.engine._search.slots_of(bad)
    for view in bench.pool.cross_attention.views():
        view[slot, :, 0] = np.nan
    targets = bench.finish([bad, *good])

    assert (bad.status, targets[0]) == (RequestStatus.FAILED, [])
    assert bad.correlation_id
    for target, expected in zip(targets[1:], alone[2:4], strict=True):
        assert target[: len(expected)] == expected[:8]
    assert all(request.status is not RequestStatus.FAILED for request in good)
    assert bench.engine._metrics.registry.get_sample_value("dragoman_not_finite_total", {"model": manifest.name}) == 1
