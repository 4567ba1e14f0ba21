"""The engine with everything in a device's memory: what it reads and writes there is what NumPy's arrays would hold.

The device is a fake one: memory of its own that only addresses reach, with ONNX Runtime's CPU provider working in it.
"""

import random
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from dragoman.export import bundle
from dragoman.model.generated import examples
from dragoman.server import runtime
from dragoman.server.config import DEFAULT_BUNDLE
from dragoman.server.device_memory import Array, DeviceArray, Tensor
from dragoman.server.request import RequestStatus
from dragoman.server.step import StepOutputs, Wanted
from tests.fakes.bundle_bench import BundleBench
from tests.fakes.device import FakeMemory, seen
from tests.fakes.mixed_options import mixed_options

TINY = Path(__file__).parents[1] / "data" / "tiny-v1"
EVERYTHING = Wanted.CANDIDATES | Wanted.LOGITS | Wanted.ALIGNMENT


def make_bench(folder: Path, rows: int, memory: FakeMemory | None, encode_tokens: int = 512) -> BundleBench:
    return BundleBench(folder, bundle.load_manifest(folder), rows, encode_tokens, memory)


def make_sources(folder: Path, seed: int = 11) -> list[list[int]]:
    """Return sources of very different lengths."""
    tokenizer = bundle.load_tokenizer(folder, bundle.load_manifest(folder))
    sentences = [example.source for example in islice(examples(seed=seed), 24)]
    joined = [", ".join(sentences[:count]) for count in (2, 3, 5, 8)]
    return [ids for text in ["one", *sentences, *joined] if len(ids := tokenizer.encode(text)) <= 128]


def test_texts_are_those_of_the_host() -> None:
    """Few slots, so that rows of different age move between them and views change their size."""
    sources = make_sources(TINY)
    memory = FakeMemory()

    expected = make_bench(TINY, 5, None).translate(sources)

    assert make_bench(TINY, 5, memory).translate(sources) == expected
    assert max(map(len, expected)) > 20
    assert memory.copies > len(sources)


def test_cancelled_neighbours_do_not_matter() -> None:
    """Rows that leave early move others to new slots; these go on where they were."""
    sources = make_sources(TINY)
    expected = make_bench(TINY, 1, None).translate(sources)
    bench = make_bench(TINY, 8, FakeMemory())
    requests = bench.start(sources)
    for index in range(0, len(requests), 3):
        bench.engine.iterate()
        bench.engine.cancel([requests[index]])
    bench.finish(requests)

    assert any(request.status is RequestStatus.CANCELLED for request in requests)
    for request, tokens in zip(requests, expected, strict=True):
        assert request.output == tokens[: len(request.output)]
        assert request.status is RequestStatus.CANCELLED or request.output == tokens


@pytest.mark.parametrize("folder", [TINY, DEFAULT_BUNDLE], ids=["tiny", "default"])
def test_every_kind_of_search_finds_the_same(folder: Path) -> None:
    """Beams, samples and greedy rows side by side: tokens and scores are those of the host, number for number."""
    sources = make_sources(folder)
    found = []
    for memory in (None, FakeMemory()):
        bench, generator = make_bench(folder, 12, memory), random.Random(3)
        longest, can_align = bench.runtime.manifest.limits.max_target_tokens, bench.runtime.can_align
        requests = []
        for source in sources:
            options = mixed_options(generator, longest=min(longest, 40), can_align=can_align)
            requests += bench.start([source], **options)
            bench.engine.iterate()
        bench.finish(requests)
        found.append([(r.status, [(h.tokens, h.score) for h in r.hypotheses]) for r in requests])

    assert found[0] == found[1]
    assert sum(len(hypotheses) > 1 for _, hypotheses in found[0]) > 3


def test_whatever_a_step_can_return_comes_back() -> None:
    """Candidates with scores, logits and alignments of all rows, at every size of batch; the host has logits always."""
    sources = make_sources(DEFAULT_BUNDLE)[:6]
    benches = [make_bench(DEFAULT_BUNDLE, len(sources), memory) for memory in (None, FakeMemory())]
    for bench in benches:
        bench.start(sources, max_new_tokens=30)
        bench.engine.iterate()
    assert benches[0].runtime.can_align

    while benches[0].pool.live:
        for wanted in (Wanted.NOTHING, EVERYTHING):
            steps = [copies(bench, wanted) for bench in benches]
            assert steps[0].keys() == steps[1].keys() | {bundle.LOGITS}
            for name, values in steps[1].items():
                np.testing.assert_array_equal(steps[0][name], values, err_msg=name)
        for bench in benches:
            bench.pool.release(0)


def copies(bench: BundleBench, wanted: Wanted) -> dict[str, Array]:
    """Return what a step gives, by name."""
    bench.pool.reserve()
    outputs: StepOutputs = bench.runtime.step(bench.pool, wanted)
    fields = {name: getattr(outputs, name) for name in outputs.__slots__}
    return {name: value.copy() for name, value in fields.items() if value is not None}


def test_nothing_large_is_bound_outside_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor of both graphs is bound by an address in the device's memory, but for two switches."""
    outside: set[str] = set()
    inside: set[str] = set()
    original = runtime._bind

    def bind(method: object, name: str, tensor: Tensor) -> None:
        (inside if isinstance(tensor, DeviceArray) else outside).add(name)
        original(method, name, tensor)

    monkeypatch.setattr(runtime, "_bind", bind)
    make_bench(DEFAULT_BUNDLE, 4, FakeMemory()).translate(make_sources(DEFAULT_BUNDLE)[:4], max_new_tokens=3)

    assert outside == {bundle.WITH_CANDIDATES, bundle.WITH_ALIGNMENT}
    assert inside >= {bundle.INPUT_IDS, bundle.CACHE_LENGTHS, bundle.SOURCE_LENGTHS, bundle.NEXT_IDS, "cross_key.0"}


def test_the_cache_is_updated_in_place(capfd: pytest.CaptureFixture[str]) -> None:
    """Reading and writing one address, the runtime copies nothing there either."""
    make_bench(TINY, 6, FakeMemory()).translate(make_sources(TINY))

    assert "in-place optimization not activated" not in capfd.readouterr().err


def test_a_step_sees_counters_only_when_they_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake is apart indeed: without the copy of the counters the texts are others."""
    sources = make_sources(TINY)[:6]
    expected = make_bench(TINY, 3, None).translate(sources)
    bench = make_bench(TINY, 3, FakeMemory())
    shown: list[int] = []
    original = bench.pool.show_counters

    def show_once() -> None:
        if not shown:
            original()
        shown.append(1)

    monkeypatch.setattr(bench.pool, "show_counters", show_once)

    assert bench.translate(sources, max_new_tokens=20) != [tokens[:20] for tokens in expected]


def test_fresh_memory_that_holds_no_numbers_does_not_matter() -> None:
    """Device memory is not zero when it is given: buffers are before they are read, also behind every row's length."""
    bench = make_bench(TINY, 4, FakeMemory())

    tensors = seen([*bench.pool.states.views(), *bench.pool.cross_attention.views()])

    assert all(np.isfinite(tensor).all() for tensor in tensors)
