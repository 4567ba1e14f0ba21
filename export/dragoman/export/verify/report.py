"""What verification found, as JSON and for people. Standard library only.

`Report.to_dict` has everything; its keys stay as they are from version to version of `REPORT_FORMAT`:

    format            1
    passed            whether the bundle may be published
    problems          why not, in words
    bundle            name, version, precision and format_version of the bundle
    checkpoint        path and step
    requirement       what was asked of the precision, see `requirements.Requirement`
    languages         the pairs that texts were translated in, as [source, target]
    logits            see `logits.Logits`; a number that is not finite is null
    tokenizer         see `contents.Tokenization`
    searches          one per search (greedy, beam-4):
        name, beams
        sentences         texts that both translated
        identical         equal to PyTorch's
        ties              different, but within the size of rounding errors
        alone             texts that the bundle translated alone, too
        alone_identical   equal to those in a batch
        alone_ties        different within the size of rounding errors
        references        texts with a reference
        chrf_model        of PyTorch's texts; null without references
        chrf_bundle       of the bundle's
        different         texts that are not PyTorch's, the least similar first, at most `MAX_EXAMPLES`:
            languages, source, model, bundle
            position      of the first different token
            margin        of PyTorch's logits there: how sure it was; null if it has none
            tie           whether rounding errors explain it
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from dragoman.export.verify.advice import next_steps
from dragoman.export.verify.contents import Tokenization
from dragoman.export.verify.logits import Logits
from dragoman.export.verify.requirements import Requirement

REPORT_FORMAT = 1
MAX_EXAMPLES = 20
_SHOWN_EXAMPLES = 3
_SHOWN_CHARACTERS = 160
_SHOWN_BEFORE = 60  # the same in both texts


@dataclass(frozen=True, slots=True)
class Example:
    """A text that the bundle translated differently; fields as in the module's table."""

    languages: tuple[str, str]
    source: str
    model: str
    bundle: str
    position: int
    margin: float
    tie: bool

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**asdict(self), "languages": list(self.languages), "margin": _finite(self.margin)}


@dataclass(frozen=True, slots=True)
class SearchReport:
    """What one kind of search found; fields as in the module's table."""

    name: str
    beams: int
    sentences: int
    identical: int
    ties: int
    alone: int
    alone_identical: int
    alone_ties: int
    references: int
    chrf_model: float | None
    chrf_bundle: float | None
    different: tuple[Example, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**asdict(self), "different": [example.to_dict() for example in self.different]}


@dataclass(frozen=True, slots=True)
class Report:
    """What verification found.

    Attributes:
        bundle: Name, version, precision and format of the bundle.
        checkpoint: Path and step.
        requirement: What was asked.
        languages: Pairs that texts were translated in.
        logits: Of the grid.
        tokenizer: Of both tokenizers.
        searches: One per kind of search.
        problems: Why the bundle is refused; empty if it passed.
    """

    bundle: dict[str, Any]
    checkpoint: dict[str, Any]
    requirement: Requirement
    languages: tuple[tuple[str, str], ...]
    logits: Logits
    tokenizer: Tokenization
    searches: tuple[SearchReport, ...]
    problems: tuple[str, ...] = ()

    @property
    def precision(self) -> str:
        """Of the bundle."""
        return str(self.bundle["precision"])

    @property
    def max_logit_difference(self) -> float:
        """Over the whole grid."""
        return self.logits.max_difference

    @property
    def sentences(self) -> int:
        """Texts that were compared."""
        return self.searches[0].sentences

    @property
    def identical(self) -> int:
        """Greedy texts that are PyTorch's."""
        return self.searches[0].identical

    @property
    def ties(self) -> int:
        """Greedy texts that are not, because two tokens were equally probable."""
        return self.searches[0].ties

    def search(self, name: str) -> SearchReport:
        """Return the report of a search by its name.

        Raises:
            KeyError: There is none.
        """
        found = {search.name: search for search in self.searches}
        return found[name]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        logits = asdict(self.logits)
        return {
            "format": REPORT_FORMAT,
            "passed": not self.problems,
            "problems": list(self.problems),
            "bundle": self.bundle,
            "checkpoint": self.checkpoint,
            "requirement": asdict(self.requirement),
            "languages": [list(pair) for pair in self.languages],
            "logits": {**logits, **{name: _finite(logits[name]) for name in ("max_difference", "spread")}},
            "tokenizer": asdict(self.tokenizer),
            "searches": [search.to_dict() for search in self.searches],
        }

    def summary(self) -> dict[str, Any]:
        """Return the few numbers that a manifest keeps."""
        values: dict[str, Any] = {
            "max_logit_difference": _finite(float(f"{self.logits.max_difference:.3g}")),
            "sentences": self.sentences,
        }
        for search in self.searches:
            of = "" if search.beams == 1 else f"_{search.name.replace('-', '_')}"
            values |= {
                f"identical_texts{of}": search.identical,
                f"ties{of}": search.ties,
                f"batched_equals_alone{of}": search.alone_identical + search.alone_ties,
                f"chrf_model{of}": search.chrf_model,
                f"chrf_bundle{of}": search.chrf_bundle,
            }
        return values

    def table(self) -> str:
        """Return the numbers for people, then the worst sentences, then what failed and what to do about it."""
        return "\n".join(
            [
                f"verification ({self.precision})",
                *self._logit_lines(),
                *self._search_lines(),
                *self._example_lines(),
                *(f"  FAILED: {problem}" for problem in self.problems),
                *(f"  NEXT: {step}" for step in next_steps(self)),
            ]
        )

    def _logit_lines(self) -> Iterator[str]:
        logits, where = self.logits, self.logits.where
        tolerance = self.requirement.logit_tolerance
        allowed = "" if tolerance is None else f", allowed {tolerance * max(1.0, logits.spread):.3g}"
        yield f"  logits       {logits.cases} batches, largest difference {logits.max_difference:.3g}{allowed}"
        yield (
            f"               at batch {where.batch}, {where.source_tokens} source tokens, row {where.row}, "
            f"position {where.position}; PyTorch's spread {logits.spread:.3g}"
        )

    def _search_lines(self) -> Iterator[str]:
        pairs = ", ".join(" to ".join(tag or "?" for tag in pair) for pair in self.languages)
        yield f"  languages    {pairs}"
        yield f"  {'texts':<10} {'compared':>10} {'identical':>10} {'ties':>6} {'alone = batched':>17} {'chrF':>22}"
        for search in self.searches:
            alone = f"{search.alone_identical + search.alone_ties} of {search.alone}"
            chrf = "-" if search.chrf_model is None else f"{search.chrf_bundle:.2f} (PyTorch {search.chrf_model:.2f})"
            yield (
                f"  {search.name:<10} {search.sentences:>10} {search.identical:>10} {search.ties:>6} "
                f"{alone:>17} {chrf:>22}"
            )

    def _example_lines(self) -> Iterator[str]:
        for search in self.searches:
            if search.different:
                yield f"  least similar texts, {search.name}"
            for example in search.different[:_SHOWN_EXAMPLES]:
                tie = ", a tie" if example.tie else ""
                same = _common(example.model, example.bundle)
                yield f"    source       {_shown(example.source)}"
                yield f"      PyTorch    {_shown(example.model, same)}"
                yield f"      bundle     {_shown(example.bundle, same)}"
                yield f"      differ from token {example.position} on, margin {example.margin:.3g}{tie}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _shown(text: str, same: int = 0) -> str:
    """Return one line of a text, cut so that what stands behind its first `same` characters is in it."""
    start = max(0, same - _SHOWN_BEFORE)
    line = " ".join(text[start:].split())
    end = "…" if len(line) > _SHOWN_CHARACTERS else ""
    return f"{'…' if start else ''}{line[:_SHOWN_CHARACTERS]}{end}"


def _common(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
