"""Models, sentences and options that the tests of verification share."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dragoman.export import bundle
from dragoman.export.verify import Report, verify
from dragoman.model.cached_search import greedy_cached
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.languages import Languages, LanguageTokens
from dragoman.model.readers import Pair
from dragoman.model.tokenizers import SentencePieceTokenizer
from dragoman.model.vocab import SPECIAL_IDS
from tests.fakes.bundles import make_checkpoint, plant

SENTENCES = 20
# Languages of a model of several: ids that are never generated stand around sources and begin targets.
TOKENS = {"en": 320, "fr": 321, "de": 322, "it": 323}
MANY = Languages(
    {tag: LanguageTokens(before_source=(token,)) for tag, token in TOKENS.items()},
    {tag: LanguageTokens(after_source=(token,), first_target=(token,)) for tag, token in TOKENS.items()},
)


@functools.cache
def one_pair() -> Checkpoint:
    """Return a random model of one language pair, half of whose texts end by EOS before their limit."""
    made = make_checkpoint(output_bias=True)
    with torch.no_grad():
        assert made.model.output_bias is not None
        made.model.output_bias[SPECIAL_IDS.eos] += 2.5
    return made


@functools.cache
def many_pairs() -> Checkpoint:
    """Return one of several languages, without default ones."""
    made = one_pair()
    special = replace(SPECIAL_IDS, suppressed=tuple(TOKENS.values()))
    tokenizer = SentencePieceTokenizer.load(made.tokenizer.files(), made.tokenizer.settings(), special)
    return replace(made, tokenizer=tokenizer, languages=MANY, source_language="", target_language="")


@functools.cache
def held_out() -> list[Pair]:
    """Return sentences whose references are PyTorch's own translations, so that it scores 100."""
    checkpoint = one_pair()
    texts = [" ".join(["one", "two", "forty", "six hundred"][i % 4 :: 1 + i % 3]) + f" {i}" for i in range(30)]
    sources = [checkpoint.tokenizer.encode(text) for text in texts]
    found = greedy_cached(checkpoint.model, sources, [24] * len(sources), checkpoint.tokenizer.special)
    return [Pair(text, checkpoint.tokenizer.decode(ids)) for text, ids in zip(texts, found, strict=True)]


def check(folder: Path, checkpoint: Checkpoint, pairs: Sequence[Pair] | None = None, **options: Any) -> Report:
    """Verify with few sentences."""
    return verify(folder, checkpoint, pairs, **{"sentences": SENTENCES, **options})


def edit(folder: Path, out: Path, **changes: Any) -> Path:
    """Copy a bundle with other fields in its manifest."""
    plant(folder, out, bundle.DECODER, lambda _: None)
    manifest = json.loads((out / bundle.MANIFEST).read_text())
    (out / bundle.MANIFEST).write_text(json.dumps({**manifest, **changes}))
    return out
