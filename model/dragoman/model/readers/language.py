"""Which of a file's languages is meant: "en" finds "en-US", and "de-AT" is content with "de"."""

from __future__ import annotations

from collections.abc import Iterable

from dragoman.model.readers.record import Languages


def find_language(wanted: str, tags: Iterable[str]) -> str | None:
    """Return the tag that fits best: the same, else a more special one, else a more general one.

    Args:
        wanted: BCP-47 tag; case and "_" for "-" do not matter.
        tags: Of the file; the first of equally good ones is taken.
    """
    found = [(fit, i, tag) for i, tag in enumerate(tags) if (fit := _fit(_normal(wanted), _normal(tag))) is not None]
    return min(found)[2] if found else None


def choose_languages(languages: Languages, tags: Iterable[str]) -> Languages | None:
    """Return the tags of source and target, or None if one is missing or both would be the same."""
    tags = list(tags)
    source, target = (find_language(wanted, tags) for wanted in languages)
    return (source, target) if source is not None and target is not None and source != target else None


def _normal(tag: str) -> str:
    return tag.strip().replace("_", "-").lower()


def _fit(wanted: str, tag: str) -> int | None:
    if not wanted or not tag:
        return None
    fits = (wanted == tag, tag.startswith(f"{wanted}-"), wanted.startswith(f"{tag}-"))
    return fits.index(True) if any(fits) else None
