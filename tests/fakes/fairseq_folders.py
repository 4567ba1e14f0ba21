"""Folders as fairseq leaves them, with random weights, written without fairseq."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.model.vocab import SpecialIds
from tests.fakes.plain_transformer import Naming, Plain, PlainTransformer
from tests.fakes.references import enliven, random_sources

IDS = SpecialIds(pad=1, unk=3, start=2, eos=2)
SOURCES = random_sources(16, 4, 36, around=((), (2,)))
COMMON = {"self": "self_attn", "expand": "fc1", "contract": "fc2", "norm_self": "self_attn_layer_norm",
          "norm_forward": "final_layer_norm"}  # fmt: skip
NAMING = Naming(
    layers={"encoder": "encoder.layers.{}", "decoder": "decoder.layers.{}"},
    parts={"encoder": COMMON, "decoder": COMMON | {"cross": "encoder_attn", "norm_cross": "encoder_attn_layer_norm"}},
    heads=("q_proj", "k_proj", "v_proj", "out_proj"),
    tables=("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection"),
    final={"encoder": "encoder.layer_norm", "decoder": "decoder.layer_norm"},
    embedding_norm="{}.layernorm_embedding",
)


def formula(rows: int, width: int) -> Tensor:
    """Return fairseq's table of positions, which it reads from the third row on."""
    half = width // 2
    rates = torch.exp(torch.arange(half) * -(math.log(10000) / (half - 1)))
    angles = torch.arange(rows)[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), dim=1)[2:]


def plain(**changes: Any) -> PlainTransformer:
    torch.manual_seed(5)
    settings = Plain(**{"positions": formula(40, 32), "scale": math.sqrt(32), **changes})
    model = PlainTransformer(settings, NAMING)
    gains = {"layers": 2.0, "embeddings": 3.0} if settings.pre else {"layers": 1.0}
    if settings.tied != "none":
        gains = {"layers": 4.0}
    enliven(model.parameters(), model.tables(), model, model.output, SOURCES, IDS, end=3.0, **gains)
    return model


def options_of(model: PlainTransformer, **changes: Any) -> argparse.Namespace:
    settings = model.plain
    values = {
        "arch": "transformer", "task": "translation", "source_lang": "deu", "target_lang": "en_XX",
        "encoder_embed_dim": settings.width, "encoder_ffn_embed_dim": settings.forward,
        "decoder_ffn_embed_dim": settings.forward, "encoder_attention_heads": settings.heads,
        "decoder_attention_heads": settings.heads, "encoder_layers": settings.depth["encoder"],
        "decoder_layers": settings.depth["decoder"], "encoder_normalize_before": settings.pre,
        "decoder_normalize_before": settings.pre, "max_source_positions": 30, "max_target_positions": 20,
    }  # fmt: skip
    return argparse.Namespace(**{**values, **changes})


def write(folder: Path, model: PlainTransformer, state: dict[str, Any] | None = None, **options: Any) -> Path:
    tensors = dict(model.state) if state is None else state
    for stack in ("encoder", "decoder"):
        tensors.setdefault(f"{stack}.version", torch.tensor([3.0]))
        tensors.setdefault(f"{stack}.embed_positions._float_tensor", torch.zeros(1))
    torch.save({"args": options_of(model, **options), "model": tensors}, folder / "model.pt")
    for language, size, letter in (("deu", model.plain.source, "s"), ("en_XX", model.plain.target, "t")):
        lines = [f"{letter}{i} {99 - i}\n" for i in range(size - 4)]
        (folder / f"dict.{language}.txt").write_text("".join(lines), "utf-8")
    return folder
