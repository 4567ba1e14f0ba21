"""The rules of Marian's decoder, for comparisons with Marian itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dragoman.model.checkpoint import Checkpoint


@torch.inference_mode()
def marian_beam(checkpoint: Checkpoint, source: Sequence[int], limit: int, beams: int) -> list[int]:
    """Search our model by the rules of Marian's decoder, which differ from ours; returns tokens without EOS.

    A hypothesis that ends leaves its place in the beam empty, and the search goes on until no place is left.
    """
    special = checkpoint.tokenizer.special
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for length in range(1, limit + 1):
        prefixes = torch.tensor([[special.start, *tokens] for _, tokens in live])
        rows = len(live)
        states = checkpoint.model(torch.tensor([list(source)] * rows), torch.tensor([len(source)] * rows), prefixes)
        log_probs = checkpoint.model.project(states[:, -1]).log_softmax(-1)
        log_probs[:, list(special.never_generated)] = -torch.inf
        scores = torch.tensor([score for score, _ in live])[:, None] + log_probs
        best = scores.flatten().topk(beams)
        chosen = [
            (score, [*live[index // scores.size(1)][1], index % scores.size(1)])
            for score, index in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]
        last = length == limit
        ended += [(score / length, tokens) for score, tokens in chosen if last or tokens[-1] == special.eos]
        live = [(score, tokens) for score, tokens in chosen if tokens[-1] != special.eos]
        beams = len(live)
        if not live:
            break
    return [token for token in max(ended)[1] if token != special.eos]
