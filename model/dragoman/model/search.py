"""Reference search: slow, without a cache, obviously correct. Every faster path is compared with it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dragoman.model.masks import padding_mask
from dragoman.model.padding import pad_rows
from dragoman.model.transformer import Transformer
from dragoman.model.vocab import SPECIAL_IDS, SpecialIds


def generation_bias(vocab_size: int, special: SpecialIds) -> Tensor:
    """Return [V] float32 to add to logits: -inf for ids that must not be generated, else 0."""
    bias = torch.zeros(vocab_size)
    bias[list(special.never_generated)] = float("-inf")
    return bias


@torch.inference_mode()
def greedy(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    max_new_tokens: Sequence[int],
    special: SpecialIds = SPECIAL_IDS,
) -> list[list[int]]:
    """Take the most probable token at each position, recomputing the whole prefix every time.

    Args:
        model: In evaluation mode.
        sources: Token ids, each ended by EOS.
        max_new_tokens: Per row; the row ends there even without EOS.
        special: Ids with a meaning.

    Returns:
        Token ids per row, without the start token; EOS is included where it was reached.
    """
    lengths = torch.tensor([len(source) for source in sources])
    source_ids = pad_rows(sources, special.pad)
    mask = padding_mask(lengths, source_ids.size(1))
    cross = model.encode(source_ids, mask)
    bias = generation_bias(model.config.vocab_size, special)

    outputs: list[list[int]] = [[] for _ in sources]
    target = torch.full((len(sources), 1), special.start)
    running = torch.ones(len(sources), dtype=torch.bool)
    while running.any():
        states = model.decode(target, cross, mask)[:, -1]
        best = (model.project(states) + bias).argmax(dim=-1)
        for row in running.nonzero().flatten().tolist():
            token = int(best[row])
            outputs[row].append(token)
            if token == special.eos or len(outputs[row]) >= max_new_tokens[row]:
                running[row] = False
        target = torch.cat((target, torch.where(running, best, special.pad)[:, None]), dim=1)
    return outputs
