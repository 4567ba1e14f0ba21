"""Read GNOME help (Mallard XML pages).

The translation tool keeps the element structure, so pages of one name are
aligned element by element.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

from dragoman.model.corpus.align import Block, align_blocks

_TEXT_ELEMENTS = frozenset({"title", "p", "desc"})
_SKIPPED_ELEMENTS = frozenset({"credit", "comment", "screen", "code", "license", "revision"})


def read_gnomehelp(english: Path, translated: Path) -> Iterator[tuple[str, str]]:
    """Yield aligned paragraphs of the pages present in both folders."""
    for page in sorted(english.rglob("*.page")):
        other = translated / page.relative_to(english)
        if other.is_file():
            yield from align_blocks(page_blocks(page.read_bytes()), page_blocks(other.read_bytes()))


def page_blocks(content: bytes) -> list[Block]:
    """Return the text blocks of a page, or none if it is not well-formed."""
    try:
        root = ElementTree.fromstring(content)  # noqa: S314 (apt has verified the package)
    except ElementTree.ParseError:
        return []
    blocks: list[Block] = []
    _collect(root, blocks)
    return blocks


def _collect(parent: ElementTree.Element, blocks: list[Block]) -> None:
    for child in parent:
        name = str(child.tag).rsplit("}", 1)[-1]
        if name in _TEXT_ELEMENTS:
            blocks.append(Block(name, "".join(child.itertext())))
        elif name not in _SKIPPED_ELEMENTS:
            _collect(child, blocks)
