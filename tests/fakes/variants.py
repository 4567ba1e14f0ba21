"""Models that between them have every setting that changes the graphs, and their bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dragoman.export.write import write_bundle
from dragoman.model.checkpoint import Checkpoint
from tests.fakes.bundles import make_checkpoint, quantized

SSRU: dict[str, Any] = {"decoder_layer": "ssru"}
# Between them they have every setting of `ModelConfig` that changes the graphs.
VARIANTS: dict[str, dict[str, Any]] = {
    "sinusoidal in halves, output bias": {
        "norm_position": "post", "positions": "sinusoidal-half", "activation": "silu", "output_bias": True,
    },
    "learned positions, embedding norm, output matrix of its own": {
        "norm_position": "post", "positions": "learned", "embedding_norm": True, "activation": "gelu",
        "tied_embeddings": "source-target",
    },
    "sinusoidal in halves with the paper's rates": {"norm_position": "post", "positions": "sinusoidal-half-paper"},
    "sinusoidal in halves from 2": {"positions": "sinusoidal-half", "first_position": 2},
    "rotary, grouped heads, RMS norm, gated, no bias, nothing tied": {
        "positions": "rotary", "num_key_value_heads": 2, "norm": "rms", "gated": True, "activation": "silu",
        "bias": False, "tied_embeddings": "none",
    },
    "relative, no scales but of the output": {
        "positions": "relative", "relative_buckets": 8, "relative_max_distance": 16, "norm": "rms", "gated": True,
        "activation": "gelu-tanh", "bias": False, "scale_attention": False, "scale_embedding": False,
        "scale_output": True,
    },
    "no positions, one head of keys, wide heads, a norm behind the last one": {
        "norm_position": "post", "positions": "none", "num_key_value_heads": 1, "d_head": 12, "final_norm": True,
        "bias": False, "tied_embeddings": "source-output",
    },
    "ssru": SSRU,
    "ssru, grouped heads, rotary encoder, RMS norm, gated, no bias": {
        **SSRU, "norm_position": "post", "positions": "rotary", "num_key_value_heads": 2, "norm": "rms", "gated": True,
        "bias": False, "tied_embeddings": "target-output",
    },
}  # fmt: skip


class Exported:
    """A model and its fp32 and int8 bundles."""

    def __init__(self, settings: dict[str, Any], folder: Path) -> None:
        self.settings = settings
        # A gain of 4 would let PyTorch's own fp32 logits of some variants be 1e-2 away from its fp64 ones.
        self.checkpoint: Checkpoint = make_checkpoint(gain=2, **settings)
        self.fp32 = folder / "fp32"
        write_bundle(self.checkpoint, self.fp32, name="b", precision="fp32", verify=None)
        self.int8 = quantized(self.fp32, folder / "int8")
