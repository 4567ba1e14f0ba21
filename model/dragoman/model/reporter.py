"""What a training run shows: a progress bar and remarks on stderr, entries in its log."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from dragoman.model.checkpoint import LOG
from dragoman.model.lengths import LeftOut
from dragoman.model.progress import Meter, Progress
from dragoman.model.recipe import TrainConfig


class Reporter:
    """Reports of one process; one that does not lead its group shows and writes nothing."""

    def __init__(self, run: Path, *, leads: bool, observe: Callable[[dict[str, Any]], None]) -> None:
        """Prepare; nothing is opened yet.

        Args:
            run: Folder of the log.
            leads: Whether this process reports.
            observe: Is given each entry of the log.
        """
        self._run = run
        self._leads = leads
        self._observe = observe
        self._bar: tqdm[Any] | None = None
        self._said: set[str] = set()
        self._counts: dict[str, int] = {}

    def say(self, text: str) -> None:
        """Show a line on stderr."""
        if self._leads:
            tqdm.write(text, file=sys.stderr)

    def left_out(self, what: str, found: LeftOut | None, reason: str) -> None:
        """Say how many pairs are too long, if any are and it has not been said; the next log entry has the numbers.

        Args:
            what: The kind of pairs.
            found: Their numbers, if they have been counted.
            reason: Whose limits these are.
        """
        if found is None or (said := found.sentence(what, reason)) in self._said:
            return
        self._said.add(said)
        self._counts |= {f"{what}_pairs": found.pairs, f"{what}_pairs_left_out": found.too_long}
        if found.too_long:
            self.say(said)

    @contextmanager
    def bar(self, config: TrainConfig, progress: Progress) -> Iterator[None]:
        """Count steps where they limit the run, else minutes: either way there is an ETA."""
        if config.max_steps:
            bar = tqdm(
                total=config.max_steps, initial=progress.step, unit="step", desc="train", disable=not self._leads
            )
        else:
            form = "{desc} {percentage:3.0f}%|{bar}| {n:.1f}/{total:g} min [ETA {remaining}{postfix}]"
            minutes = round(progress.seconds / 60, 2)
            bar = tqdm(
                total=config.max_minutes, initial=minutes, desc="train", bar_format=form, disable=not self._leads
            )
        with bar as self._bar:
            yield
        self._bar = None

    def show(self, config: TrainConfig, progress: Progress, meter: Meter, stages: int, rate: float) -> None:
        """Advance the bar after an update.

        Args:
            config: Of the run.
            progress: Where it stands.
            meter: How fast it is.
            stages: How many there are.
            rate: Learning rate as a share of the peak.
        """
        if self._bar is None:
            return
        self._bar.update(1 if config.max_steps else round(progress.seconds / 60 - self._bar.n, 2))
        if progress.step % 20 == 0:
            stage = f"stage {progress.stage + 1}/{stages} " if stages > 1 else ""
            rate *= config.learning_rate
            self._bar.set_postfix_str(f"step {progress.step} {stage}epoch {progress.epoch} {meter} lr {rate:.2g}")

    def write(self, entry: dict[str, Any]) -> None:
        """Write one line into the log."""
        if not self._leads:
            return
        entry = {**entry, **self._counts}
        self._counts = {}
        # Opened each time: the folder may have been another run's until the first update.
        with (self._run / LOG).open("a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")
        self._observe(entry)
