"""Read manual pages and their translations.

Translations are made paragraph by paragraph from one version of the original
that need not be the packaged one, so sections are aligned on their own: a
difference in one section costs that section only.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from dragoman.model.corpus.align import Block, align_blocks
from dragoman.model.corpus.roff import page_blocks

MANUALS = Path("usr/share/man")


def read_man(roots: Iterable[Path], locale: str) -> Iterator[tuple[str, str]]:
    """Yield aligned blocks of the pages found in both languages.

    Args:
        roots: Unpacked packages, English and translated ones together.
        locale: Folder name of the translated pages.
    """
    manuals = [root / MANUALS for root in roots]
    english = _pages(manuals)
    for name, page in sorted(_pages([folder / locale for folder in manuals]).items()):
        if name in english:
            yield from align_pages(_read(english[name]), _read(page))


def align_pages(source: str, target: str) -> Iterator[tuple[str, str]]:
    """Yield aligned blocks of an original page and its translation."""
    source_sections = _sections(page_blocks(source))
    target_sections = _sections(page_blocks(target))
    # The last section of a translation may name the translators: it has no
    # counterpart, and `zip` leaves it over.
    for source_section, target_section in zip(source_sections, target_sections, strict=False):
        if _subheadings(source_section) == _subheadings(target_section):
            yield from align_blocks(source_section, target_section)


def _pages(folders: Iterable[Path]) -> dict[str, Path]:
    """Return pages by file name (`ls.1.gz`); the first folder wins."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.glob("man[1-9]*/*.gz")):
            if not path.is_symlink():
                found.setdefault(path.name, path)
    return found


def _read(path: Path) -> str:
    """Return a page as text, empty if it is damaged or in an old encoding."""
    try:
        return gzip.decompress(path.read_bytes()).decode("utf-8")
    except (UnicodeDecodeError, OSError, EOFError, zlib.error):
        return ""


def _sections(blocks: list[Block]) -> list[list[Block]]:
    sections: list[list[Block]] = [[]]
    for block in blocks:
        if block.kind == "SH":
            sections.append([])
        sections[-1].append(block)
    return sections


def _subheadings(section: list[Block]) -> int:
    return sum(block.kind == "SS" for block in section)
