"""The search and `transformers.generate` on the same random models: every option alone and in combination.

The search is driven with logits of Hugging Face's own decoder, computed anew for each prefix, so nothing but the
search differs.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dragoman.model.vocab import SpecialIds
from dragoman.server.options import Sampling
from dragoman.server.request import Hypothesis, Request
from tests.fakes.hf_folders import save_folder
from tests.fakes.search_bench import Logits, SearchBench, Tokens, request

FAMILIES = ("marian", "m2m100", "bart", "t5")
TEXTS = 4
SOURCE_LENGTH = 7
LONGEST = 12
_LANGUAGES = 108  # behind the words of M2M100's vocabulary


@dataclass
class Case:
    """What to tell both: `ours` of `SearchOptions` and `theirs` of `generate`; `rows` of a table that it counts for."""

    ours: dict[str, Any] = field(default_factory=dict)
    theirs: dict[str, Any] = field(default_factory=dict)
    rows: tuple[str, ...] = ()

    def __or__(self, other: Case) -> Case:
        """Return both together."""
        return Case(self.ours | other.ours, self.theirs | other.theirs, self.rows + other.rows)


class HuggingFace:
    """A small random model of a family, and sources of equal length."""

    def __init__(self, family: str, folder: Path) -> None:
        self.model = save_folder(family, folder)
        config = self.model.config
        unk = {"marian": 1, "t5": 2}.get(family, 3)
        self.first = [config.vocab_size - _LANGUAGES + 5] if family == "m2m100" else []
        if family == "bart":
            self.first = [self.model.generation_config.forced_bos_token_id]
        languages = tuple(range(config.vocab_size - _LANGUAGES, config.vocab_size)) if family == "m2m100" else ()
        self.special = SpecialIds(
            pad=config.pad_token_id, unk=unk, start=config.decoder_start_token_id, eos=config.eos_token_id,
            suppressed=languages,
        )  # fmt: skip
        self.vocab_size = config.vocab_size
        generator = np.random.default_rng(3)
        words = generator.integers(10, config.vocab_size - _LANGUAGES - 1, (TEXTS, SOURCE_LENGTH - 1)).tolist()
        self.sources: list[Tokens] = [(*ids, self.special.eos) for ids in words]
        with torch.inference_mode():
            self.encoded = self.model.get_encoder()(torch.tensor(self.sources)).last_hidden_state
        self._known: dict[tuple[Tokens, Tokens], Logits] = {}
        self._let_texts_end()

    def _let_texts_end(self) -> None:
        """Add to EOS what makes it the best token at a tenth of all positions; random weights hardly ever choose it."""
        self.search([Case()])
        gaps = [float(logits.max() - logits[self.special.eos]) for logits in self._known.values()]
        bias = torch.zeros(self.vocab_size)
        bias[self.special.eos] = float(np.quantile(gaps, 0.1))
        self.model.lm_head.bias = torch.nn.Parameter(bias)
        self._known.clear()

    @contextlib.contextmanager
    def never_probable(self, ids: Sequence[int]) -> Iterator[None]:
        """Give tokens no probability at all, where others take it away after the softmax."""
        bias = self.model.lm_head.bias
        before = bias.detach().clone()
        bias.data[list(ids)] = -torch.inf
        self._known.clear()
        yield
        bias.data.copy_(before)
        self._known.clear()

    def __call__(self, source: Tokens, target: Tokens) -> Logits:
        """Return the next token's logits."""
        return self._known[source, target]

    def prepare(self, rows: Sequence[tuple[Tokens, Tokens]]) -> None:
        """Compute logits of many rows, a batch for each length."""
        missing = sorted({row for row in rows if row not in self._known}, key=lambda row: len(row[1]))
        for _, group in itertools.groupby(missing, key=lambda row: len(row[1])):
            batch = list(group)
            index = [self.sources.index(source) for source, _ in batch]
            with torch.inference_mode():
                logits = self.model(
                    encoder_outputs=(self.encoded[index],),
                    decoder_input_ids=torch.tensor([target for _, target in batch]),
                ).logits[:, -1]
            self._known |= zip(batch, logits.float().numpy(), strict=True)

    def generate(self, case: Case) -> list[list[tuple[list[int], float]]]:
        """Return what `generate` finds: per source, hypotheses with EOS where they have it, and their scores."""
        options = {"num_beams": 1, "do_sample": False, "max_new_tokens": LONGEST, **case.theirs}
        options["max_new_tokens"] += len(self.first)
        options["min_new_tokens"] = options.get("min_new_tokens", 0) + len(self.first)
        count = options.get("num_return_sequences", 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about defaults of generation_config
            found = self.model.generate(
                input_ids=torch.tensor(self.sources),
                attention_mask=torch.ones(TEXTS, SOURCE_LENGTH, dtype=torch.int64),
                # A language token as `forced_bos_token_id`; a longer prefix by the same rule.
                forced_bos_token_id=self.first[0] if len(self.first) == 1 else None,
                logits_processor=[self._force] if len(self.first) > 1 else None,
                forced_eos_token_id=None,
                bad_words_ids=[[i] for i in self.special.never_generated] + options.pop("bad_words_ids", []),
                return_dict_in_generate=True,
                output_scores=True,
                **options,
            )
        rows = []
        scores = found.sequences_scores.tolist() if options["num_beams"] > 1 else [0.0] * TEXTS
        for ids, score in zip(found.sequences[:, 1 + len(self.first) :].tolist(), scores, strict=True):
            limit = options["max_new_tokens"] - len(self.first)
            end = ids.index(self.special.eos) + 1 if self.special.eos in ids else limit
            rows.append((ids[:end], score))
        return [rows[start : start + count] for start in range(0, len(rows), count)]

    def _force(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        place = ids.shape[1] - 1
        if place >= len(self.first):
            return scores
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self.first[place]] = 0
        return forced

    def search(self, cases: Sequence[Case], *, candidates: int = 16) -> list[list[list[tuple[list[int], float]]]]:
        """Return what the search finds for the cases, all of them in one batch; as `generate` does."""
        requests = [
            [
                request(source, first_target=self.first, **{"max_new_tokens": LONGEST, **case.ours})
                for source in self.sources
            ]
            for case in cases
        ]
        self.run([each for row in requests for each in row], candidates=candidates)
        return [[[self._ids(one) for one in each.hypotheses] for each in row] for row in requests]

    def run(self, requests: Sequence[Request], *, candidates: int = 16) -> None:
        """Run requests together to their end."""
        slots = sum(each.width for each in requests)
        bench = SearchBench(
            self, slots=slots, longest=LONGEST + len(self.first), vocab_size=self.vocab_size, candidates=candidates,
            special=self.special,
        )  # fmt: skip
        bench.admit(*requests)
        while bench.search.live:
            self.prepare(bench.slots)
            bench.step()

    def _ids(self, one: Hypothesis) -> tuple[list[int], float]:
        return [*one.tokens, *[self.special.eos] * one.ended_by_eos], one.score

    def cases(self) -> list[Case]:
        """Return all combinations of the options that both have."""
        [greedy] = [[row[0][0] for row in found] for found in self.search([Case()])]
        words = [text[0] for text in greedy[:1]]
        sequences = (
            [[token] for token in words] + [text[:2] for text in greedy[1:3]] + [text[1:4] for text in greedy[2:]]
        )
        sequences = [sequence for sequence in sequences if sequence and sequence != [self.special.eos]]
        changes = [
            _choices("repetition_penalty", "repetition_penalty", [1.0, 1.4]),
            _choices("no_repeat_ngram_size", "no_repeat_ngram_size", [0, 2]),
            [Case(), Case({"suppressed": tuple(map(tuple, sequences))}, {"bad_words_ids": sequences}, ("suppressed",))],
            _choices("min_new_tokens", "min_new_tokens", [0, 5]),
            _choices("max_new_tokens", "max_new_tokens", [LONGEST, 5]),
        ]  # fmt: skip
        beams = [
            [Case({"beams": 4}, {"num_beams": 4}, ("beams 4",))],
            _choices("length_penalty", "length_penalty", [1.0, 0.0, 0.6, 2.0], every=True),
            _choices("early_stopping", "early_stopping", [False, True, "never"], every=True),
            [Case(), Case({"hypotheses": 4}, {"num_return_sequences": 4}, ("hypotheses 4",))],
        ]
        return [*_combined([[Case(rows=("greedy",))], *changes]), *_combined([*beams, *changes])]


def _choices(ours: str, theirs: str, values: Sequence[Any], *, every: bool = False) -> list[Case]:
    """Return a case per value; the first is the default and counts for no row unless `every` does."""
    return [
        Case({ours: value}, {theirs: value}, (f"{ours} {value}",) if every or value != values[0] else ())
        for value in values
    ]


def _combined(choices: Sequence[Sequence[Case]]) -> Iterator[Case]:
    for several in itertools.product(*choices):
        case = Case()
        for each in several:
            case |= each
        yield case


def sampled_probabilities(
    model: HuggingFace, prefix: Sequence[int], logits: Logits, sampling: Sampling, options: dict[str, Any]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the probabilities [V] that `generate` draws from behind a prefix, start token and forced ones."""
    if "min_new_tokens" in options:
        options = {**options, "min_new_tokens": options["min_new_tokens"] + len(model.first)}
    config, _ = model.model._prepare_generation_config(
        None, do_sample=True, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p,
        bad_words_ids=[[i] for i in model.special.never_generated], forced_bos_token_id=None, forced_eos_token_id=None,
        **options,
    )  # fmt: skip
    model.model._prepare_special_tokens(config, device=torch.device("cpu"))
    processors = model.model._get_logits_processor(config, input_ids_seq_length=1)
    scores = processors(torch.tensor([list(prefix)]), torch.tensor(logits)[None])
    probabilities: np.ndarray[Any, np.dtype[np.float64]] = scores[0].double().softmax(-1).numpy()
    return probabilities
