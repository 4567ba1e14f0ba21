"""What the encoder returns for a batch of sources."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.server.device_memory import Tensor


@dataclass(frozen=True, slots=True)
class Encoded:
    """Keys and values of B sources, padded to the longest of them, S.

    Attributes:
        cross: Key, value, ... [B, H, S, D] in layer order.
        last: The same of each source's last position, [B, 2L, H * D] float32; None if the decoder does not read it.
    """

    cross: list[Tensor]
    last: Tensor | None = None
