"""A checkpoint as a system: PyTorch, greedy search with a cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from dragoman.evaluation.system import System
from dragoman.model.cached_search import translate_texts
from dragoman.model.checkpoint import load_checkpoint
from dragoman.model.device import choose_device
from dragoman.model.languages import Languages
from dragoman.model.samples import Output
from dragoman.model.translate import choose_languages


def checkpoint_system(
    folder: Path,
    *,
    rows: int,
    source_language: str = "",
    target_language: str = "",
    device: str = "auto",
    threads: int = 0,
) -> System:
    """Load a checkpoint, or that of a training run.

    Args:
        folder: As `load_checkpoint` takes it.
        rows: Texts per batch.
        source_language: BCP-47 tag; "" for the model's default.
        target_language: Likewise.
        device: "auto" (a GPU where there is one), "cpu", "cuda" or "cuda:<n>".
        threads: Of the CPU; 0 takes all.

    Raises:
        CheckpointError: Nothing usable there.
        ConfigError: The model has no such language, or several and none was chosen; or there is no such device.
    """
    where = choose_device(device)
    if threads:
        torch.set_num_threads(threads)
    checkpoint = load_checkpoint(folder)
    model = checkpoint.model.to(where)
    default = checkpoint.source_language, checkpoint.target_language
    languages = checkpoint.languages or Languages.pair(*default)
    pair = choose_languages(languages, default, source_language, target_language)

    def translate(sources: Sequence[str]) -> list[Output]:
        return translate_texts(
            model,
            checkpoint.tokenizer,
            sources,
            rows=rows,
            frame=lambda ids: languages.frame(ids, *pair),
            first=languages.first_target(pair[1]),
        )

    return System(f"checkpoint {checkpoint.path}, step {checkpoint.step}", translate, pair)
