"""XLIFF 1.x (<trans-unit>) and 2.x (<unit> with <segment>s)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

from dragoman.model.readers.inline import inline_text
from dragoman.model.readers.language import find_language
from dragoman.model.readers.pair import Pair
from dragoman.model.readers.record import Languages, Problem, Record, Skip, clean
from dragoman.model.readers.units import Unit, read_units

_UNITS = {"1": "trans-unit", "2": "unit"}


def read_xliff(path: Path, languages: Languages | None) -> Iterator[Record]:
    """Yield a pair for each translated unit or segment.

    Args:
        path: The file.
        languages: If given, a file that says it is in other ones is a problem.
    """
    for unit in read_units(path, root="xliff", units=_UNITS.values()):
        if isinstance(unit, Problem):
            yield unit
            continue
        if reason := _misfit(unit, languages):
            yield Problem(path, unit.where, reason, final=True)
            return
        if (unit.inherited | unit.element.attrib).get("translate") == "no":
            yield Skip("marked as not to be translated")
        elif unit.element.tag == "trans-unit":
            yield _record(path, unit, unit.element)
        else:
            for segment in unit.element.findall("segment"):
                yield _record(path, unit, segment)


def _misfit(unit: Unit, languages: Languages | None) -> str:
    """Say why units like this one cannot be read; empty if they can."""
    declared = unit.inherited
    version = declared.get("version", "")
    if _UNITS.get(version[:1]) != unit.element.tag:
        return (
            f"<{unit.element.tag}> in XLIFF version {version[:20]!r}; 1.x with <trans-unit> or 2.x with <unit> is known"
        )
    if languages is None:
        return ""
    tags = [
        declared.get(old, declared.get(new))
        for old, new in (("source-language", "srcLang"), ("target-language", "trgLang"))
    ]
    wrong = any(tag and find_language(wanted, [tag]) is None for wanted, tag in zip(languages, tags, strict=True))
    return f"is {tags[0] or '?'} to {tags[1] or '?'}, but {languages[0]} to {languages[1]} is wanted" if wrong else ""


def _record(path: Path, unit: Unit, holder: Element) -> Record:
    source, target = holder.find("source"), holder.find("target")
    if source is None:
        return Problem(path, unit.where, f"<{holder.tag}> without <source>")
    state = "" if target is None else target.get("state") or holder.get("state") or ""
    if state in ("new", "initial") or state.startswith("needs-"):
        return Skip("not finished by its state")
    texts = clean(inline_text(source)), "" if target is None else clean(inline_text(target))
    return Pair(*texts) if all(texts) else Skip("untranslated")
