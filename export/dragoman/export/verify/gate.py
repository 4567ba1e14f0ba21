"""Does a bundle say what its model says? A gate, not a report.

a. logits: teacher-forced steps agree with PyTorch's full pass over a grid of batch sizes and lengths,
   token by token and with several tokens per call.
b. texts: greedy and beam translations equal PyTorch's, or lose no quality; `requirements` says which.
c. batched equals alone.
d. special ids, languages and tokenizer are the checkpoint's.

Logits alone are not enough: a wrong start token, a late cache write or a beam that keeps another one's cache
shows only in texts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dragoman.export import bundle
from dragoman.export.decode import BundleSession
from dragoman.export.errors import BundleError, VerificationError
from dragoman.export.verify.cases import choose_cases
from dragoman.export.verify.contents import compare_tokenizers, manifest_problems
from dragoman.export.verify.logits import compare_logits
from dragoman.export.verify.report import Report, SearchReport
from dragoman.export.verify.requirements import MAX_TIES, Requirement, requirement
from dragoman.export.verify.searches import Comparison
from dragoman.model.checkpoint import Checkpoint
from dragoman.model.languages import Languages
from dragoman.model.readers import Pair
from dragoman.model.translate import choose_languages

SENTENCES = 200
BEAMS = 4


def verify(
    folder: Path,
    checkpoint: Checkpoint,
    pairs: Sequence[Pair] | None,
    *,
    source_language: str = "",
    target_language: str = "",
    sentences: int = SENTENCES,
    seed: int = 0,
) -> Report:
    """Compare a bundle with the checkpoint it was made from.

    Args:
        folder: The bundle.
        checkpoint: The model.
        pairs: Held-out sentences with references. None makes random sources of the vocabulary
            instead, enough for equality but not for quality.
        source_language: Of the sentences; "" for the model's default.
        target_language: Of their references, likewise.
        sentences: How many to compare.
        seed: Of the choice.

    Raises:
        BundleError: The bundle is damaged, or does not run.
        ConfigError: The model has no such language, or several and none was chosen.
    """
    session = BundleSession(folder)
    manifest = session.manifest
    if manifest.shape.vocab_size != checkpoint.model.config.vocab_size:
        raise BundleError(
            f"{folder} is not a bundle of this checkpoint: it has {manifest.shape.vocab_size} target tokens, the "
            f"checkpoint {checkpoint.model.config.vocab_size}; name the checkpoint that it was made from"
        )
    generator = random.Random(seed)  # noqa: S311  # a choice of test sentences, not a secret
    default = manifest.source_language, manifest.target_language
    languages = first_languages(
        manifest.languages, default, source_language, target_language, any_will_do=pairs is None
    )
    asked = requirement(manifest.precision)
    logits = compare_logits(session, checkpoint, generator)
    cases = choose_cases(checkpoint, manifest, pairs, languages=languages, sentences=sentences, generator=generator)
    comparison = Comparison(session, checkpoint, cases, asked.tie, asked.same_texts)
    report = Report(
        bundle={
            "name": manifest.name,
            "version": manifest.version,
            "precision": manifest.precision,
            "format_version": manifest.format_version,
        },
        checkpoint={"path": str(checkpoint.path), "step": checkpoint.step},
        requirement=asked,
        languages=tuple(dict.fromkeys(case.languages for case in cases)),
        logits=logits,
        tokenizer=compare_tokenizers(bundle.load_tokenizer(folder, manifest), checkpoint.tokenizer, cases, generator),
        searches=tuple(comparison.run(beams) for beams in (1, BEAMS)),
    )
    return replace(report, problems=(*manifest_problems(manifest, checkpoint), *_problems(report)))


def first_languages(
    languages: Languages, default: tuple[str, str], source: str, target: str, *, any_will_do: bool
) -> tuple[str, str]:
    """Return the language pair that texts are translated in first.

    Args:
        languages: Of the model.
        default: Of the model; "" if there is none.
        source: What was asked for, or "".
        target: Likewise.
        any_will_do: There are no sentences in a certain language.

    Raises:
        ConfigError: The model has no such language, or several and none was chosen.
    """
    if any_will_do and not all(default):
        fitting = (pair for pair in languages.pairs() if source in ("", pair[0]) and target in ("", pair[1]))
        default = next(fitting, default)
    return choose_languages(languages, default, source, target)


def require(report: Report) -> dict[str, Any]:
    """Return the numbers for a manifest.

    Raises:
        VerificationError: The report has problems.
    """
    if report.problems:
        raise VerificationError(f"{'; '.join(report.problems)}\n{report.table()}")
    return report.summary()


def _problems(report: Report) -> Iterator[str]:
    yield from _logit_problems(report)
    tokens = report.tokenizer
    if tokens.read_differently or tokens.written_differently:
        yield (
            f"the tokenizer reads {tokens.read_differently} and writes {tokens.written_differently} of {tokens.texts} "
            "texts differently"
        )
    if not report.sentences:
        yield "no held-out sentence fits the model's limit, so no text was compared"
        return
    for search in report.searches:
        yield from _text_problems(search, report.requirement)


def _logit_problems(report: Report) -> Iterator[str]:
    found, tolerance = report.logits.max_difference, report.requirement.logit_tolerance
    if not math.isfinite(found):
        yield "a logit is not finite"
    elif tolerance is not None:
        allowed = tolerance * max(1.0, report.logits.spread)
        if found > allowed:
            yield f"logits differ by {found:.3g} from PyTorch's, allowed is {allowed:.3g}"
    if not report.logits.masked:
        yield "ids that must never be generated have logits"


def _text_problems(search: SearchReport, asked: Requirement) -> Iterator[str]:
    wrong = search.sentences - search.identical - search.ties
    if asked.same_texts and wrong:
        yield f"{wrong} of {search.sentences} texts differ from PyTorch's ({search.name})"
    if asked.same_texts and search.ties > MAX_TIES * search.sentences:
        yield (
            f"{search.ties} of {search.sentences} texts hang on ties, too many to tell a right bundle from a wrong one "
            f"({search.name}); the model has not learnt anything yet"
        )
    if search.chrf_model is not None and search.chrf_bundle is not None:
        drop = search.chrf_model - search.chrf_bundle
        if drop > asked.max_chrf_drop:
            yield f"chrF falls by {drop:.2f} against PyTorch's, allowed is {asked.max_chrf_drop} ({search.name})"
    dependent = search.alone - search.alone_identical - search.alone_ties
    if dependent:
        yield f"{dependent} of {search.alone} texts depend on what shares their batch ({search.name})"
