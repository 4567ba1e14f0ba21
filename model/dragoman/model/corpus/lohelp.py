"""Read LibreOffice help (HTML pages).

Every paragraph carries the same element id in every language, so alignment
is a join on (page, element, id).
"""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

_BLOCKS = frozenset(
    {"p", "h1", "h2", "h3", "h4", "h5", "h6", "dt", "dd", "li", "td", "th", "title", "caption", "summary"}
)
_SKIPPED = frozenset({"script", "style", "pre", "nav", "header", "footer", "aside", "button", "select"})
_VOID = frozenset({"br", "img", "hr", "input", "meta", "link", "col", "area", "base", "wbr", "source"})
# Variants for another system and notes for help authors, hidden by the viewer.
_SKIPPED_CLASSES = frozenset({"MAC", "debug", "howtogetheader"})

BlockKey = tuple[str, str]


def read_lohelp(english: Path, translated: Path) -> Iterator[tuple[str, str]]:
    """Yield aligned paragraphs of the pages present in both folders."""
    for page in sorted(english.rglob("*.html")):
        other = translated / page.relative_to(english)
        if not other.is_file():
            continue
        source = paragraphs(page.read_text("utf-8", "replace"))
        target = paragraphs(other.read_text("utf-8", "replace"))
        for key, texts in source.items():
            others = target.get(key, [])
            # An id may repeat; unequal repetition leaves the order unclear.
            if len(texts) == len(others):
                yield from zip(texts, others, strict=True)


def paragraphs(page: str) -> dict[BlockKey, list[str]]:
    """Return the texts of a page by (element name, id), in page order."""
    parser = _PageParser()
    parser.feed(page)
    parser.close()
    found: dict[BlockKey, list[str]] = {}
    for block in parser.blocks:
        text = "".join(block.parts)
        if block.ident and text.strip():
            found.setdefault((block.name, block.ident), []).append(text)
    return found


class _OpenBlock:
    """Collect the text of one block element."""

    __slots__ = ("ident", "name", "parts")

    def __init__(self, name: str, ident: str) -> None:
        self.name = name
        self.ident = ident
        self.parts: list[str] = []


class _PageParser(HTMLParser):
    """Collect text into the innermost open block element."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[_OpenBlock] = []
        # (element, is skipped, block that takes text)
        self._open: list[tuple[str, bool, _OpenBlock | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open an element; a nested block takes over from its parent."""
        _, is_skipped, block = self._open[-1] if self._open else ("", False, None)
        if tag in _VOID:
            if block is not None:
                block.parts.append(" ")
            return
        values = dict(attrs)
        classes = (values.get("class") or "").split()
        is_skipped = is_skipped or tag in _SKIPPED or not _SKIPPED_CLASSES.isdisjoint(classes)
        if tag in _BLOCKS:
            block = _OpenBlock(tag, values.get("id") or "")
            if not is_skipped:
                self.blocks.append(block)
        self._open.append((tag, is_skipped, block))

    def handle_endtag(self, tag: str) -> None:
        """Close an element and whatever was left open inside it."""
        if any(name == tag for name, _, _ in self._open):
            while self._open.pop()[0] != tag:
                pass

    def handle_data(self, data: str) -> None:
        """Add text to the block it belongs to."""
        if self._open:
            _, is_skipped, block = self._open[-1]
            if block is not None and not is_skipped:
                block.parts.append(data)
