"""Small models with random weights, one for each option of the configuration."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dragoman.model.config import ModelConfig
from dragoman.model.transformer import Transformer

SMALL: dict[str, Any] = {
    "vocab_size": 50, "d_model": 32, "d_ff": 64, "num_heads": 4, "num_encoder_layers": 2, "num_decoder_layers": 2,
    "dropout": 0.0, "max_source_tokens": 20, "max_target_tokens": 20,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "post": {"norm_position": "post"},
    "sinusoidal-half": {"positions": "sinusoidal-half"},
    "sinusoidal-half-paper": {"positions": "sinusoidal-half-paper"},
    "sinusoidal-half from 2": {"positions": "sinusoidal-half", "first_position": 2},
    "learned": {"positions": "learned"},
    "rotary": {"positions": "rotary"},
    "relative": {"positions": "relative", "relative_buckets": 8, "relative_max_distance": 12},
    "none": {"positions": "none"},
    "gelu": {"activation": "gelu"},
    "silu gated": {"activation": "silu", "gated": True},
    "gelu-tanh gated": {"activation": "gelu-tanh", "gated": True},
    "rms": {"norm": "rms", "bias": False},
    "post with final norm": {"norm_position": "post", "final_norm": True},
    "bart": {"norm_position": "post", "positions": "learned", "activation": "gelu", "embedding_norm": True},
    "grouped": {"num_key_value_heads": 2},
    "one head of keys": {"num_key_value_heads": 1, "positions": "rotary"},
    "wide heads": {"d_head": 12},
    "t5": {
        "norm": "rms", "bias": False, "positions": "relative", "scale_attention": False, "scale_embedding": False,
        "scale_output": True, "activation": "gelu-tanh", "gated": True,
    },
    "source-target": {"tied_embeddings": "source-target"},
    "target-output": {"tied_embeddings": "target-output", "source_vocab_size": 44, "output_bias": True},
    "source-output": {"tied_embeddings": "source-output"},
    "untied": {"tied_embeddings": "none", "source_vocab_size": 44, "output_bias": True},
    "ssru": {"decoder_layer": "ssru"},
    "ssru post": {"decoder_layer": "ssru", "norm_position": "post", "output_bias": True},
    "ssru relative": {"decoder_layer": "ssru", "positions": "relative"},
}  # fmt: skip


def make_config(**settings: Any) -> ModelConfig:
    return ModelConfig(**{**SMALL, **settings})


def make_model(**settings: Any) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(make_config(**settings))
    with torch.no_grad():  # a bias of zero and a norm of one would hide mistakes
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def random_batch() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randint(4, 44, (3, 7)), torch.tensor([7, 5, 3]), torch.randint(4, 50, (3, 6))
