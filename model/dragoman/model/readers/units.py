"""XML read unit by unit: one <tu> or <trans-unit> is in memory at a time, the rest goes by.

The parser is expat of the standard library. A document that brings declarations of its own (`<!DOCTYPE x
[...]>`) is refused before the first of them is read: so no entity is ever declared, and none can expand
without bound or pull in another file. An external DTD may be named, as TMX files do; it is not opened.
Names are local names: namespaces differ between versions and tools, the elements do not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from dragoman.model.readers.record import MAX_RECORD_BYTES, Problem
from dragoman.model.readers.stream import STREAM_ERRORS, open_stream, stream_reason

_CHUNK_BYTES = 1 << 14
_MAX_DEPTH = 100
_TOO_LONG = f"longer than {MAX_RECORD_BYTES:,} bytes"
_INVALID_TOKEN = expat.errors.codes[expat.errors.XML_ERROR_INVALID_TOKEN]
_NO_ELEMENTS = expat.errors.codes[expat.errors.XML_ERROR_NO_ELEMENTS]


@dataclass(frozen=True, slots=True)
class Unit:
    """One complete element.

    Attributes:
        number: From 1.
        line: Where it starts.
        element: With all that is in it.
        inherited: Attributes of the elements around it; an inner one wins.
    """

    number: int
    line: int
    element: Element
    inherited: dict[str, str]

    @property
    def where(self) -> str:
        """For error messages."""
        return f"unit {self.number} (line {self.line})"


def read_units(path: Path, *, root: str, units: Collection[str]) -> Iterator[Unit | Problem]:
    """Yield the units of a document.

    Args:
        path: XML file, compressed if its name ends in .gz.
        root: Name of the outermost element; another one is a problem.
        units: Names of the elements to yield.
    """
    parser = _UnitParser(path, root, units)
    try:
        with open_stream(path) as stream:
            while (chunk := stream.read(_CHUNK_BYTES)) or parser.size:
                problem = parser.feed(chunk)
                yield from parser.take()  # after the last chunk too: newer versions of expat lag behind
                if problem:
                    yield problem
                if problem or not chunk:
                    return
    except STREAM_ERRORS as error:
        yield Problem(path, f"line {parser.line}", stream_reason(error), final=True)


class _RefusedError(Exception):
    """Well-formed, but not to be read."""


class _UnitParser:
    """Bytes in, units out."""

    def __init__(self, path: Path, root: str, units: Collection[str]) -> None:
        self.size = 0
        self._path = path
        self._root = root
        self._units = units
        self._open: list[tuple[str, dict[str, str]]] = []
        self._builder: TreeBuilder | None = None
        self._start = (0, 0, 0)  # byte, line and depth of the open unit
        self._number = 0
        self._ready: list[Unit | Problem] = []
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.buffer_text = True
        self._parser.StartDoctypeDeclHandler = self._doctype
        self._parser.SkippedEntityHandler = self._skipped_entity
        self._parser.StartElementHandler = self._start_element
        self._parser.EndElementHandler = self._end_element
        self._parser.CharacterDataHandler = self._text

    @property
    def line(self) -> int:
        """Where the parser is."""
        return self._parser.CurrentLineNumber

    def take(self) -> list[Unit | Problem]:
        """Return the units completed since the last call."""
        ready, self._ready = self._ready, []
        return ready

    def feed(self, chunk: bytes) -> Problem | None:
        """Parse more of the document; an empty chunk ends it. Nothing can be fed after a problem."""
        try:
            self._parser.Parse(chunk, not chunk)
        except expat.ExpatError as error:
            return Problem(self._path, f"line {error.lineno}", self._reason(error, chunk), final=True)
        except _RefusedError as error:
            return Problem(self._path, f"line {self.line}", str(error), final=True)
        except (LookupError, ValueError) as error:  # a declared encoding that expat does not know
            return Problem(self._path, "line 1", f"{error}; convert the file to UTF-8", final=True)
        self.size += len(chunk)
        # Without a unit open, a lag is one tag or comment that does not end.
        if self.size - (self._start[0] if self._builder else self._parser.CurrentByteIndex) > MAX_RECORD_BYTES:
            where = f"unit {self._number} (line {self._start[1]})" if self._builder else f"line {self.line}"
            return Problem(self._path, where, _TOO_LONG, final=True)
        return None

    def _reason(self, error: expat.ExpatError, chunk: bytes) -> str:
        at = self._parser.ErrorByteIndex - self.size
        if error.code == _INVALID_TOKEN and 0 <= at < len(chunk) and chunk[at] >= 0x80:
            return f"not in the declared encoding: byte 0x{chunk[at]:02x} at offset {self.size + at} of the file"
        if error.code == _NO_ELEMENTS and self._open:
            return f"the file ends before </{self._open[-1][0]}>; copy the file again"
        return f"no well-formed XML: {expat.ErrorString(error.code)} at column {error.offset + 1}"

    def _doctype(self, name: str, system: str | None, public: str | None, has_declarations: bool) -> None:  # noqa: ARG002  # expat's arguments
        if has_declarations:
            raise _RefusedError(
                "its <!DOCTYPE ... [...]> declares entities or the like, which are not read: they can grow without "
                "bound or pull in other files; write the texts out and remove the part in brackets"
            )

    def _skipped_entity(self, name: str, is_parameter: bool) -> None:  # noqa: ARG002  # expat's arguments
        raise _RefusedError(f"&{name[:40]}; is no entity of XML itself; write the character")

    def _start_element(self, name: str, attributes: dict[str, str]) -> None:
        name = _local(name)
        if not self._open and name != self._root:
            raise _RefusedError(f"the outermost element is <{name[:40]}>; <{self._root}> is expected")
        if len(self._open) >= _MAX_DEPTH:
            raise _RefusedError(f"more than {_MAX_DEPTH} elements inside each other")
        attributes = {_local(key): value for key, value in attributes.items()}
        inherited = self._open[-1][1] if self._open else {}
        if self._builder is None and name in self._units:
            self._builder = TreeBuilder()
            self._number += 1
            self._start = (self._parser.CurrentByteIndex, self.line, len(self._open))
        if self._builder is None:
            inherited = inherited | attributes
        else:
            self._builder.start(name, attributes)
        self._open.append((name, inherited))

    def _end_element(self, name: str) -> None:
        _, inherited = self._open.pop()
        if self._builder is None:
            return
        self._builder.end(_local(name))
        byte, line, depth = self._start
        if len(self._open) == depth:
            unit = Unit(self._number, line, self._builder.close(), inherited)
            is_long = self._parser.CurrentByteIndex - byte > MAX_RECORD_BYTES
            self._ready.append(Problem(self._path, unit.where, _TOO_LONG) if is_long else unit)
            self._builder = None

    def _text(self, text: str) -> None:
        if self._builder is not None:
            self._builder.data(text)


def _local(name: str) -> str:
    return name.rpartition(" ")[2]
