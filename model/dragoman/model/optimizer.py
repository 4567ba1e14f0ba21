"""Which optimiser updates which weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dragoman.model.recipe import TrainConfig

_BETAS = (0.9, 0.98)  # paper, 5.3


class Optimizers:
    """One or two torch optimisers behind the interface of one.

    "adam": all weights. "muon": the matrices inside encoder and decoder layers are updated along
    the orthogonalised momentum of their gradient (Jordan 2024), embeddings, norms and biases by
    Adam. Each weight keeps the peak learning rate of its kind; the schedule scales both alike.
    """

    def __init__(self, model: nn.Module, config: TrainConfig) -> None:
        """Sort the weights; a weight that is shared is counted once."""
        inner = set(_layer_matrices(model)) if config.optimizer == "muon" else set()
        matrices: list[Tensor] = []
        decayed: list[Tensor] = []
        plain: list[Tensor] = []
        for parameter in model.parameters():
            kind = matrices if parameter in inner else decayed if parameter.dim() > 1 else plain
            kind.append(parameter)
        groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        self._peaks: list[float] = [config.learning_rate]
        self.each: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(groups, lr=config.learning_rate, betas=_BETAS, eps=1e-9, fused=True)
        ]
        if matrices:
            self._peaks.append(config.muon_learning_rate)
            self.each.append(
                torch.optim.Muon(
                    matrices, lr=config.muon_learning_rate, weight_decay=config.weight_decay, momentum=0.95
                )
            )

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for optimizer in self.each:
            optimizer.zero_grad(set_to_none=True)

    def step(self, scale: float, scaler: torch.amp.GradScaler) -> None:
        """Update all weights with `scale` times their peak learning rate."""
        for peak, optimizer in zip(self._peaks, self.each, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * scale
            scaler.step(optimizer)

    def state_dict(self) -> list[dict[str, Any]]:
        """Return what `load_state_dict` takes."""
        return [optimizer.state_dict() for optimizer in self.each]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Continue where `state_dict` was called.

        Raises:
            ValueError: The states are of other optimisers.
        """
        for optimizer, state in zip(self.each, states, strict=True):
            optimizer.load_state_dict(state)


def _layer_matrices(model: nn.Module) -> Iterable[Tensor]:
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and ".layers." in f".{name}":
            yield parameter
