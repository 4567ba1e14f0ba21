"""The simpler simple recurrent unit (Kim et al. 2019, "From Research to Production and Back", 3.1).

It takes the place of the decoder's self-attention: what a position knows of earlier ones is one
vector per layer, however long the text is. So a decode step costs the same at every length, and a
server keeps E numbers per row and layer where attention needs 2 E per token.

    f_t = sigmoid(x_t W_f + b_f)
    c_t = f_t * c_(t-1) + (1 - f_t) * x_t W
    h_t = relu(c_t)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from dragoman.model.config import ModelConfig


class SSRU(nn.Module):
    """One recurrent cell of width E."""

    def __init__(self, config: ModelConfig) -> None:
        """Create W without bias and W_f with one."""
        super().__init__()
        self.value = nn.Linear(config.d_model, config.d_model, bias=False)
        self.forget = nn.Linear(config.d_model, config.d_model)

    def forward(self, states: Tensor, cell: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run over T new positions.

        Args:
            states: [B, T, E].
            cell: [B, E] float, c of the position before; None means zeros.

        Returns:
            h [B, T, E], and c of the last position [B, E].
        """
        gate = self.forget(states)
        update = torch.sigmoid(-gate) * self.value(states)  # 1 - sigmoid(z) = sigmoid(-z)
        cells = scan(torch.sigmoid(gate), update) if cell is None else advance(gate, update, cell)
        return cells.relu(), cells[:, -1]


def scan(forget: Tensor, update: Tensor) -> Tensor:
    """Return c_t = forget_t * c_(t-1) + update_t for all t, from c = 0.

    By doubling: after step k each position has seen the 2^k positions up to itself, so T positions
    take log2(T) steps over whole tensors instead of T small ones.

    Args:
        forget: [B, T, E], in (0, 1).
        update: [B, T, E].

    Returns:
        [B, T, E].
    """
    shift = 1
    while shift < update.size(1):
        earlier = nn.functional.pad(update, (0, 0, shift, 0))[:, :-shift]
        update = update + forget * earlier
        forget = forget * nn.functional.pad(forget, (0, 0, shift, 0), value=1.0)[:, :-shift]
        shift *= 2
    return update


def advance(gate: Tensor, update: Tensor, cell: Tensor) -> Tensor:
    """Return the same cells, from any `cell` and without a loop over positions.

    c_t = sum over j <= t of (product of forget over j+1..t) * update_j, with c before the first
    position as update_0. The products are differences of running sums of log forget, so they never
    overflow. Work grows with T^2; a decode step has T = 1. It needs no loop, so one exported graph
    serves every T.

    Args:
        gate: [B, T, E], before the sigmoid.
        update: [B, T, E].
        cell: [B, E].

    Returns:
        [B, T, E].
    """
    total = logsigmoid(gate).cumsum(1)  # [B, T, E]
    size = update.size(1)
    decay = (total[:, :, None] - total[:, None]).clamp(max=0.0).exp()  # [B, T, T, E]; the upper half is not used
    earlier = torch.ones(size, size, dtype=torch.bool, device=update.device).tril()[None, :, :, None]
    mixed = (torch.where(earlier, decay, 0.0) * update[:, None]).sum(2)
    return mixed + total.exp() * cell[:, None]
