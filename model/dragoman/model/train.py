"""Training with teacher forcing: the loop, its state and its log.

A run is a folder. It can be stopped at any moment and started again with the same command: weights,
optimiser, random state and position in the data are part of each checkpoint, so the resumed run
makes the same updates as one that was never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dragoman.model.checkpoint import delete_run, forget_log_behind, latest_checkpoint, save_checkpoint
from dragoman.model.data import Group, TrainingData, collate_to
from dragoman.model.device import Precision, Processes
from dragoman.model.errors import TrainingError
from dragoman.model.lengths import LengthLimits
from dragoman.model.loss_module import LossModule
from dragoman.model.optimizer import Optimizers
from dragoman.model.progress import Meter, Progress
from dragoman.model.readers import Pair
from dragoman.model.recipe import Stage, TrainConfig
from dragoman.model.reporter import Reporter
from dragoman.model.schedule import learning_rate
from dragoman.model.tokenizers import Tokenizer
from dragoman.model.transformer import Transformer
from dragoman.model.validation import Validation

LOG_STEPS = 100


class Trainer:
    """Runs updates until the configured end."""

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        config: TrainConfig,
        *,
        training: TrainingData,
        validation: Sequence[Pair],
        run: Path,
        languages: tuple[str, str],
        replaces: bool = False,
        trained_with: dict[str, Any] | None = None,
        processes: Processes | None = None,
        device: torch.device | None = None,
        observe: Callable[[dict[str, Any]], None] = lambda _: None,
        stop: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is computed yet.

        Args:
            model: Trained in place.
            tokenizer: Saved with each checkpoint.
            config: How to train.
            training: Source of batches.
            validation: Pairs for the periodic loss and chrF.
            run: Folder for checkpoints and the log.
            languages: BCP-47 tags of source and target.
            replaces: The run that lies in `run` already is deleted, once this one has made an update: until
                then it may fail.
            trained_with: Settings to be kept in checkpoints, see `run_settings`.
            processes: The group this process belongs to; None trains alone.
            device: Where to compute; None is the CPU.
            observe: Is given each entry of the log.
            stop: Asked between two updates; true ends the run there, saved, to be continued later.
            clock: Seconds, monotonic.

        Raises:
            ConfigError: The device cannot compute in the configured precision, or a stage is longer than the
                model's positions cover.
            TrainingError: Every validation pair is.
        """
        self.device = device or torch.device("cpu")
        self.processes = processes or Processes()
        self.precision = Precision.choose(config.precision, self.device)
        self.model = model.to(self.device)
        self.tokenizer = tokenizer
        self.config = config
        self.run = run
        self.languages = languages
        self.training = training
        self.limits = LengthLimits(model.config.max_source_tokens, model.config.max_target_tokens)
        config.check_stages(self.limits.source, self.limits.target)
        self.stages = config.stages or (Stage(max_pieces=max(self.limits.source, self.limits.target)),)
        self.validation = Validation(
            validation, tokenizer, config, limits=self.limits, precision=self.precision, device=self.device
        )
        self.progress = Progress(measure=self.validation.measure_name)
        self.optimizers = Optimizers(model, config)
        self.average: AveragedModel | None = None
        if config.ema_decay:
            decay = get_ema_multi_avg_fn(config.ema_decay)  # type: ignore[no-untyped-call]  # torch leaves it untyped
            self.average = AveragedModel(model, multi_avg_fn=decay)
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision.needs_loss_scaling)
        self._wrapped: nn.Module = LossModule(model, tokenizer.special.pad, compiled=config.compile)
        if self.processes.count > 1:
            self._wrapped = DistributedDataParallel(self._wrapped)
        self._replaces = replaces
        self._trained_with = trained_with
        self._reporter = Reporter(run, leads=self.processes.leads, observe=observe)
        self._stop = stop
        self._clock = clock

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint's training state; the model's weights are loaded already.

        Raises:
            TrainingError: The run had more stages than there are now, or another optimiser.
        """
        self.progress = Progress(**state["progress"])
        measure = self.validation.measure_name
        if before := self.progress.count_by(measure):
            self._reporter.say(
                f"validation measures {measure or 'nothing'} now and measured {before} before: "
                "which checkpoint is best, and whether there is a better one (patience), is counted anew"
            )
        if self.progress.stage >= len(self.stages):
            raise TrainingError(
                f"the run is in stage {self.progress.stage + 1}, but the recipe has {len(self.stages)}; "
                "restore the recipe, or begin again with --restart"
            )
        try:
            self.optimizers.load_state_dict(state["optimizers"])
        except (KeyError, ValueError) as error:
            raise TrainingError(
                f"the run was made with another optimizer ({error}); restore the recipe, or begin again with --restart"
            ) from error
        self._scaler.load_state_dict(state["scaler"])
        if "average" in state:  # then the checkpoint's own weights are the averaged ones
            if self.average is not None:
                self.average.module.load_state_dict(self.model.state_dict())
                self.average.n_averaged.fill_(state["average"]["updates"])
            self.model.load_state_dict(state["average"]["weights"])
        if not self.processes.leads:  # the checkpoint's state is rank 0's: the others draw their dropout anew
            torch.manual_seed((self.config.seed * 1_000_003 + self.progress.step) * 1_009 + self.processes.rank)
            return
        torch.set_rng_state(state["rng"])
        if self.device.type == "cuda" and "cuda_rng" in state:
            torch.cuda.set_rng_state(state["cuda_rng"], self.device)

    def train(self) -> Progress:
        """Train to the end or until `stop`, saving on the way and at the end.

        A stop takes effect between two updates, never inside one: a checkpoint holds whole updates.

        Returns:
            Where the run stands.

        Raises:
            TrainingError: The loss or a gradient is not finite (earlier checkpoints are good), or no
                pair is short enough for a stage.
            CheckpointError: A checkpoint cannot be written.
        """
        self.run.mkdir(parents=True, exist_ok=True)
        if self.processes.leads and not self._replaces:
            forget_log_behind(self.run, self.progress.step)
        self._reporter.left_out("validation", self.validation.left_out, "the model covers")
        with self._reporter.bar(self.config, self.progress):
            self._loop()
        return self.progress

    def _loop(self) -> None:
        progress = self.progress
        saved = self._clock()
        meter = Meter()
        ends = self._ends()
        while not ends:
            group = None
            last = self._clock()
            for group in self._groups():
                self._report_left_out()
                self._update(group, meter)
                self._replace()
                now = self._clock()
                self._advance(group, now - last, meter)
                last = now
                self._reporter.show(self.config, progress, meter, len(self.stages), self._rate())
                stage_ended = self._end_stage()
                if progress.step % LOG_STEPS == 0:
                    self._write_log(meter)
                # Asked once: a request that comes later ends the run after the next update, saved.
                ends = self._ends()
                if ends or self.processes.any(now - saved > self.config.checkpoint_minutes * 60):
                    # A request to stop may not leave the time for a validation.
                    measured = self._validate() if self.finished or not ends else None
                    self._write_log(meter, measured)
                    self._save(best=measured is not None and progress.misses == 0)
                    last = saved = self._clock()
                    ends = ends or self.finished  # the validation may have been one miss too many
                if stage_ended or ends:
                    break
            else:
                if group is None and not progress.chunk and not progress.batch:
                    raise TrainingError(
                        f"no training pair is as short as {self._limits()}; raise "
                        + ("max_pieces" if self.config.stages else "max_source_tokens and max_target_tokens")
                    )
                self._next_epoch()

    def _limits(self) -> LengthLimits:
        """Return what the current stage admits."""
        return self.limits.at_most(self.stages[self.progress.stage].max_pieces)

    def _report_left_out(self) -> None:
        """Say how many pairs are too long, once for each stage that is shorter than another one."""
        limits = self._limits()
        by_stage = f"max_pieces of stage {self.progress.stage + 1} allows"
        reason = "the model covers" if limits == self.limits else by_stage
        self._reporter.left_out("training", self.training.left_out.get(limits), reason)

    def _replace(self) -> None:
        """Delete the run that this one replaces; not before an update, since anything may fail until then."""
        if self._replaces and self.processes.leads:
            delete_run(self.run)
        self._replaces = False

    def _end_stage(self) -> bool:
        """Go to the next stage if the time of this one is up; returns whether it was."""
        minutes = self.stages[self.progress.stage].minutes
        has_next = self.progress.stage + 1 < len(self.stages)
        if not has_next or self.progress.stage_seconds < minutes * 60:
            return False
        self.progress.stage += 1
        self.progress.stage_seconds = 0.0
        self._next_epoch()
        return True

    def _advance(self, group: Group, seconds: float, meter: Meter) -> None:
        """Count one update."""
        progress = self.progress
        seconds = self.processes.first(seconds)
        progress.step += 1
        progress.chunk, progress.batch = group.chunk, group.next_batch
        progress.seconds += seconds
        progress.stage_seconds += seconds
        meter.seconds += seconds

    def _next_epoch(self) -> None:
        self.progress.epoch += 1
        self.progress.chunk = self.progress.batch = 0

    def _groups(self) -> Iterator[Group]:
        """Yield what each coming update of the epoch takes: `accumulate` batches for each process."""
        progress = self.progress
        return self.training.groups(
            self.processes.count * self.config.accumulate,
            epoch=progress.epoch,
            limits=self._limits(),
            chunk=progress.chunk,
            batch=progress.batch,
        )

    def _update(self, group: Group, meter: Meter) -> None:
        """Make one update from the batches of all processes."""
        config = self.config
        self.model.train()
        self.optimizers.zero_grad()
        tokens = sum(len(example.target) for batch in group.batches for example in batch)
        mine = group.share(self.processes.rank, self.processes.count)
        total = 0.0
        for number, (examples, weight) in enumerate(mine, 1):
            batch = collate_to(self.device, examples, self.tokenizer.special)
            # Gradients of the processes are summed once, with the last batch; DDP divides by their number.
            holds_back = isinstance(self._wrapped, DistributedDataParallel) and number < len(mine)
            with self._wrapped.no_sync() if holds_back else nullcontext():  # type: ignore[operator]
                with self.precision.autocast():
                    loss = self._wrapped(batch, config.label_smoothing)
                scaled = loss * (weight * self.processes.count / tokens)
                self._scaler.scale(scaled).backward()
            total += loss.item() * weight
        mean = self.processes.sum(total) / tokens
        for optimizer in self.optimizers.each:
            self._scaler.unscale_(optimizer)
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip_norm))
        self._check_finite(mean, norm)
        if math.isfinite(norm):
            self.optimizers.step(self._rate(), self._scaler)
            if self.average is not None:
                self.average.update_parameters(self.model)
        self._scaler.update()
        meter.add(mean, norm if math.isfinite(norm) else 0.0, tokens)

    def _check_finite(self, loss: float, norm: float) -> None:
        """Raise before the optimiser's step: it would write the damage into every weight."""
        for name, value in (("loss", loss), ("gradient norm", norm)):
            # Under loss scaling an infinite gradient is a scale that was too large; that step is left out.
            if math.isfinite(value) or (name == "gradient norm" and self.precision.needs_loss_scaling):
                continue
            advice = "lower learning_rate or raise warmup_steps"
            if self._replaces or latest_checkpoint(self.run) is None:
                advice += ", and start again: there is no checkpoint yet"
            else:
                advice += f". Earlier checkpoints in {self.run} are good: start again to continue from the last one"
            raise TrainingError(f"the {name} is {value} at step {self.progress.step + 1}; {advice}")

    def _rate(self) -> float:
        """Return the learning rate of the next update as a share of the peak."""
        config = self.config
        return learning_rate(
            config.schedule,
            self.progress.step + 1,
            warmup_steps=config.warmup_steps,
            done=self._done(),
            d_model=self.model.config.d_model,
        )

    def _done(self) -> float:
        """Return the share of the run that lies behind."""
        config, progress = self.config, self.progress
        by_steps = progress.step / config.max_steps if config.max_steps else 0.0
        by_time = progress.seconds / (config.max_minutes * 60) if config.max_minutes else 0.0
        return max(by_steps, by_time)

    def _validate(self) -> dict[str, float]:
        """Measure, and note whether it is the best so far."""
        values = self.validation.measure(self._published())
        if values:
            self._note(values.get("validation_chrf", -values.get("validation_loss", 0.0)))
        return values

    def _note(self, score: float) -> None:
        """Compare a validation's score, higher is better, with the best one so far."""
        if score > self.progress.best:
            self.progress.best, self.progress.misses = score, 0
        else:
            self.progress.misses += 1

    def _published(self) -> Transformer:
        """Return the model whose weights a checkpoint holds."""
        if self.average is None:
            return self.model
        averaged: Transformer = self.average.module  # type: ignore[assignment]  # typed as any module
        return averaged

    @property
    def finished(self) -> bool:
        """Whether the configured end is reached."""
        return self._done() >= 1.0 or 0 < self.config.patience <= self.progress.misses

    @property
    def ending(self) -> str:
        """Why the run has ended, in words; empty if it has not."""
        config, progress = self.config, self.progress
        if self._done() >= 1.0:
            by_steps = 0 < config.max_steps <= progress.step
            return f"max_steps = {config.max_steps}" if by_steps else f"max_minutes = {config.max_minutes:g}"
        if not self.finished:
            return ""
        return (
            f"patience = {config.patience}: the last {progress.misses} validations were no better than "
            f"{abs(progress.best):g}, the best {progress.measure}"
        )

    def _ends(self) -> bool:
        return self.processes.any(self.finished or self._stop())

    def _write_log(self, meter: Meter, measured: dict[str, float] | None = None) -> None:
        """Write one line about the updates since the last one; begins to count anew."""
        compared = ("best", "misses", "measure")
        progress = {name: value for name, value in asdict(self.progress).items() if name not in compared}
        rate = {"learning_rate": self._rate() * self.config.learning_rate}
        self._reporter.write({**progress, **rate, **meter.values(), **(measured or {})})
        meter.reset()

    def _save(self, *, best: bool) -> None:
        state: dict[str, Any] = {
            "progress": asdict(self.progress),
            "optimizers": self.optimizers.state_dict(),
            "scaler": self._scaler.state_dict(),
            "rng": torch.get_rng_state(),
        }
        if self.device.type == "cuda":
            state["cuda_rng"] = torch.cuda.get_rng_state(self.device)
        if self.average is not None:
            state["average"] = {"updates": int(self.average.n_averaged), "weights": self.model.state_dict()}
        if self.processes.leads:
            save_checkpoint(
                self.run, self._published(), self.tokenizer,
                languages=self.languages, step=self.progress.step, training_state=state,
                keep=self.config.keep_checkpoints, best=best, trained_with=self._trained_with,
            )  # fmt: skip
