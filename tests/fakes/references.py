"""Models of other libraries, searched by the plainest loops there are, and compared with what was imported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from dragoman.model.beam import BeamRow, BeamSettings
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.masks import padding_mask
from dragoman.model.padding import pad_rows
from dragoman.model.search import beam, greedy
from dragoman.model.vocab import SpecialIds

LIMIT = 12


class Reference(Protocol):
    """Somebody else's model."""

    def logits(self, source: list[int], target: list[int]) -> Tensor:
        """Return [T, V] of one source and one target, which begins with the start token."""


def random_sources(
    count: int, low: int, high: int, *, around: tuple[tuple[int, ...], tuple[int, ...]]
) -> list[list[int]]:
    """Return sources of 1 to 9 random ids in [low, high), with fixed ids in front and behind."""
    generator = torch.Generator().manual_seed(1)
    return [
        [*around[0], *torch.randint(low, high, (1 + row % 9,), generator=generator).tolist(), *around[1]]
        for row in range(count)
    ]


def random_targets(count: int, vocab: int, start: int) -> list[list[int]]:
    """Return targets of 1 to 7 random ids behind the start token."""
    generator = torch.Generator().manual_seed(2)
    return [[start, *torch.randint(4, vocab, (1 + row % 7,), generator=generator).tolist()] for row in range(count)]


def enliven(
    parameters: Iterable[Tensor],
    tables: Iterable[Tensor],
    reference: Reference,
    output: Tensor,
    sources: Sequence[list[int]],
    special: SpecialIds,
    *,
    layers: float = 2.0,
    embeddings: float = 1.0,
    end: float = 2.0,
) -> None:
    """Give random weights a say: texts vary with the source and end, and no bias or norm is left at 0 or 1.

    States of a random model have a large part in common, and with it the token that they choose. That part is
    taken out of the output matrix; more than once, because the matrix may be the embedding, too.

    Args:
        parameters: All weights, each once.
        tables: Those that are embeddings.
        reference: The model.
        output: [V, E], the output matrix.
        sources: Some that the model can read.
        special: Ids of the target.
        layers: Gain of matrices.
        embeddings: Gain of embeddings.
        end: Gain of EOS in the output matrix: how often it is the most probable token.
    """
    unlike = {id(table) for table in tables} | {id(output)}
    with torch.no_grad():
        for parameter in parameters:
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.mul_(embeddings if id(parameter) in unlike else layers)
        targets = random_targets(len(sources), len(output), special.start)
        output[special.eos] *= end
        for _ in range(3):
            logits = torch.cat([reference.logits(*pair) for pair in zip(sources, targets, strict=True)])
            state = torch.linalg.pinv(output) @ logits.mean(dim=0)
            output.sub_(torch.outer(logits.mean(dim=0), state) / state.square().sum())


def tables_of(module: nn.Module) -> list[Tensor]:
    """Return the embeddings of a module."""
    return [part.weight for part in module.modules() if isinstance(part, nn.Embedding)]


@torch.inference_mode()
def greedy_of(
    reference: Reference, sources: Sequence[list[int]], special: SpecialIds, extra: int | None = None
) -> list[list[int]]:
    """Take the most probable token, ids that are never generated passed over.

    Args:
        reference: The model.
        sources: As it reads them.
        special: Ids of the target.
        extra: A target may have so many tokens more than its source; None means `LIMIT` tokens.
    """
    found = []
    for source in sources:
        limit = LIMIT if extra is None else len(source) + extra
        target = [special.start]
        while len(target) <= limit and (len(target) == 1 or target[-1] != special.eos):
            logits = reference.logits(source, target)[-1].clone()
            logits[list(special.never_generated)] = float("-inf")
            target.append(int(logits.argmax()))
        found.append(target[1:])
    return found


@torch.inference_mode()
def beam_of(
    reference: Reference, sources: Sequence[list[int]], special: SpecialIds, extra: int | None = None
) -> list[list[list[int]]]:
    """Return the four best hypotheses of each source; arguments as `greedy_of`."""
    settings = BeamSettings(4)
    found = []
    for source in sources:
        limit = LIMIT if extra is None else len(source) + extra
        row = BeamRow(settings, limit=limit, eos=special.eos)
        while not row.done:
            logits = torch.stack([reference.logits(source, [special.start, *live.tokens])[-1] for live in row.live])
            log_probs = logits.log_softmax(dim=-1)
            log_probs[:, list(special.never_generated)] = float("-inf")
            best = log_probs.topk(settings.candidates)
            row.advance(best.indices.tolist(), best.values.tolist())
        found.append([hypothesis.tokens for hypothesis in row.hypotheses])
    return found


@dataclass(frozen=True, slots=True)
class Record:
    """What a model of another library does with some sources; JSON-ready but for the logits.

    Attributes:
        sources: As it reads them.
        logits: Per source, [T, V] of a random target.
        greedy: Per source, the tokens of greedy search.
        beam: Per source, four hypotheses.
    """

    sources: list[list[int]]
    logits: list[Tensor]
    greedy: list[list[int]]
    beam: list[list[list[int]]]


@torch.inference_mode()
def record(reference: Reference, vocab: int, sources: list[list[int]], special: SpecialIds) -> Record:
    """Return what a model with `vocab` target ids does."""
    targets = random_targets(len(sources), vocab, special.start)
    return Record(
        sources,
        [reference.logits(*pair).clone() for pair in zip(sources, targets, strict=True)],
        greedy_of(reference, sources, special),
        beam_of(reference, sources, special),
    )


@torch.inference_mode()
def largest_difference(expected: Record, checkpoint: Checkpoint) -> float:
    """Return how far logits are apart at most: ours in one padded batch, theirs row by row."""
    model, special = checkpoint.model, checkpoint.tokenizer.special
    targets = random_targets(len(expected.sources), model.config.vocab_size, special.start)
    lengths = torch.tensor([len(source) for source in expected.sources])
    source_ids, target_ids = pad_rows(expected.sources, special.pad), pad_rows(targets, special.pad)
    mask = padding_mask(lengths, source_ids.size(1))
    ours = model.project(model.decode(target_ids, model.encode(source_ids, mask), mask))
    return max(float((logits - ours[row, : len(logits)]).abs().max()) for row, logits in enumerate(expected.logits))


def assert_same(reference: Reference, checkpoint: Checkpoint, sources: list[list[int]]) -> None:
    """Check logits, greedy texts and every hypothesis of a beam of four."""
    vocab, special = checkpoint.model.config.vocab_size, checkpoint.tokenizer.special
    assert_recorded(record(reference, vocab, sources, special), checkpoint)


def assert_recorded(expected: Record, checkpoint: Checkpoint) -> None:
    """Check the same against what was recorded."""
    special, sources = checkpoint.tokenizer.special, expected.sources
    limits = [LIMIT] * len(sources)

    assert largest_difference(expected, checkpoint) < 1e-4
    assert greedy(checkpoint.model, sources, limits, special) == expected.greedy
    assert [[h.tokens for h in row] for row in beam(checkpoint.model, sources, limits, special)] == expected.beam
    assert_lively(expected.greedy, expected.beam, special)


def assert_lively(texts: list[list[int]], hypotheses: list[list[list[int]]], special: SpecialIds) -> None:
    """Check that equal tokens mean something: texts differ, some end and some do not, and the beam finds others."""
    every = [tokens for row in hypotheses for tokens in row]

    assert len({tuple(text) for text in texts}) > len(texts) // 3
    assert len({token for tokens in every for token in tokens}) > 6
    assert any(tokens[-1] == special.eos and len(tokens) > 2 for tokens in every)
    assert any(tokens[-1] != special.eos for tokens in [*texts, *every])
    assert [row[0] for row in hypotheses] != texts
