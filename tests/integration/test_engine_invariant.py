"""Invariant 1 on real graphs: a text's result is that of its solo run, whatever shares its batch.

Texts arrive at random times with random options, greedy, beams and samples mixed; a fifth is cancelled at random
moments. DRAGOMAN_INVARIANT_TEXTS sets how many texts each model gets (2,000 take minutes per model).
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from dragoman.cli.main import main
from dragoman.export import bundle
from dragoman.export.write import write_bundle
from dragoman.model.generated import examples
from dragoman.server.config import DEFAULT_BUNDLE
from dragoman.server.options import SearchOptions
from dragoman.server.request import Request, RequestStatus
from tests.fakes.bundle_bench import BundleBench
from tests.fakes.bundles import make_checkpoint
from tests.fakes.engine import new_request
from tests.fakes.hf_folders import import_arguments, save_folder
from tests.fakes.mixed_options import mixed_options

TEXTS = int(os.environ.get("DRAGOMAN_INVARIANT_TEXTS", "120"))
SEED = 11
ROWS = 24
MODELS = ("default", "marian", "t5 v1.1", "ssru")
torch.set_num_threads(1)


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bundle of a model."""
    name: str = request.param
    if name == "default":
        return DEFAULT_BUNDLE
    out = tmp_path_factory.mktemp("invariant") / "bundle"
    if name == "ssru":
        checkpoint = make_checkpoint(decoder_layer="ssru", max_source_tokens=300, max_target_tokens=60)
        write_bundle(checkpoint, out, name="ssru", precision="fp32", verify=None)
        return out
    source = out.parent / "hf"
    save_folder(name, source)
    options = [
        argument
        for option, value in vars(import_arguments(name)).items()
        if value not in (None, False)
        for argument in (f"--{option.replace('_', '-')}", str(value))
    ]
    assert main(["import", "hf", str(source), "-o", str(out), "--no-verify", *options]) == 0
    return out


def random_sources(count: int, vocab_size: int, longest: int, eos: int) -> list[list[int]]:
    """Return sources of 1 to `longest` tokens, most of them as short as sentences are."""
    generator = random.Random(SEED)
    lengths = [min(longest, 1 + int(generator.lognormvariate(2.8, 0.9))) for _ in range(count)]
    lengths[:2] = [1, longest]
    return [[*(generator.randrange(20, vocab_size) for _ in range(n - 1)), eos] for n in lengths]


def real_sources(count: int, bench: BundleBench) -> list[list[int]]:
    """Return sentences of the generated task in the default model's tokens; several joined make long ones."""
    tokenizer = bundle.load_tokenizer(DEFAULT_BUNDLE, bench.runtime.manifest)
    generator = random.Random(SEED)
    sentences = [example.source for example, _ in zip(examples(seed=SEED), range(500), strict=False)]
    menu = ["Save the file.", "Open the context menu.", "Click the button to print the selected pages.", "Password"]
    parts = [1 + int(generator.paretovariate(1.2)) for _ in range(count)]
    texts = [" ".join(generator.choices(sentences + 50 * menu, k=number)) for number in parts]
    limit = bench.runtime.manifest.limits.max_source_tokens
    return [ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]] for ids in map(tokenizer.encode, texts)]


def test_every_finished_text_equals_its_solo_run(folder: Path) -> None:
    """Equal tokens and endings; in fp32, scores within 1e-4."""
    manifest = bundle.load_manifest(folder)
    bench = BundleBench(folder, manifest, rows=ROWS)
    limits = manifest.limits
    sources = (
        real_sources(TEXTS, bench)
        if folder == DEFAULT_BUNDLE
        else random_sources(TEXTS, manifest.shape.vocab_size, min(300, limits.max_source_tokens), manifest.special.eos)
    )
    requests, options = run_together(bench, sources)
    alone = BundleBench(folder, manifest, rows=8)
    finished = [(r, o) for r, o in zip(requests, options, strict=True) if r.status is not RequestStatus.CANCELLED]

    assert len(requests) * 0.7 < len(finished) < len(requests)
    assert bench.pool.free == ROWS
    for request, chosen in finished:
        [expected] = alone.start([request.source], **chosen, first_target=request.first_target)
        alone.finish([expected])
        assert request.status is expected.status, chosen
        assert [h.tokens for h in request.hypotheses] == [h.tokens for h in expected.hypotheses], chosen
        if manifest.precision == "fp32":
            scores, alone_scores = ([h.score for h in each.hypotheses] for each in (request, expected))
            np.testing.assert_allclose(scores, alone_scores, atol=1e-4)


def run_together(bench: BundleBench, sources: Sequence[Sequence[int]]) -> tuple[list[Request], list[dict[str, object]]]:
    """Let texts arrive at random times with random options and cancel a fifth of them."""
    generator = random.Random(SEED)
    longest = min(60, bench.runtime.manifest.limits.max_target_tokens - 4)
    requests: list[Request] = []
    options: list[dict[str, object]] = []
    for source in sources:
        chosen = mixed_options(generator, longest=longest, can_align=bench.runtime.can_align)
        first = tuple(generator.randint(20, 60) for _ in range(generator.choice((0, 0, 0, 1, 3))))
        request = new_request(source, **chosen, first_target=first)
        assert isinstance(request.options, SearchOptions)
        bench.engine.submit([request])
        requests.append(request)
        options.append(chosen)
        for _ in range(generator.choice((0, 0, 1, 2))):
            bench.engine.iterate()
        if generator.random() < 0.2:
            bench.engine.cancel([generator.choice(requests[-30:])])
    bench.finish(requests)
    return requests, options
