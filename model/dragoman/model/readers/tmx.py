"""TMX: translation units with one variant per language."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dragoman.model.readers.inline import inline_text
from dragoman.model.readers.language import choose_languages
from dragoman.model.readers.pair import Pair
from dragoman.model.readers.record import Languages, Problem, Record, Skip, clean
from dragoman.model.readers.units import Unit, read_units


def read_tmx(path: Path, languages: Languages) -> Iterator[Record]:
    """Yield a pair for each unit that has both languages."""
    for unit in read_units(path, root="tmx", units=("tu",)):
        yield unit if isinstance(unit, Problem) else _record(path, unit, languages)


def _record(path: Path, unit: Unit, languages: Languages) -> Record:
    variants = unit.element.findall("tuv")
    tags = [variant.get("lang", "") for variant in variants]
    if not all(tags):
        return Problem(path, unit.where, "a <tuv> without xml:lang")
    chosen = choose_languages(languages, tags)
    if chosen is None:
        present = ", ".join(tag[:20] for tag in sorted(set(tags))[:5]) or "no language"
        return Skip(f"without {languages[0]} or {languages[1]} (with {present})")
    segments = [variants[tags.index(tag)].find("seg") for tag in chosen]
    if segments[0] is None or segments[1] is None:
        return Problem(path, unit.where, f"the <tuv> of {chosen[0] if segments[0] is None else chosen[1]} has no <seg>")
    source, target = (clean(inline_text(segment)) for segment in segments if segment is not None)
    return Pair(source, target) if source and target else Skip("untranslated")
