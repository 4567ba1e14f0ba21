"""What a model in training is worth: loss and chrF on a sample small enough to be measured now and then."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import sacrebleu
import torch

from dragoman.model.cached_search import translate_texts
from dragoman.model.data import collate_to, sequential_batches, tokenize_pairs
from dragoman.model.device import Precision
from dragoman.model.errors import TrainingError
from dragoman.model.lengths import LeftOut, LengthLimits
from dragoman.model.loss_module import LossModule
from dragoman.model.readers import Pair
from dragoman.model.recipe import TrainConfig
from dragoman.model.tokenizers import Tokenizer
from dragoman.model.transformer import Transformer

_ROWS = 64


class Validation:
    """Loss and chrF on fixed pairs.

    Attributes:
        pairs: The fixed ones.
        left_out: How many were too long, of those that were looked at.
        measure_name: What decides which checkpoint is best, and over which pairs: scores of different names
            cannot be compared. Empty if nothing is measured.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        tokenizer: Tokenizer,
        config: TrainConfig,
        *,
        limits: LengthLimits,
        precision: Precision,
        device: torch.device,
    ) -> None:
        """Choose the pairs: the first ones that are short enough.

        Args:
            pairs: Of the validation file; may be empty.
            tokenizer: Of the model.
            config: How many pairs, and the size of a batch.
            limits: What the model's positions cover.
            precision: Of the forward passes for the loss.
            device: Where the model is.

        Raises:
            TrainingError: There are pairs, but every one is too long.
        """
        wanted = max(config.validate_pairs, config.validate_chrf_pairs)
        self.pairs: list[Pair] = []
        looked_at = 0
        for pair in pairs if wanted else ():
            looked_at += 1
            if limits.admit(tokenize_pairs([pair], tokenizer)[0]):
                self.pairs.append(pair)
                if len(self.pairs) == wanted:
                    break
        too_long = looked_at - len(self.pairs)
        self.left_out = LeftOut(limits, looked_at, too_long, looked_at == len(pairs))
        if pairs and wanted and not self.pairs:
            raise TrainingError(f"every validation pair is longer than the model covers: {limits}")
        self.measure_name = _measure_name(self.pairs, config)
        self._examples = tokenize_pairs(self.pairs[: config.validate_pairs], tokenizer)
        self._tokenizer = tokenizer
        self._config = config
        self._precision = precision
        self._device = device

    def measure(self, model: Transformer) -> dict[str, float]:
        """Return `validation_loss` and `validation_chrf`, each if it has pairs; leaves the model in evaluation mode."""
        values = {}
        if self._examples:
            values["validation_loss"] = round(self.loss(model), 4)
        pairs = self.pairs[: self._config.validate_chrf_pairs]
        if pairs:
            values["validation_chrf"] = corpus_chrf(model.eval(), self._tokenizer, pairs)
        return values

    @torch.no_grad()
    def loss(self, model: Transformer) -> float:
        """Return the mean loss per target token without smoothing, in nats."""
        special = self._tokenizer.special
        module = LossModule(model.eval(), special.pad)
        total, count = 0.0, 0
        for batch in sequential_batches(self._examples, self._config.batch_tokens):
            with self._precision.autocast():
                total += module(collate_to(self._device, batch, special), 0.0).item()
            count += sum(len(example.target) for example in batch)
        return total / count


def _measure_name(pairs: Sequence[Pair], config: TrainConfig) -> str:
    kind, count = (
        ("chrF", config.validate_chrf_pairs) if config.validate_chrf_pairs else ("loss", config.validate_pairs)
    )
    used = pairs[:count]
    if not used:
        return ""
    digest = hashlib.sha256("\n".join(f"{pair.source}\t{pair.target}" for pair in used).encode()).hexdigest()
    return f"{kind} of {len(used)} pairs ({digest[:8]})"


def corpus_chrf(model: Transformer, tokenizer: Tokenizer, pairs: Sequence[Pair]) -> float:
    """Return chrF (0 to 100) of greedy translations of `pairs`; the model is in evaluation mode."""
    outputs = translate_texts(model, tokenizer, [pair.source for pair in pairs], rows=_ROWS, progress=False)
    references = [pair.target for pair in pairs]
    score: float = sacrebleu.CHRF().corpus_score([output.text for output in outputs], [references]).score
    return round(score, 2)
