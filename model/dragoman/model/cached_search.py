"""Searches with a cache: what `search.greedy` and `search.beam` find, each position computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.model.attention import KeyValue
from dragoman.model.beam import BeamSearch, BeamSettings, EarlyStopping, Hypothesis
from dragoman.model.limits import default_max_new_tokens
from dragoman.model.masks import padding_mask
from dragoman.model.padding import pad_rows
from dragoman.model.samples import Output
from dragoman.model.search import best, generation_bias, next_log_probs
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
    first: Sequence[int] = (),
) -> list[list[int]]:
    """Take the most probable token at each position; rows that have ended leave the batch.

    Arguments and result are those of `search.greedy`.
    """
    batch = _Batch(model, sources, max(max_new_tokens), special, first)
    bias = generation_bias(model.config.vocab_size, special).to(batch.device)
    outputs: list[list[int]] = [[] for _ in sources]
    alive = list(range(len(sources)))  # the output of each row of the batch
    tokens = batch.first
    while alive:
        chosen = (model.project(batch.step(tokens)) + bias).argmax(dim=-1).tolist()
        for i, token in zip(alive, chosen, strict=True):
            outputs[i].append(token)
        kept = [
            row for row, i in enumerate(alive) if outputs[i][-1] != special.eos and len(outputs[i]) < max_new_tokens[i]
        ]
        alive = [alive[row] for row in kept]
        batch.gather(kept, alive)
        tokens = [[chosen[row]] for row in kept]
    return outputs


@torch.inference_mode()
def beam_cached(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    max_new_tokens: Sequence[int],
    special: SpecialIds = SPECIAL_IDS,
    *,
    beams: int = 4,
    length_penalty: float = 1.0,
    early_stopping: EarlyStopping = False,
    first: Sequence[int] = (),
    disturb: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
) -> list[list[Hypothesis]]:
    """Keep the most probable hypotheses of all sources at once; what has ended leaves the batch.

    Arguments and result are those of `search.beam`. `disturb` changes log-probabilities [B, V] before the search
    sees them: whoever asks how much of a result hangs on rounding adds errors there.
    """
    settings = BeamSettings(beams, length_penalty, early_stopping)
    search = BeamSearch(settings, max_new_tokens, eos=special.eos, forced=len(first))
    batch = _Batch(model, sources, max(max_new_tokens), special, first)
    tokens = batch.first
    while search.sources:
        log_probs = next_log_probs(model, batch.step(tokens), special)
        if disturb is not None:
            log_probs = torch.from_numpy(disturb(log_probs.cpu().numpy()))
        parents = search.advance(*best(log_probs, settings.candidates))
        batch.gather(parents, search.sources)
        tokens = [[token] for token in search.newest]
    return search.hypotheses


class _Batch:
    """Encoded sources and the decoder states of rows that have read equally many tokens.

    Attributes:
        device: Of all tensors.
        first: Per row, what it reads first.
    """

    def __init__(
        self,
        model: Transformer,
        sources: Sequence[Sequence[int]],
        max_new_tokens: int,
        special: SpecialIds,
        first: Sequence[int],
    ) -> None:
        self.device = model.output_weight.device
        self.first = [[special.start, *first]] * len(sources)
        self._model = model
        source_ids = pad_rows(sources, special.pad).to(self.device)
        self._source_lengths = torch.tensor([len(source) for source in sources], device=self.device)
        self._encoded = model.encode(source_ids, padding_mask(self._source_lengths, source_ids.size(1)))
        self._past = model.initial_state(len(sources), len(first) + max_new_tokens)
        self._read = 0
        self._sources = list(range(len(sources)))  # of each row
        self._lengths, self._cross = self._source_lengths, self._encoded

    def step(self, tokens: list[list[int]]) -> Tensor:
        """Read tokens [B, Q] and return the states [B, E] of the last ones."""
        read = torch.full_like(self._lengths, self._read)
        input_ids = torch.tensor(tokens, device=self.device)
        states, self._past = self._model.decode_step(input_ids, self._cross, self._lengths, self._past, read)
        self._read += input_ids.size(1)
        return states[:, -1]

    def gather(self, parents: list[int], sources: list[int]) -> None:
        """Go on with these rows, in this order; `sources` are theirs."""
        if not parents:
            return
        if parents != list(range(len(self._sources))):
            rows = torch.tensor(parents, device=self.device)
            self._past = unflatten_states(self._model.config, [state[rows] for state in flatten_states(self._past)])
        if sources != self._sources:
            rows = torch.tensor(sources, device=self.device)
            self._lengths = self._source_lengths[rows]
            self._cross = [KeyValue(*(tensor[rows] for tensor in layer)) for layer in self._encoded]
            self._sources = sources


def translate_texts(
    model: Transformer,
    tokenizer: Tokenizer,
    sources: Sequence[str],
    *,
    rows: int,
    frame: Callable[[list[int]], list[int]] = list,
    first: Sequence[int] = (),
    progress: bool = True,
) -> list[Output]:
    """Translate texts with the default limits on new tokens.

    Args:
        model: In evaluation mode.
        tokenizer: The model's.
        sources: Texts; one that is too long is refused.
        rows: Texts per batch.
        frame: Puts the tokens of the languages around a source, see `Languages.frame`.
        first: What every target begins with, see `Languages.first_target`.
        progress: Show a progress bar.

    Returns:
        One output per source, in their order.
    """
    config = model.config
    room = config.max_target_tokens - len(first)
    return translate_all(
        partial(greedy_cached, model, special=tokenizer.special, first=first),
        tokenizer,
        sources,
        max_source_tokens=config.max_source_tokens,
        max_new_tokens=lambda tokens: min(room, default_max_new_tokens(tokens, config.max_target_tokens)),
        frame=frame,
        rows=rows,
        progress=progress,
    )
