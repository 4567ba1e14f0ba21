"""Training with teacher forcing: the loop, its state and its log.

A run is a folder. It can be stopped at any moment and started again with the same command: weights,
optimiser, random state and position in the data are part of each checkpoint, so the resumed run
makes the same updates as one that was never stopped.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from tqdm import tqdm

from dragoman.model.checkpoint import LOG, save_checkpoint
from dragoman.model.config import Stage, TrainConfig
from dragoman.model.data import Batch, Example, batches_of_epoch, collate, sequential_batches
from dragoman.model.errors import TrainingError
from dragoman.model.loss import label_smoothed_loss
from dragoman.model.schedule import inverse_square_root
from dragoman.model.tokenizer import Tokenizer
from dragoman.model.transformer import Transformer


@dataclass(slots=True)
class Progress:
    """Where a run stands: everything besides weights that decides the next update."""

    step: int = 0
    stage: int = 0
    epoch: int = 0
    batch: int = 0
    seconds: float = 0.0
    stage_seconds: float = 0.0


class Trainer:
    """Runs updates until the configured end."""

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        config: TrainConfig,
        *,
        training: Sequence[Example],
        validation: Sequence[Example],
        run: Path,
        languages: tuple[str, str],
        stop: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is computed yet.

        Args:
            model: Trained in place.
            tokenizer: Saved with each checkpoint.
            config: How to train.
            training: Tokenized training pairs.
            validation: Tokenized validation pairs.
            run: Folder for checkpoints and the log.
            languages: BCP-47 tags of source and target.
            stop: Asked between two updates; true ends the run there, saved, to be continued later.
            clock: Seconds, monotonic.

        Raises:
            TrainingError: No training pair is short enough for a stage.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.config = config
        self.run = run
        self.languages = languages
        self.training = training
        limit = min(model.config.max_source_tokens, model.config.max_target_tokens)
        self.stages = config.stages or (Stage(max_pieces=limit),)
        self.validation = [e for e in validation if e.length <= limit][: config.validate_pairs]
        self.progress = Progress()
        self.optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), eps=1e-9)
        self._stop = stop
        self._clock = clock
        for stage in self.stages:
            if stage.max_pieces > limit:
                raise TrainingError(
                    f"a stage has max_pieces {stage.max_pieces}, but the model's positions end at {limit}"
                )
            if not any(e.length <= stage.max_pieces for e in training):
                raise TrainingError(f"no training pair has at most {stage.max_pieces} pieces; raise max_pieces")

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint's training state; the model's weights are loaded already.

        Raises:
            TrainingError: The run had more stages than there are now.
        """
        self.progress = Progress(**state["progress"])
        if self.progress.stage >= len(self.stages):
            raise TrainingError(
                f"the run is in stage {self.progress.stage + 1}, but the recipe has {len(self.stages)}; "
                "restore the recipe, or begin again with --restart"
            )
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])

    def train(self) -> Progress:
        """Train to the end or until `stop`, saving on the way and at the end.

        A stop takes effect between two updates, never inside one: a checkpoint holds whole updates.

        Returns:
            Where the run stands.

        Raises:
            TrainingError: The loss or a gradient is not finite; earlier checkpoints are good.
        """
        self.run.mkdir(parents=True, exist_ok=True)
        with (self.run / LOG).open("a", encoding="utf-8") as log, self._bar() as bar:
            self._loop(log, bar)
            self._save()
        return self.progress

    def _loop(self, log: TextIO, bar: tqdm[Any]) -> None:
        progress, config = self.progress, self.config
        last = saved = self._clock()
        seen = _Meter()
        while not self._ends():
            for indices in self._remaining_batches():
                loss, tokens = self._update([self.training[i] for i in indices])
                now = self._clock()
                progress.step += 1
                progress.batch += 1
                progress.seconds += now - last
                progress.stage_seconds += now - last
                seen.add(loss, tokens, now - last)
                last = now
                self._show(bar, seen)
                if now - saved > config.checkpoint_minutes * 60:
                    self._write_log(log, seen)
                    self._save()
                    last = saved = self._clock()
                    seen = _Meter()
                if self._ends() or self._stage_finished():
                    break
            else:
                progress.epoch += 1
                progress.batch = 0
                continue
            if self._stage_finished() and not self._ends():
                progress.stage += 1
                progress.stage_seconds = 0.0
                progress.epoch += 1
                progress.batch = 0
        self._write_log(log, seen)

    def _update(self, examples: Sequence[Example]) -> tuple[float, int]:
        """Make one update; returns the mean loss and the number of target tokens."""
        config = self.config
        self.model.train()
        rate = inverse_square_root(self.progress.step + 1, peak=config.learning_rate, warmup_steps=config.warmup_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss, tokens = self._loss(examples, config.label_smoothing)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip_norm)
        # Before the optimiser's step: it would write the damage into every weight.
        for name, value in (("loss", loss.item()), ("gradient norm", norm.item())):
            if not math.isfinite(value):
                raise TrainingError(
                    f"the {name} is {value} at step {self.progress.step + 1}; "
                    f"earlier checkpoints in {self.run} are good. "
                    "Lower learning_rate or raise warmup_steps and start again to continue from the last one"
                )
        self.optimizer.step()
        return loss.item(), tokens

    def _loss(self, examples: Sequence[Example], smoothing: float) -> tuple[torch.Tensor, int]:
        special = self.tokenizer.special
        batch: Batch = collate(examples, pad=special.pad, start=special.start)
        states = self.model(batch.source_ids, batch.source_lengths, batch.target_in)
        real = batch.target_out != special.pad
        # Logits of padding would be a third of the work at small d_model, so drop it first.
        logits = self.model.embedding.project(states[real])
        return label_smoothed_loss(logits, batch.target_out[real], smoothing), int(real.sum())

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Return the mean loss per target token without smoothing, in nats; NaN without pairs."""
        self.model.eval()
        total, count = 0.0, 0
        for examples in sequential_batches(self.validation, self.config.batch_tokens):
            loss, tokens = self._loss(examples, 0.0)
            total += loss.item() * tokens
            count += tokens
        return total / count if count else math.nan

    def _remaining_batches(self) -> list[list[int]]:
        progress = self.progress
        batches = batches_of_epoch(
            self.training,
            max_pieces=self.stages[progress.stage].max_pieces,
            batch_tokens=self.config.batch_tokens,
            seed=self.config.seed,
            epoch=progress.epoch,
        )
        return batches[progress.batch :]

    @property
    def finished(self) -> bool:
        """Whether the configured end is reached."""
        config, progress = self.config, self.progress
        steps_done = bool(config.max_steps) and progress.step >= config.max_steps
        time_up = bool(config.max_minutes) and progress.seconds >= config.max_minutes * 60
        return steps_done or time_up

    def _ends(self) -> bool:
        return self.finished or self._stop()

    def _stage_finished(self) -> bool:
        minutes = self.stages[self.progress.stage].minutes
        has_next = self.progress.stage + 1 < len(self.stages)
        return has_next and minutes > 0 and self.progress.stage_seconds >= minutes * 60

    def _bar(self) -> tqdm[Any]:
        """Count steps where they limit the run, else minutes: either way there is an ETA."""
        if self.config.max_steps:
            return tqdm(total=self.config.max_steps, initial=self.progress.step, unit="step", desc="train")
        done = round(self.progress.seconds / 60, 2)
        form = "{desc} {percentage:3.0f}%|{bar}| {n:.1f}/{total:g} min [ETA {remaining}{postfix}]"
        return tqdm(total=self.config.max_minutes, initial=done, desc="train", bar_format=form)

    def _show(self, bar: tqdm[Any], seen: _Meter) -> None:
        bar.update(1 if self.config.max_steps else round(self.progress.seconds / 60 - bar.n, 2))
        if self.progress.step % 20 == 0:
            stage = f"stage {self.progress.stage + 1}/{len(self.stages)}"
            bar.set_postfix_str(f"step {self.progress.step} {stage} epoch {self.progress.epoch} {seen}")

    def _write_log(self, log: TextIO, seen: _Meter) -> None:
        if not seen.tokens:
            return
        entry = {
            **asdict(self.progress),
            "train_loss": round(seen.loss, 4),
            "target_tokens_per_second": round(seen.rate),
            "validation_loss": round(self.validation_loss(), 4),
        }
        log.write(json.dumps(entry) + "\n")
        log.flush()

    def _save(self) -> None:
        state = {
            "progress": asdict(self.progress),
            "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state(),
        }
        save_checkpoint(
            self.run, self.model, self.tokenizer,
            languages=self.languages, step=self.progress.step, training_state=state,
        )  # fmt: skip


class _Meter:
    """Loss and speed since the last log entry."""

    def __init__(self) -> None:
        self.tokens = 0
        self._loss_sum = 0.0
        self._seconds = 0.0

    def add(self, loss: float, tokens: int, seconds: float) -> None:
        self.tokens += tokens
        self._loss_sum += loss * tokens
        self._seconds += seconds

    @property
    def loss(self) -> float:
        return self._loss_sum / self.tokens if self.tokens else math.nan

    @property
    def rate(self) -> float:
        return self.tokens / self._seconds if self._seconds else 0.0

    def __str__(self) -> str:
        return f"loss {self.loss:.3f} {self.rate:.0f} tok/s"
