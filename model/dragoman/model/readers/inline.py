r"""The text of a segment with inline elements, in TMX and XLIFF.

Elements around text (g, mrk, pc, hi) leave their text. Elements that hold native code (bpt, ept, ph, it, ut)
are dropped with it: `<bpt>{\b </bpt>` is no word. A placeholder such as `<ph>%s</ph>` is kept, since
translators keep it. A line break becomes a space.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element

_CODES = frozenset({"bpt", "ept", "it", "ph", "ut"})
_LINE_BREAKS = frozenset({"lb", "xlf:lb", "x-html-br"})


def inline_text(element: Element) -> str:
    """Return the text of a segment."""
    parts = [element.text or ""]
    for child in element:
        if _LINE_BREAKS & {child.get("ctype"), child.get("type"), child.get("subType")}:
            parts.append(" ")
        elif child.tag not in _CODES:
            parts.append(inline_text(child))
        elif child.tag == "ph" and child.text and not set("<\\") & set(child.text):
            parts.append(child.text)
        parts.append(child.tail or "")
    return "".join(parts)
