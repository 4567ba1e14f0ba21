"""Checkpoints with random weights, and bundles with planted faults."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import torch
from onnxscript import ir

from dragoman.export import bundle
from dragoman.export.calibration import CalibrationPair
from dragoman.export.precision import Precision, convert, devices_for
from dragoman.export.storage import save
from dragoman.export.write import write_bundle
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.config import ModelConfig
from dragoman.model.generated import examples
from dragoman.model.tokenizers import Tokenizer, train_tokenizer
from dragoman.model.transformer import Transformer
from dragoman.model.vocab import SpecialIds


@functools.cache
def tiny_tokenizer() -> Tokenizer:
    """Return a tokenizer of 330 pieces."""
    sample = itertools.islice(examples(seed=3), 500)
    return train_tokenizer((text for e in sample for text in (e.source, e.target)), 330)


def make_checkpoint(gain: float = 4, **settings: Any) -> Checkpoint:
    """Return a tiny model with random weights.

    Args:
        gain: Of the decoder's matrices. The larger, the further is attention from uniform and the more do texts vary
            with the source; but rounding errors grow, too.
        settings: Replace those of its configuration.
    """
    tokenizer = tiny_tokenizer()
    torch.manual_seed(4)
    small: dict[str, Any] = {
        "vocab_size": tokenizer.vocab_size,
        "d_model": 32,
        "d_ff": 64,
        "num_heads": 4,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "max_source_tokens": 70,
        "max_target_tokens": 24,
    }
    model = Transformer(ModelConfig(**{**small, **settings})).eval()
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            if parameter.dim() > 1:
                parameter.mul_(gain)
        for parameter in model.parameters():  # biases and norms begin as zeros and ones, which would hide mistakes
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
        layers: list[Any] = list(model.decoder.layers)
        for layer in layers:
            if layer.ssru is not None:  # gates that are shut or open for good: their logarithm must stay a number
                layer.ssru.forget.bias[:2] = torch.tensor([-60.0, 60.0])
    return Checkpoint(Path(), model, tokenizer, "en", "de", 0)


def random_sources(checkpoint: Checkpoint, lengths: list[int]) -> list[list[int]]:
    """Return sources of so many random tokens, EOS included."""
    generator = np.random.default_rng(0)
    size, eos = checkpoint.model.config.vocab_size, checkpoint.tokenizer.special.eos
    return [[*generator.integers(4, size, n - 1).tolist(), eos] for n in lengths]


def write_with_states(folder: Path, decoder_layer: Literal["self-attention", "ssru"]) -> Path:
    """Write the fp32 bundle of a model with this kind of decoder layer, whose texts depend on its states."""
    out = folder / "fp32"
    checkpoint = make_checkpoint(gain=2, decoder_layer=decoder_layer)
    write_bundle(checkpoint, out, name="states", precision="fp32", verify=None)
    return out


def without_eos(targets: list[list[int]], manifest: bundle.Manifest) -> list[list[int]]:
    """Return targets as the engine gives them."""
    return [[token for token in target if token != manifest.special.eos] for target in targets]


def random_calibration(config: ModelConfig, special: SpecialIds, count: int = 40) -> list[CalibrationPair]:
    """Return pairs of random tokens, of all lengths that the model takes."""
    generator = np.random.default_rng(1)
    sizes = config.source_vocab_size or config.vocab_size, config.vocab_size
    longest = config.max_source_tokens, config.max_target_tokens - 1

    def ids(side: int) -> list[int]:
        length = int(generator.integers(1, longest[side]))
        return [*generator.integers(4, sizes[side], length).tolist(), special.eos]

    return [CalibrationPair(ids(0), ids(1)) for _ in range(count)]


def plant(folder: Path, out: Path, graph: str, change: Callable[[onnx.ModelProto], None]) -> Path:
    """Copy a bundle with a changed graph and a manifest that matches it."""
    out.mkdir()
    for name in bundle.load_manifest(folder).files:
        (out / name).write_bytes((folder / name).read_bytes())
    model = onnx.load(out / graph)
    change(model)
    onnx.save(model, out / graph)
    manifest = json.loads((folder / bundle.MANIFEST).read_text())
    manifest["sha256"][graph] = bundle.file_sha256(out / graph)
    (out / bundle.MANIFEST).write_text(json.dumps(manifest))
    return out


def quantized(folder: Path, out: Path) -> Path:
    """Make the int8 bundle of an fp32 one, without exporting the model again."""
    return converted(folder, out, "int8")


def converted(folder: Path, out: Path, precision: Precision, devices: Sequence[str] | None = None) -> Path:
    """Make a bundle of another precision, or for other devices, of an fp32 one, without exporting the model again."""
    out.mkdir()
    manifest = bundle.load_manifest(folder)
    for name in manifest.files:
        (out / name).write_bytes((folder / name).read_bytes())
    steps = manifest.model.pop("steps")
    encoder, decoder = (ir.load(folder / name) for name in bundle.GRAPHS)
    config = ModelConfig.from_dict(manifest.model)
    texts = random_calibration(config, manifest.special)
    last = convert(encoder, decoder, config, manifest.special, precision, texts, devices)
    save(encoder, out / bundle.ENCODER)
    save(decoder, out / bundle.DECODER)
    manifest.model["steps"] = steps
    hashes = {name: bundle.file_sha256(out / name) for name in manifest.files}
    replace(
        manifest, precision=precision, devices=devices_for(precision, devices), sha256=hashes, cross_last=last
    ).write(out)
    return out
