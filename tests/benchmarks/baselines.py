"""The engines that ours is compared with: CTranslate2 and the `generate` of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import ctranslate2
import torch

from dragoman.model.vocab import SPECIAL_IDS
from tests.benchmarks.models import BenchModel
from tests.benchmarks.names import CTRANSLATE2, HUGGING_FACE

_COMPUTE_TYPES = {"fp32": "float32", "int8": "int8"}


@dataclass(frozen=True, slots=True)
class Job:
    """What every side translates in one call.

    Attributes:
        sources: Ids with EOS at the end.
        new_tokens: Limit of every text; what an endless model fills.
        beams: 1 is greedy.
        rows: Texts that may be worked on at a time.
    """

    sources: list[list[int]]
    new_tokens: int
    beams: int
    rows: int


@dataclass(slots=True)
class Outcome:
    """What came out.

    Attributes:
        targets: Ids of the best hypotheses, in the order of the sources, EOS not included.
        decode_s: Seconds of the decode steps, where the side knows.
        steps: How many those were, likewise.
    """

    targets: list[list[int]]
    decode_s: float | None = None
    steps: int | None = None
    tokens: int = field(init=False)

    def __post_init__(self) -> None:
        """Count target tokens."""
        self.tokens = sum(len(target) for target in self.targets)


class Side(Protocol):
    """An engine with a model.

    Attributes:
        title: Of the engine.
        precision: Of the model.
    """

    title: str
    precision: str

    def prepare(self, job: Job) -> None:
        """Bring the job into the form that the engine takes; not timed."""

    def run(self) -> Outcome:
        """Do the job that was prepared."""

    def close(self) -> None:
        """Free memory and threads."""


class CTranslate2Side:
    """CTranslate2 with one replica of N threads; it sorts and splits as it does for any caller."""

    title = CTRANSLATE2

    def __init__(self, folder: Path, names: tuple[Sequence[str], Sequence[str]], precision: str, threads: int) -> None:
        """Load the model.

        Args:
            folder: The model in CTranslate2's format.
            names: Of the tokens of source and target, by id.
            precision: "fp32" or "int8".
            threads: Of its operators.
        """
        self.precision = precision
        self._translator = ctranslate2.Translator(
            str(folder), device="cpu", compute_type=_COMPUTE_TYPES[precision],
            inter_threads=1, intra_threads=threads,
        )  # fmt: skip
        source, target = names
        self._names = source
        self._ids = {name: i for i, name in enumerate(target)}
        self._sources: list[list[str]] = []
        self._options: dict[str, Any] = {}

    def prepare(self, job: Job) -> None:
        """Give the tokens their names; its own EOS is added by CTranslate2."""
        self._sources = [[self._names[i] for i in source[:-1]] for source in job.sources]
        self._options = {
            "beam_size": job.beams, "max_decoding_length": job.new_tokens, "max_batch_size": job.rows,
            "max_input_length": 0,
        }  # fmt: skip

    def run(self) -> Outcome:
        """Translate."""
        results = self._translator.translate_batch(self._sources, **self._options)
        ids = self._ids
        return Outcome([[ids[name] for name in result.hypotheses[0]] for result in results])

    def close(self) -> None:
        """Free the model."""
        self._translator.unload_model()


class HuggingFaceSide:
    """`generate` of transformers on PyTorch, batches of texts sorted by length."""

    title = HUGGING_FACE

    def __init__(self, model: BenchModel, precision: str, threads: int) -> None:
        """Make the model.

        Args:
            model: The weights.
            precision: Only "fp32".
            threads: Of PyTorch.
        """
        assert precision == "fp32", "its int8 is another library's"
        self.precision = precision
        torch.set_num_threads(threads)
        self._model = model.hugging_face()
        self._batches: list[tuple[list[int], torch.Tensor]] = []
        self._options: dict[str, Any] = {}

    def prepare(self, job: Job) -> None:
        """Sort, split and pad."""
        order = sorted(range(len(job.sources)), key=lambda i: len(job.sources[i]))
        self._batches = []
        for start in range(0, len(order), job.rows):
            chosen = order[start : start + job.rows]
            ids = torch.full((len(chosen), max(len(job.sources[i]) for i in chosen)), SPECIAL_IDS.pad)
            for row, i in enumerate(chosen):
                ids[row, : len(job.sources[i])] = torch.tensor(job.sources[i])
            self._batches.append((chosen, ids))
        self._options = {"num_beams": job.beams, "do_sample": False, "max_new_tokens": job.new_tokens}

    def run(self) -> Outcome:
        """Generate."""
        targets: dict[int, list[int]] = {}
        for chosen, ids in self._batches:
            with torch.inference_mode():
                found = self._model.generate(ids, attention_mask=(ids != SPECIAL_IDS.pad).long(), **self._options)
            for i, target in zip(chosen, found[:, 1:].tolist(), strict=True):
                targets[i] = until_eos(target)
        return Outcome([targets[i] for i in range(len(targets))])

    def close(self) -> None:
        """Free the model."""
        del self._model


def until_eos(target: Sequence[int]) -> list[int]:
    """Return what stands before the first EOS."""
    found = list(target)
    return found[: found.index(SPECIAL_IDS.eos)] if SPECIAL_IDS.eos in found else found
