"""The two operations a decode step needs on a key/value cache, as torch custom operators.

Custom operators, because the exporter has to map each of them onto *one* ONNX operator
(`TensorScatter` and `Attention`, opset 24), which keeps the cache in place; traced as ordinary
torch code they would become a copy of the whole cache. The bodies here are the eager meaning, which
the tests compare with the plain full pass. Inference only: no gradient is registered.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dragoman.model.dot_product import scaled_dot_product_attention
from dragoman.model.masks import ValidLengths, valid_mask


@torch.library.custom_op("dragoman::cache_write", mutates_args=())
def cache_write(cache: Tensor, update: Tensor, cache_lengths: Tensor) -> Tensor:
    """Return `cache` with `update` written behind each row's valid part.

    Args:
        cache: [B, H_kv, T_max, D].
        update: [B, H_kv, Q, D].
        cache_lengths: [B] int64, positions of each row already in use.

    Returns:
        [B, H_kv, T_max, D].
    """
    positions = cache_lengths[:, None] + torch.arange(update.size(2), device=cache.device)  # [B, Q]
    rows = torch.arange(cache.size(0), device=cache.device)[:, None]
    written = cache.clone()
    written[rows, :, positions] = update.transpose(1, 2)
    return written


@cache_write.register_fake
def _(cache: Tensor, update: Tensor, cache_lengths: Tensor) -> Tensor:  # noqa: ARG001  # the operator's signature
    return torch.empty_like(cache)


@torch.library.custom_op("dragoman::attend_valid", mutates_args=())
def attend_valid(
    query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, causal: bool, bias: Tensor | None, scale: float
) -> Tensor:
    """Attend to the first `lengths` keys of each row (see `masks.ValidLengths`).

    Args:
        query: [B, H, Q, D].
        key: [B, H_kv, K, D].
        value: [B, H_kv, K, D].
        lengths: [B] int64, each >= Q if causal, else >= 1.
        causal: Query i is position lengths - Q + i and sees nothing behind itself.
        bias: Added to the scores, broadcasts to [B, H, Q, K]; or None.
        scale: Of the scores.

    Returns:
        [B, H, Q, D].
    """
    mask = valid_mask(ValidLengths(lengths, causal), query.size(2), key.size(2))
    attended, _ = scaled_dot_product_attention(query, key, value, mask, bias=bias, scale=scale)
    return attended


@attend_valid.register_fake
def _(
    query: Tensor,
    key: Tensor,  # noqa: ARG001  # as above
    value: Tensor,  # noqa: ARG001
    lengths: Tensor,  # noqa: ARG001
    causal: bool,  # noqa: ARG001
    bias: Tensor | None,  # noqa: ARG001
    scale: float,  # noqa: ARG001
) -> Tensor:
    return torch.empty_like(query)
