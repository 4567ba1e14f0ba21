"""Reference searches: slow, without a cache, obviously correct. Every faster path is compared with them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dragoman.model.beam import BeamRow, BeamSettings, EarlyStopping, Hypothesis
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
    first: Sequence[int] = (),
) -> list[list[int]]:
    """Take the most probable token at each position, recomputing the whole prefix every time.

    Args:
        model: In evaluation mode.
        sources: Token ids, each ended by EOS.
        max_new_tokens: Per row; the row ends there even without EOS.
        special: Ids with a meaning.
        first: What every target begins with, behind the start token: forced, and not among the new tokens.

    Returns:
        Token ids per row, without the start token and `first`; EOS is included where it was reached.
    """
    lengths = torch.tensor([len(source) for source in sources])
    source_ids = pad_rows(sources, special.pad)
    mask = padding_mask(lengths, source_ids.size(1))
    cross = model.encode(source_ids, mask)
    bias = generation_bias(model.config.vocab_size, special)

    outputs: list[list[int]] = [[] for _ in sources]
    target = torch.tensor([[special.start, *first]] * len(sources))
    running = torch.ones(len(sources), dtype=torch.bool)
    while running.any():
        states = model.decode(target, cross, mask)[:, -1]
        likeliest = (model.project(states) + bias).argmax(dim=-1)
        for row in running.nonzero().flatten().tolist():
            token = int(likeliest[row])
            outputs[row].append(token)
            if token == special.eos or len(outputs[row]) >= max_new_tokens[row]:
                running[row] = False
        target = torch.cat((target, torch.where(running, likeliest, special.pad)[:, None]), dim=1)
    return outputs


def beam(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    max_new_tokens: Sequence[int],
    special: SpecialIds = SPECIAL_IDS,
    *,
    beams: int = 4,
    length_penalty: float = 1.0,
    early_stopping: EarlyStopping = False,
    first: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """Keep the most probable hypotheses of each source, one source at a time, recomputing the whole prefix.

    The rules are in `dragoman.model.beam`. A log-probability is that of the whole vocabulary: ids that are never
    generated keep their share and are passed over, as in the libraries that imported models come from.

    Args:
        model: In evaluation mode.
        sources: Token ids, each ended by EOS.
        max_new_tokens: Per source; a hypothesis ends there even without EOS.
        special: Ids with a meaning.
        beams: Hypotheses that are kept of each source.
        length_penalty: See `BeamSettings`.
        early_stopping: See `BeamSettings`.
        first: As in `greedy`; they count for the length that a score is divided by.

    Returns:
        Per source its hypotheses, the best first.
    """
    settings = BeamSettings(beams, length_penalty, early_stopping)
    return [
        _beam_of_one(model, source, limit, special, settings, list(first))
        for source, limit in zip(sources, max_new_tokens, strict=True)
    ]


@torch.inference_mode()
def _beam_of_one(
    model: Transformer,
    source: Sequence[int],
    limit: int,
    special: SpecialIds,
    settings: BeamSettings,
    first: list[int],
) -> list[Hypothesis]:
    row = BeamRow(settings, limit=limit, eos=special.eos, forced=len(first))
    while not row.done:
        count = len(row.live)
        source_ids, lengths = torch.tensor([list(source)] * count), torch.tensor([len(source)] * count)
        target = torch.tensor([[special.start, *first, *live.tokens] for live in row.live])
        states = model(source_ids, lengths, target)[:, -1]
        row.advance(*best(next_log_probs(model, states, special), settings.candidates))
    return row.hypotheses


def next_log_probs(model: Transformer, states: Tensor, special: SpecialIds) -> Tensor:
    """Return log-probabilities [..., V] float32 of the next token, -inf for ids that are never generated.

    Args:
        model: Makes logits of states.
        states: [..., E].
        special: Ids with a meaning.
    """
    log_probs = model.project(states).float().log_softmax(dim=-1)
    return log_probs + generation_bias(log_probs.size(-1), special).to(log_probs.device)


def best(log_probs: Tensor, count: int) -> tuple[list[list[int]], list[list[float]]]:
    """Return ids and log-probabilities of the `count` most probable tokens of each row of [B, V]."""
    found = log_probs.topk(min(count, log_probs.size(-1)), dim=-1)
    return found.indices.tolist(), found.values.tolist()
