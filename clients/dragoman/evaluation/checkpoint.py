"""A checkpoint as a system: PyTorch, greedy search with a cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from dragoman.evaluation.system import System
from dragoman.model.cached_search import greedy_cached
from dragoman.model.checkpoint import load_checkpoint
from dragoman.model.limits import default_max_new_tokens
from dragoman.model.samples import Output
from dragoman.model.translate import translate_all


def checkpoint_system(folder: Path, *, rows: int) -> System:
    """Load a checkpoint, or that of a training run.

    Args:
        folder: As `load_checkpoint` takes it.
        rows: Texts per batch.

    Raises:
        CheckpointError: Nothing usable there.
    """
    checkpoint = load_checkpoint(folder)
    config, special = checkpoint.model.config, checkpoint.tokenizer.special

    def translate(sources: Sequence[str]) -> list[Output]:
        return translate_all(
            partial(greedy_cached, checkpoint.model, special=special),
            checkpoint.tokenizer,
            sources,
            max_source_tokens=config.max_source_tokens,
            max_new_tokens=lambda tokens: default_max_new_tokens(tokens, config.max_target_tokens),
            rows=rows,
        )

    return System(f"checkpoint {checkpoint.path}, step {checkpoint.step}", translate)
