"""The model with its loss, as one function of a batch: what is distributed over processes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dragoman.model.data import Batch
from dragoman.model.loss import label_smoothed_loss
from dragoman.model.transformer import Transformer


class LossModule(nn.Module):
    """Target tokens to the sum of their losses."""

    def __init__(self, model: Transformer, pad: int, *, compiled: bool = False) -> None:
        """Wrap `model`; its weights are shared.

        Args:
            model: To be trained or validated.
            pad: Target id that does not count.
            compiled: Compile the model. The loss stays as it is: its size changes with every batch.
        """
        super().__init__()
        self.model = model
        self.pad = pad
        self._run = torch.compile(model, dynamic=True) if compiled else model

    def forward(self, batch: Batch, smoothing: float) -> Tensor:
        """Return the sum of the loss over the batch's target tokens."""
        states = self._run(batch.source_ids, batch.source_lengths, batch.target_in)
        real = batch.target_out != self.pad
        scaled = self.model.output.scale(states[real])
        weight, bias = self.model.output_weight, self.model.output_bias
        loss: Tensor = label_smoothed_loss(scaled, weight, batch.target_out[real], smoothing, bias)
        return loss
