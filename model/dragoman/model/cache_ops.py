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
        cache: [B, H, T_max, D].
        update: [B, H, Q, D].
        cache_lengths: [B] int64, positions of each row already in use.

    Returns:
        [B, H, T_max, D].
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
def attend_valid(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, causal: bool) -> Tensor:
    """Attend to the first `lengths` keys of each row (see `masks.ValidLengths`).

    Args:
        query: [B, H, Q, D].
        key: [B, H, K, D].
        value: [B, H, K, D].
        lengths: [B] int64, each >= Q if causal, else >= 1.
        causal: Query i is position lengths - Q + i and sees nothing behind itself.

    Returns:
        [B, H, Q, D].
    """
    mask = valid_mask(ValidLengths(lengths, causal), query.size(2), key.size(2))
    return scaled_dot_product_attention(query, key, value, mask)


@attend_valid.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, causal: bool) -> Tensor:  # noqa: ARG001  # as above
    return torch.empty_like(query)
