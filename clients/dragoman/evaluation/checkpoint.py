"""A checkpoint as a system: PyTorch, greedy search with a cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dragoman.evaluation.system import System
from dragoman.model.cached_search import translate_texts
from dragoman.model.checkpoint import load_checkpoint
from dragoman.model.samples import Output


def checkpoint_system(folder: Path, *, rows: int) -> System:
    """Load a checkpoint, or that of a training run.

    Args:
        folder: As `load_checkpoint` takes it.
        rows: Texts per batch.

    Raises:
        CheckpointError: Nothing usable there.
    """
    checkpoint = load_checkpoint(folder)

    def translate(sources: Sequence[str]) -> list[Output]:
        return translate_texts(checkpoint.model, checkpoint.tokenizer, sources, rows=rows)

    return System(f"checkpoint {checkpoint.path}, step {checkpoint.step}", translate)
