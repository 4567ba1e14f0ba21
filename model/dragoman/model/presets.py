"""Well-known sizes by name. Standard library only.

A recipe takes one with `preset = "..."` in its [model] table and may override any setting.
"""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # "Attention Is All You Need", table 3: base and big.
    "transformer-base": {
        "d_model": 512, "d_ff": 2048, "num_heads": 8, "num_encoder_layers": 6, "num_decoder_layers": 6,
        "norm_position": "post",
    },
    "transformer-big": {
        "d_model": 1024, "d_ff": 4096, "num_heads": 16, "num_encoder_layers": 6, "num_decoder_layers": 6,
        "norm_position": "post", "dropout": 0.3,
    },
    # Deep encoder, shallow decoder (Kasai et al. 2021): the quality of base at the decode cost of one layer.
    "base-12-1": {
        "d_model": 512, "d_ff": 2048, "num_heads": 8, "num_encoder_layers": 12, "num_decoder_layers": 1,
    },
    "small": {
        "d_model": 256, "d_ff": 1024, "num_heads": 4, "num_encoder_layers": 6, "num_decoder_layers": 2,
    },
    # The student architecture of the Bergamot project: a recurrent decoder, no self-attention cache.
    "tiny": {
        "d_model": 256, "d_ff": 1536, "num_heads": 8, "num_encoder_layers": 6, "num_decoder_layers": 2,
        "norm_position": "post", "positions": "sinusoidal-half", "decoder_layer": "ssru", "output_bias": True,
    },
}  # fmt: skip

# One stack: GPT/LLaMA-like and BERT-like; for `single_stack`, not for recipes.
SINGLE_STACK_PRESETS: dict[str, dict[str, Any]] = {
    "decoder-only-small": {
        "d_model": 256, "d_ff": 704, "num_heads": 4, "num_decoder_layers": 6, "norm": "rms", "bias": False,
        "positions": "rotary", "activation": "silu", "gated": True, "num_key_value_heads": 2,
        "scale_embedding": False,
    },
    "encoder-only-small": {
        "d_model": 256, "d_ff": 1024, "num_heads": 4, "num_encoder_layers": 6, "norm_position": "post",
        "positions": "learned", "activation": "gelu", "output_bias": True, "scale_embedding": False,
    },
}  # fmt: skip
