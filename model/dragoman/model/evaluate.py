"""BLEU and chrF of translations, with the sacreBLEU signature that makes them comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sacrebleu
from tqdm import tqdm

from dragoman.model.checkpoint import Checkpoint
from dragoman.model.limits import default_max_new_tokens
from dragoman.model.search import greedy

_ROWS = 32


@dataclass(frozen=True, slots=True)
class Scores:
    """Corpus scores and the plain counts behind them.

    Attributes:
        bleu: 0 to 100.
        chrf: 0 to 100.
        length_ratio: Characters of the translations per character of the references.
        empty: Translations without text.
        sentences: How many were scored.
        bleu_signature: Of sacreBLEU.
        chrf_signature: Of sacreBLEU.
    """

    bleu: float
    chrf: float
    length_ratio: float
    empty: int
    sentences: int
    bleu_signature: str
    chrf_signature: str


def corpus_scores(translations: Sequence[str], references: Sequence[str]) -> Scores:
    """Score translations against one reference each."""
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    translations, references = list(translations), list(references)
    bleu_score = bleu.corpus_score(translations, [references]).score
    chrf_score = chrf.corpus_score(translations, [references]).score
    return Scores(
        bleu=round(bleu_score, 2),
        chrf=round(chrf_score, 2),
        length_ratio=round(sum(map(len, translations)) / max(1, sum(map(len, references))), 3),
        empty=sum(not text.strip() for text in translations),
        sentences=len(references),
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
    )


def translate_all(checkpoint: Checkpoint, sources: Sequence[str]) -> list[str]:
    """Translate with the reference search, longest last, behind a progress bar.

    Sources beyond the model's limit keep an empty translation: they count as wrong, not as missing.
    """
    config = checkpoint.model.config
    encoded = [checkpoint.tokenizer.encode(source) for source in sources]
    order = sorted(
        (i for i, ids in enumerate(encoded) if len(ids) <= config.max_source_tokens), key=lambda i: len(encoded[i])
    )
    texts = [""] * len(sources)
    with tqdm(total=len(order), unit="sentence", desc="translate") as bar:
        for start in range(0, len(order), _ROWS):
            rows = order[start : start + _ROWS]
            limits = [default_max_new_tokens(len(encoded[i]), config.max_target_tokens) for i in rows]
            found = greedy(checkpoint.model, [encoded[i] for i in rows], limits, checkpoint.tokenizer.special)
            for i, ids in zip(rows, found, strict=True):
                texts[i] = checkpoint.tokenizer.decode(ids)
            bar.update(len(rows))
    return texts
