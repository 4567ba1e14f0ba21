"""Every side of a comparison has to compute the same model, or the comparison says nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from dragoman.export import bundle
from dragoman.model.checkpoint import load_checkpoint
from dragoman.model.transformer import Transformer
from tests.benchmarks.baselines import Job
from tests.benchmarks.models import BUILT_IN, SIZES, BenchModel, forbid_eos, hugging_face, random_model, write_built_in
from tests.benchmarks.names import PRECISIONS
from tests.benchmarks.sides import open_side
from tests.benchmarks.workload import lengths, random_sources

EOS = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> BenchModel:
    """A small model with random weights."""
    size = replace(SIZES["tiny"], vocab_size=300, d_model=32, d_ff=48)
    return random_model("small", size, tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_a_model_of_transformers_has_our_logits(norm_position: str) -> None:
    """Weights, positions and biases arrive where they belong, in both families."""
    torch.manual_seed(3)
    size = replace(SIZES["tiny"], vocab_size=50, d_model=16, d_ff=24, norm_position=norm_position)  # type: ignore[arg-type]
    ours = Transformer(size.config()).eval()
    forbid_eos(ours, EOS)
    sources, targets = torch.randint(4, 50, (2, 7)), torch.randint(4, 50, (2, 5))
    with torch.inference_mode():
        expected = ours.project(ours(sources, torch.tensor([7, 7]), targets))
        found = hugging_face(ours)(
            input_ids=sources, attention_mask=torch.ones_like(sources), decoder_input_ids=targets
        ).logits

    real = torch.isfinite(found)
    torch.testing.assert_close(found[real], expected[real], atol=1e-4, rtol=1e-4)
    assert not real[..., :3].any(), "ids that are never generated"


@pytest.mark.parametrize("beams", [1, 4])
def test_all_sides_find_the_same_targets(model: BenchModel, beams: int) -> None:
    """In fp32, for sources of mixed lengths, more of them than rows; and as many tokens as they were told."""
    sources = random_sources(lengths("mixed", 5), model.config.vocab_size, first=4, eos=EOS)
    job = Job(sources, new_tokens=6, beams=beams, rows=3)
    found = {}
    for title in PRECISIONS:
        side = open_side(title, "fp32", model, threads=1)
        side.prepare(job)
        found[title] = side.run().targets
        side.close()

    expected = next(iter(found.values()))
    assert all(targets == expected for targets in found.values())
    assert [len(target) for target in expected] == [6] * 5


def test_the_built_in_models_weights_are_those_of_its_bundle(tmp_path: Path) -> None:
    """The checkpoint that is made of the bundle has the bundle's logits, but for the rounding of activations."""
    write_built_in(tmp_path)
    model = load_checkpoint(tmp_path).model
    sources = random_sources([9, 9, 9], model.config.vocab_size, first=4, eos=EOS)
    source_ids, source_lengths = np.array(sources), np.full(3, 9)
    encoder, decoder = (onnxruntime.InferenceSession(BUILT_IN / name) for name in bundle.GRAPHS)
    cross = encoder.run(None, {bundle.INPUT_IDS: source_ids, bundle.SOURCE_LENGTHS: source_lengths})
    names = [value.name for value in encoder.get_outputs()]
    shape = bundle.load_manifest(BUILT_IN).shape
    states = {n: np.zeros(shape.state_size(3, 4), np.int8) for i in range(2) for n in shape.state_names(i)}
    inputs = {bundle.INPUT_IDS: np.full((3, 1), 2), bundle.CACHE_LENGTHS: np.zeros(3, np.int64), **states}
    (logits,) = decoder.run(
        [bundle.LOGITS], {**inputs, bundle.SOURCE_LENGTHS: source_lengths, **dict(zip(names, cross, strict=True))}
    )
    with torch.inference_mode():
        expected = model.project(model(torch.tensor(sources), torch.tensor([9, 9, 9]), torch.full((3, 1), 2))).numpy()

    real = np.isfinite(logits)
    assert np.corrcoef(logits[real], expected[real])[0, 1] > 0.999
    assert np.abs(logits - expected)[real].max() < 0.1 * np.abs(expected).max()
