"""Label-smoothed cross entropy (paper, 5.4), computed together with the output projection.

The logits of a batch are its largest tensor by far (4,000 tokens x 8,000 pieces are 128 MB in
float32, several times over with their gradient). Taken a few hundred rows at a time they stay in
the processor's cache, and the gradient is made in the same pass: a training step of the default
model takes 0.43 s instead of 0.66 s on two cores.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ROWS = 512


# Not compiled: every batch has another number of tokens, so a compiler would begin anew each time.
@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch leaves it untyped
def label_smoothed_loss(
    states: Tensor, weight: Tensor, labels: Tensor, smoothing: float, bias: Tensor | None = None
) -> Tensor:
    """Return the sum over tokens of the smoothed cross entropy, in nats.

    (1 - smoothing) * -log p(label) + smoothing * mean over the vocabulary of -log p, where p is the
    softmax of `states @ weight.T + bias`. The products run in the autocast dtype, the rest in float32.

    Args:
        states: [N, E] float.
        weight: [V, E] float.
        labels: [N] int64, padding already removed.
        smoothing: Mass spread evenly over all V classes.
        bias: [V] float.

    Returns:
        Scalar float32.
    """
    loss: Tensor = _ProjectedCrossEntropy.apply(states, weight, bias, labels, smoothing, torch.is_grad_enabled())  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return loss


class _ProjectedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        smoothing: float,
        with_gradients: bool,
    ) -> Tensor:
        device = states.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        classes = weight.size(0)
        wide, narrow = weight.to(dtype), states.to(dtype)
        total = torch.zeros((), dtype=torch.float32, device=states.device)
        states_grad = torch.empty_like(narrow)
        weight_grad = torch.zeros_like(weight)
        bias_grad = None if bias is None else torch.zeros_like(bias)
        for start in range(0, len(labels), _ROWS):
            rows, label = narrow[start : start + _ROWS], labels[start : start + _ROWS, None]
            logits = (rows @ wide.T).float()
            if bias is not None:
                logits += bias
            log_sum = logits.logsumexp(-1, keepdim=True)
            total += log_sum.sum() - (1 - smoothing) * logits.gather(1, label).sum()
            total -= smoothing * logits.mean(-1).sum()
            if not with_gradients:
                continue
            # d loss / d logits = softmax - smoothed label.
            gradient = logits.sub_(log_sum).exp_().sub_(smoothing / classes)
            gradient.scatter_add_(1, label, torch.full_like(label, smoothing - 1, dtype=gradient.dtype))
            if bias_grad is not None:
                bias_grad += gradient.sum(0)
            gradient = gradient.to(dtype)
            states_grad[start : start + _ROWS] = gradient @ wide
            weight_grad += gradient.T @ rows
        ctx.save_for_backward(states_grad.to(states.dtype), weight_grad, bias_grad)
        return total

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        states_grad, weight_grad, bias_grad = ctx.saved_tensors
        (scale,) = outputs
        return (
            states_grad * scale,
            weight_grad * scale,
            None if bias_grad is None else bias_grad * scale,
            None,
            None,
            None,
        )
