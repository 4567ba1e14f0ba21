"""What a model in training is worth: loss and chrF on a sample small enough to be measured now and then."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import sacrebleu
import torch

from dragoman.model.cached_search import translate_texts
from dragoman.model.data import collate_to, sequential_batches, tokenize_pairs
from dragoman.model.device import Precision
from dragoman.model.errors import TrainingError
from dragoman.model.loss_module import LossModule
from dragoman.model.readers import Pair
from dragoman.model.recipe import TrainConfig
from dragoman.model.tokenizers import Tokenizer
from dragoman.model.transformer import Transformer

_ROWS = 64


class Validation:
    """Loss and chrF on fixed pairs."""

    def __init__(
        self,
        pairs: Sequence[Pair],
        tokenizer: Tokenizer,
        config: TrainConfig,
        *,
        max_pieces: int,
        precision: Precision,
        device: torch.device,
    ) -> None:
        """Choose the pairs: the first ones that are short enough.

        Args:
            pairs: Of the validation file; may be empty.
            tokenizer: Of the model.
            config: How many pairs, and the size of a batch.
            max_pieces: What the model's positions cover.
            precision: Of the forward passes for the loss.
            device: Where the model is.

        Raises:
            TrainingError: There are pairs, but every one is too long.
        """
        wanted = max(config.validate_pairs, config.validate_chrf_pairs)
        short = (pair for pair in pairs if tokenize_pairs([pair], tokenizer)[0].length <= max_pieces)
        self.pairs = list(itertools.islice(short, wanted))
        if pairs and wanted and not self.pairs:
            raise TrainingError(f"every validation pair is longer than the {max_pieces} pieces that the model covers")
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


def corpus_chrf(model: Transformer, tokenizer: Tokenizer, pairs: Sequence[Pair]) -> float:
    """Return chrF (0 to 100) of greedy translations of `pairs`; the model is in evaluation mode."""
    outputs = translate_texts(model, tokenizer, [pair.source for pair in pairs], rows=_ROWS, progress=False)
    references = [pair.target for pair in pairs]
    score: float = sacrebleu.CHRF().corpus_score([output.text for output in outputs], [references]).score
    return round(score, 2)
