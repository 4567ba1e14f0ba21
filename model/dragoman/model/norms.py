"""Normalisation of the residual stream."""

from __future__ import annotations

from torch import nn

from dragoman.model.config import ModelConfig


def make_norm(config: ModelConfig) -> nn.Module:
    """Return the configured norm over E: layer norm, or RMS norm, which has no mean and no bias."""
    if config.norm == "rms":
        return nn.RMSNorm(config.d_model, eps=config.norm_epsilon)
    return nn.LayerNorm(config.d_model, eps=config.norm_epsilon, bias=config.bias)
