"""Does a bundle say what its model says? A gate, not a report.

a. logits: teacher-forced steps agree with PyTorch's full pass over a grid of batch sizes and lengths,
   token by token and with several tokens per call.
b. texts: greedy translations equal PyTorch's (fp32), or lose no quality (int8).
c. batched equals alone.

Logits alone are not enough: a wrong start token or a late cache write shows only in texts.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dragoman.export.bundle import Limits
from dragoman.export.decode import BundleSession
from dragoman.export.errors import VerificationError
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.readers import Pair
from dragoman.model.scores import corpus_scores
from dragoman.model.search import generation_bias, greedy

BATCHES = (1, 2, 5)
LENGTHS = (1, 2, 7, 63, 64, 65)
TARGET_LENGTH = 9
# Largest difference of a logit; the logits' spread is of the order of 1 to 10.
LOGIT_TOLERANCE = {"fp32": 1e-3}
# Two tokens whose logits are closer than this may swap between two correct implementations.
TIE = 1e-4
MAX_CHRF_DROP = 0.5
SENTENCES = 200
MAX_REPORTED = 3
_ROWS = 25


@dataclass(frozen=True, slots=True)
class Report:
    """What verification found.

    Attributes:
        precision: Of the bundle.
        max_logit_difference: Over the whole grid.
        sentences: Texts compared.
        identical: Texts equal to PyTorch's.
        ties: Texts that differ because two tokens had equal logits within `TIE`.
        batched_identical: Texts whose batched translation equals the one alone.
        chrf_model: Of PyTorch's texts against the references; None without references.
        chrf_bundle: Of the bundle's texts.
        problems: Why the bundle is refused; empty if it passed.
    """

    precision: str
    max_logit_difference: float
    sentences: int
    identical: int
    ties: int
    batched_identical: int
    chrf_model: float | None
    chrf_bundle: float | None
    problems: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers for the manifest."""
        return {
            "max_logit_difference": float(f"{self.max_logit_difference:.3g}"),
            "sentences": self.sentences,
            "identical_texts": self.identical,
            "ties": self.ties,
            "batched_equals_alone": self.batched_identical,
            "chrf_model": self.chrf_model,
            "chrf_bundle": self.chrf_bundle,
        }

    def table(self) -> str:
        """Return the numbers for people."""
        rows = [(key.replace("_", " "), value) for key, value in self.to_dict().items() if value is not None]
        lines = [f"  {name:<22} {value}" for name, value in rows]
        return "\n".join([f"verification ({self.precision})", *lines, *(f"  FAILED: {p}" for p in self.problems)])


def verify(
    folder: Path, checkpoint: Checkpoint, pairs: Sequence[Pair] | None, *, sentences: int = SENTENCES, seed: int = 0
) -> Report:
    """Compare a bundle with the checkpoint it was made from.

    Args:
        folder: The bundle.
        checkpoint: The model.
        pairs: Held-out sentences with references. None makes random sources of the vocabulary
            instead, enough for equality but not for quality.
        sentences: How many to compare.
        seed: Of the choice.

    Raises:
        BundleError: The bundle is damaged.
    """
    session = BundleSession(folder)
    generator = random.Random(seed)  # noqa: S311  # a choice of test sentences, not a secret
    difference = _logit_difference(session, checkpoint, generator)
    sources, references = _sources(checkpoint, session.manifest.limits, pairs, sentences, generator)
    limits = [session.manifest.limits.default_max_new_tokens(len(source)) for source in sources]
    model_ids = _in_batches(lambda s, m: greedy(checkpoint.model, s, m, checkpoint.tokenizer.special), sources, limits)
    bundle_ids = _in_batches(session.greedy, sources, limits)
    alone = [session.greedy([source], [limit])[0] for source, limit in zip(sources, limits, strict=True)]
    differing = [i for i in range(len(sources)) if model_ids[i] != bundle_ids[i]]
    ties = sum(_is_tie(checkpoint, sources[i], model_ids[i], bundle_ids[i]) for i in differing)
    chrf_model = chrf_bundle = None
    if references:
        texts = [[checkpoint.tokenizer.decode(ids) for ids in found] for found in (model_ids, bundle_ids)]
        chrf_model, chrf_bundle = (corpus_scores(found, references).chrf for found in texts)
    report = Report(
        precision=session.manifest.precision,
        max_logit_difference=difference,
        sentences=len(sources),
        identical=len(sources) - len(differing),
        ties=ties,
        batched_identical=sum(a == b for a, b in zip(alone, bundle_ids, strict=True)),
        chrf_model=chrf_model,
        chrf_bundle=chrf_bundle,
    )
    return replace(report, problems=tuple(_problems(report)))


def require(report: Report) -> dict[str, Any]:
    """Return the report's numbers.

    Raises:
        VerificationError: It found problems.
    """
    if report.problems:
        raise VerificationError(f"{'; '.join(report.problems)}\n{report.table()}")
    return report.to_dict()


def _problems(report: Report) -> list[str]:
    problems = []
    if not report.sentences:
        problems.append("no held-out sentence fits the model's limit, so no text was compared")
    tolerance = LOGIT_TOLERANCE.get(report.precision)
    if tolerance is not None:
        if not report.max_logit_difference <= tolerance:
            problems.append(
                f"logits differ by {report.max_logit_difference:.3g} from PyTorch's, allowed is {tolerance}"
            )
        wrong = report.sentences - report.identical - report.ties
        if wrong:
            problems.append(f"{wrong} of {report.sentences} texts differ from PyTorch's")
    elif not np.isfinite(report.max_logit_difference):
        problems.append("a logit is not finite")
    elif report.chrf_model is not None and report.chrf_bundle is not None:
        drop = report.chrf_model - report.chrf_bundle
        if drop > MAX_CHRF_DROP:
            problems.append(f"chrF falls by {drop:.2f} against PyTorch's, allowed is {MAX_CHRF_DROP}")
    if report.batched_identical != report.sentences:
        problems.append(f"{report.sentences - report.batched_identical} texts depend on what shares their batch")
    return problems


def _logit_difference(session: BundleSession, checkpoint: Checkpoint, generator: random.Random) -> float:
    """Teacher-force random targets through the cached graph and through PyTorch."""
    config, special = checkpoint.model.config, checkpoint.tokenizer.special
    bias = generation_bias(config.vocab_size, special)
    longest = config.max_source_tokens
    worst = 0.0
    for batch, length in itertools.product(BATCHES, sorted({*(n for n in LENGTHS if n < longest), longest})):
        size = config.source_vocab_size or config.vocab_size
        sources = [_random_ids(generator, size, max(1, length - row), special.eos) for row in range(batch)]
        size = min(TARGET_LENGTH, config.max_target_tokens)
        targets = torch.tensor(
            [[special.start, *_random_ids(generator, config.vocab_size, size, special.eos)[:-1]] for _ in sources]
        )
        source_ids = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(s) for s in sources], batch_first=True, padding_value=special.pad
        )
        with torch.inference_mode():
            states = checkpoint.model(source_ids, torch.tensor([len(s) for s in sources]), targets)
            expected = (checkpoint.model.project(states) + bias).numpy()
        found = _teacher_forced(session, sources, targets.numpy())
        allowed = np.isfinite(bias.numpy())
        largest = np.abs(found[..., allowed] - expected[..., allowed]).max()
        worst = float(np.maximum(worst, largest))  # unlike max(), it keeps a NaN
        if np.isfinite(found[..., ~allowed]).any():
            worst = float("inf")  # an id that must never be generated can win
    return worst


def _teacher_forced(session: BundleSession, sources: Sequence[Sequence[int]], targets: Any) -> Any:
    """Logits [B, T, V] of the graph: the first two tokens in one call, then one by one."""
    encoded = session.encode(sources)
    states = session.initial_states(len(sources), targets.shape[1] + 1)
    logits = []
    start = 0
    for size in (min(2, targets.shape[1]), *[1] * max(0, targets.shape[1] - 2)):
        lengths = np.full(len(sources), start, np.int64)
        _, found, states = session.step(targets[:, start : start + size], lengths, states, encoded)
        logits.append(found)
        start += size
    return np.concatenate(logits, axis=1)


def _sources(
    checkpoint: Checkpoint, limits: Limits, pairs: Sequence[Pair] | None, sentences: int, generator: random.Random
) -> tuple[list[list[int]], list[str]]:
    if pairs is None:
        config, special = checkpoint.model.config, checkpoint.tokenizer.special
        size = config.source_vocab_size or config.vocab_size
        top = min(60, limits.max_source_tokens)
        return [_random_ids(generator, size, generator.randint(1, top), special.eos) for _ in range(sentences)], []
    encoded = [(checkpoint.tokenizer.encode(pair.source), pair.target) for pair in pairs]
    fitting = [(ids, target) for ids, target in encoded if len(ids) <= limits.max_source_tokens]
    chosen = generator.sample(fitting, min(sentences, len(fitting)))
    return [ids for ids, _ in chosen], [target for _, target in chosen]


def _random_ids(generator: random.Random, vocab_size: int, length: int, eos: int) -> list[int]:
    return [*(generator.randrange(4, vocab_size) for _ in range(length - 1)), eos]


def _in_batches(search: Any, sources: list[list[int]], limits: list[int]) -> list[list[int]]:
    """Run a search over batches of mixed lengths."""
    found: list[list[int]] = []
    for start in range(0, len(sources), _ROWS):
        found += search(sources[start : start + _ROWS], limits[start : start + _ROWS])
    return found


@torch.inference_mode()
def _is_tie(checkpoint: Checkpoint, source: list[int], expected: list[int], found: list[int]) -> bool:
    """Whether the first differing token had the same logit as the expected one."""
    at = next(i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b)
    target = torch.tensor([[checkpoint.tokenizer.special.start, *expected[:at]]])
    states = checkpoint.model(torch.tensor([source]), torch.tensor([len(source)]), target)[:, -1]
    logits = checkpoint.model.project(states)[0]
    return bool((logits[expected[at]] - logits[found[at]]).abs() < TIE)
