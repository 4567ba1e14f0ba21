"""Turn manual page markup into a row of plain-text blocks.

Only the `man` macro package is understood, because translated pages come in
it. Inline font macros vanish: an original and its translation often choose
different ones, and the row of block kinds must not depend on that.
"""

from __future__ import annotations

import re
import unicodedata

from dragoman.model.corpus.align import Block

_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|(\S+)')
_REQUEST = re.compile(r"[.']\s*([A-Za-z]+)\s*(.*)$")
_COMMENT = re.compile(r'\s*\\["#].*$')

_ACCENTS = {":": "\u0308", "'": "\u0301", "`": "\u0300", "^": "\u0302", "~": "\u0303", ",": "\u0327"}
_ACCENTED = re.compile(r"\\\(([:'`^~,])([A-Za-z])|\\\[([:'`^~,])([A-Za-z])\]")
_ESCAPES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\f(?:\[[^]]*\]|\(..|.)|\\s(?:[-+]?\d|\([-+]?\d\d|\[[^]]*\])|\\m\[[^]]*\]", ""),
        (r"\\\(ss|\\\[ss\]", "ß"),
        (r"\\\((?:lq|rq|Lq|Bq|dq)|\\\[(?:lq|rq|Lq|Bq|dq)\]|\\\*\((?:lq|rq|L\"|R\")|\\\*\[[LR]\"\]", '"'),
        (r"\\\*\(Aq|\\\((?:aq|oq|cq|ga)|\\\[(?:aq|oq|cq|ga)\]", "'"),
        (r"\\\((?:Fo|fo)|\\\[(?:Fo|fo)\]", "«"),
        (r"\\\((?:Fc|fc)|\\\[(?:Fc|fc)\]", "»"),
        (r"\\\((?:em|en)|\\\[(?:em|en)\]|\\\*\(--", "\u2013"),
        (r"\\\((?:hy|mi)|\\\[(?:hy|mi)\]|\\-", "-"),
        (r"\\\(ti|\\\[ti\]", "~"),
        (r"\\\(ha|\\\[ha\]", "^"),
        (r"\\\(rs|\\\[rs\]|\\e", r"\\"),
        (r"\\\(..|\\\[[^]]*\]|\\\*\(..|\\\*\[[^]]*\]|\\\*.", ""),
        (r"\\[~0 ]", " "),
        (r"\\[&%,/:^|)cz]", ""),
        (r"\\([.'`\\])", r"\1"),
    )
]

# Macros that set text in a font, and what joins their arguments: alternating
# fonts (`BR`) join without a space.
_FONT_MACROS = {"B": " ", "I": " ", "SM": " ", "SB": " ", "R": " "} | dict.fromkeys(
    ("BR", "RB", "IR", "RI", "BI", "IB"), ""
)
_HEADINGS = frozenset({"SH", "SS"})
_PARAGRAPHS = frozenset({"PP", "P", "LP", "HP"})
_TAGGED = frozenset({"TP", "TQ"})
_INDENTS = frozenset({"RS", "RE"})
_EXAMPLE_STARTS = frozenset({"nf", "EX"})
_EXAMPLE_ENDS = frozenset({"fi", "EE"})
_BREAKS = frozenset({"br", "sp", "in", "ti"})
_DEFINITIONS = frozenset({"de", "de1", "ig", "am"})
_MDOC = frozenset({"Dd", "Nm", "Sh", "Pp"})


def plain_text(text: str) -> str:
    """Return text with roff escapes replaced by characters."""
    text = _ACCENTED.sub(_compose, text)
    for pattern, replacement in _ESCAPES:
        text = pattern.sub(replacement, text)
    return text


def page_blocks(content: str) -> list[Block]:
    """Return the blocks of a page; none if it is written in `mdoc` macros."""
    reader = _PageReader()
    for line in content.replace("\\\n", "").split("\n"):
        if not reader.read(line):
            return []
    reader.flush()
    return reader.blocks


def _compose(match: re.Match[str]) -> str:
    accent, letter = match[1] or match[3], match[2] or match[4]
    return unicodedata.normalize("NFC", letter + _ACCENTS[accent])


def _arguments(rest: str) -> list[str]:
    return [quoted.replace('""', '"') if quoted else bare for quoted, bare in _ARGUMENT.findall(rest)]


class _PageReader:
    """Collect blocks line by line.

    Kinds: `SH`, `SS` headings, `P` paragraphs, `T` tags and `D` bodies of
    tagged paragraphs; `IP`, `RS`, `RE`, `NF`, `TS` are empty and only mark
    structure for the aligner.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._text: list[str] = []
        self._kind = "P"
        self._is_tag_next = False
        self._is_example = False
        self._is_table = False
        self._is_definition = False

    def read(self, line: str) -> bool:
        """Take one line; return False if the page is in another dialect."""
        if self._is_definition:
            # `. .` ends a definition that is nested in a condition.
            self._is_definition = line.replace(" ", "") != ".."
            return True
        if line.startswith(('.\\"', "'\\\"")) or line.strip() in (".", "'", ".."):
            return True
        line = _COMMENT.sub("", line)
        request = _REQUEST.match(line)
        if request is None:
            if not line.startswith((".", "'")) or line.startswith("..."):
                self._read_text(line)
            return True
        name, rest = request[1], request[2]
        if name in _MDOC:
            return False
        if name in _DEFINITIONS:
            self._is_definition = True
        elif name == "TE":
            self._is_table = False
        elif not self._is_table:
            self._read_request(name, rest)
        return True

    def flush(self) -> None:
        """End the current block; examples are code and are dropped."""
        if self._text and not self._is_example:
            self.blocks.append(Block(self._kind, plain_text(" ".join(self._text))))
        self._text = []

    def _read_text(self, line: str) -> None:
        if self._is_table:
            return
        if not line.strip():
            self.flush()
            self._kind = "P"
            return
        self._text.append(line.strip())
        self._end_tag()

    def _end_tag(self) -> None:
        if self._is_tag_next:
            self.flush()
            self._kind, self._is_tag_next = "D", False

    def _read_request(self, name: str, rest: str) -> None:
        if name in _FONT_MACROS:
            self._text.append(_FONT_MACROS[name].join(_arguments(rest)))
            self._end_tag()
        elif name in _HEADINGS:
            self.flush()
            self.blocks.append(Block(name, plain_text(" ".join(_arguments(rest)))))
            self._kind, self._is_example = "P", False
        elif name in _TAGGED:
            self.flush()
            self._kind, self._is_tag_next = "T", True
        elif name in _PARAGRAPHS:
            self.flush()
            self._kind = "P"
        elif name == "IP":
            self._mark(name, kind="D")
        elif name in _INDENTS:
            self._mark(name, kind="P")
        elif name in _EXAMPLE_STARTS:
            self._mark("NF", kind="P")
            self._is_example = True
        elif name in _EXAMPLE_ENDS:
            self.flush()
            self._kind, self._is_example = "P", False
        elif name == "TS":
            self._mark(name, kind="P")
            self._is_table = True
        elif name in _BREAKS:
            self.flush()

    def _mark(self, name: str, *, kind: str) -> None:
        self.flush()
        self.blocks.append(Block(name, ""))
        self._kind = kind
