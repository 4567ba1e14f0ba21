"""Greedy search with a cache: the tokens of `search.greedy`, each position computed once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

import torch

from dragoman.model.attention import KeyValue
from dragoman.model.limits import default_max_new_tokens
from dragoman.model.masks import padding_mask
from dragoman.model.padding import pad_rows
from dragoman.model.samples import Output
from dragoman.model.search import generation_bias
from dragoman.model.tokenizers import Tokenizer
from dragoman.model.transformer import Transformer, flatten_states, unflatten_states
from dragoman.model.translate import translate_all
from dragoman.model.vocab import SPECIAL_IDS, SpecialIds


@torch.inference_mode()
def greedy_cached(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    max_new_tokens: Sequence[int],
    special: SpecialIds = SPECIAL_IDS,
) -> list[list[int]]:
    """Take the most probable token at each position; rows that have ended leave the batch.

    Args:
        model: In evaluation mode.
        sources: Token ids, each ended by EOS.
        max_new_tokens: Per row; the row ends there even without EOS.
        special: Ids with a meaning.

    Returns:
        Token ids per row, without the start token; EOS is included where it was reached.
    """
    device = model.output_weight.device
    lengths = torch.tensor([len(source) for source in sources], device=device)
    source_ids = pad_rows(sources, special.pad).to(device)
    cross = model.encode(source_ids, padding_mask(lengths, source_ids.size(1)))
    past = model.initial_state(len(sources), max(max_new_tokens))
    bias = generation_bias(model.config.vocab_size, special).to(device)

    outputs: list[list[int]] = [[] for _ in sources]
    alive = list(range(len(sources)))  # the output of each row of the tensors
    tokens = torch.full((len(sources), 1), special.start, device=device)
    for position in itertools.count():
        states, past = model.decode_step(tokens, cross, lengths, past, torch.full_like(lengths, position))
        tokens = (model.project(states) + bias).argmax(dim=-1)  # [B, 1]
        for i, token in zip(alive, tokens[:, 0].tolist(), strict=True):
            outputs[i].append(token)
        kept = [
            row for row, i in enumerate(alive) if outputs[i][-1] != special.eos and len(outputs[i]) < max_new_tokens[i]
        ]
        if not kept:
            break
        if len(kept) < len(alive):
            rows = torch.tensor(kept, device=device)
            alive = [alive[row] for row in kept]
            tokens, lengths = tokens[rows], lengths[rows]
            cross = [KeyValue(*(tensor[rows] for tensor in layer)) for layer in cross]
            past = unflatten_states(model.config, [tensor[rows] for tensor in flatten_states(past)])
    return outputs


def translate_texts(
    model: Transformer, tokenizer: Tokenizer, sources: Sequence[str], *, rows: int, progress: bool = True
) -> list[Output]:
    """Translate texts with the default limits on new tokens.

    Args:
        model: In evaluation mode.
        tokenizer: The model's.
        sources: Texts; one that is too long is refused.
        rows: Texts per batch.
        progress: Show a progress bar.

    Returns:
        One output per source, in their order.
    """
    config = model.config
    return translate_all(
        partial(greedy_cached, model, special=tokenizer.special),
        tokenizer,
        sources,
        max_source_tokens=config.max_source_tokens,
        max_new_tokens=lambda tokens: default_max_new_tokens(tokens, config.max_target_tokens),
        rows=rows,
        progress=progress,
    )
