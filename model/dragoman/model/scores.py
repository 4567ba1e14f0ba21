"""BLEU and chrF of translations, with the sacreBLEU signatures that make them comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sacrebleu

# How BLEU cuts text into tokens. 13a needs spaces between words; "zh" is for Chinese. sacreBLEU's
# other tokenizers need packages or downloads of their own.
TOKENIZERS = ("13a", "intl", "zh", "char")
DEFAULT_TOKENIZER = "13a"


@dataclass(frozen=True, slots=True)
class Scores:
    """Corpus scores of some sentences.

    Attributes:
        sentences: How many were scored.
        bleu: 0 to 100; None where no reference has four tokens, so that BLEU is not defined.
        chrf: 0 to 100.
        length_ratio: Characters of all translations per character of all references. Below 1 text is
            missing, far above 1 something repeats.
        bleu_signature: Of sacreBLEU.
        chrf_signature: Of sacreBLEU.
    """

    sentences: int
    bleu: float | None
    chrf: float
    length_ratio: float
    bleu_signature: str
    chrf_signature: str


def corpus_scores(
    translations: Sequence[str], references: Sequence[str], *, tokenizer: str = DEFAULT_TOKENIZER
) -> Scores:
    """Score translations against one reference each.

    Args:
        translations: At least one.
        references: One for each translation.
        tokenizer: One of `TOKENIZERS`.
    """
    bleu, chrf = sacrebleu.BLEU(tokenize=tokenizer), sacrebleu.CHRF()
    translations, references = list(translations), list(references)
    bleu_score = _bleu(bleu, translations, references)
    chrf_score: float = chrf.corpus_score(translations, [references]).score
    return Scores(
        sentences=len(references),
        bleu=None if bleu_score is None else round(bleu_score, 2),
        chrf=round(chrf_score, 2),
        length_ratio=round(sum(map(len, translations)) / max(1, sum(map(len, references))), 3),
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
    )


def _bleu(metric: sacrebleu.BLEU, translations: list[str], references: list[str]) -> float | None:
    found = metric.corpus_score(translations, [references])
    # sacreBLEU says 0 for words and short phrases even if all of them are right.
    if not found.counts[-1] and not metric.corpus_score(references, [references]).totals[-1]:
        return None
    score: float = found.score
    return score
