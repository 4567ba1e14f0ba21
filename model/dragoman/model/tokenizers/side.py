"""One side of a model, source or target: how it cuts a text and what ids the parts have. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Side:
    """Text to ids.

    Attributes:
        segment: Cuts a text into parts.
        ids: Id of each part. Special tokens are not among them: a text never has their ids.
        unk: Id of every other part.
        before: Ids in front of those of the text.
        after: Ids behind them, EOS as a rule.
    """

    segment: Callable[[str], Sequence[str]]
    ids: Mapping[str, int]
    unk: int
    before: tuple[int, ...]
    after: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text` with those around it; of blank text those behind it alone."""
        ids = [self.ids.get(part, self.unk) for part in self.segment(text)]
        return [*self.before, *ids, *self.after] if ids else list(self.after)


def file_of(files: Mapping[str, bytes], name: str) -> bytes:
    """Return the content of a file that the settings name.

    Raises:
        ValueError: It is not there.
    """
    if name not in files:
        raise ValueError(f"{name} is missing; there are {', '.join(sorted(files)) or 'no files'}")
    return files[name]


def read_vocabulary(content: bytes, name: str) -> dict[str, int]:
    """Read a JSON object that gives every part of a text its id.

    Args:
        content: Of the file.
        name: Of the file, for messages.

    Raises:
        ValueError: It is none.
    """
    vocabulary = _read_json(content, name)
    if not isinstance(vocabulary, dict):
        raise ValueError(f"{name}: holds {_kind(vocabulary)}, a vocabulary is an object of piece and id")
    for piece, number in vocabulary.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ValueError(f"{name}: the id of {piece!r} is {number!r}, it must be a whole number from 0")
    return vocabulary


def read_symbols(content: bytes, name: str) -> tuple[str | None, ...]:
    """Read a JSON list of the parts of a text by id, null where an id stands for none.

    Args:
        content: Of the file.
        name: Of the file, for messages.

    Raises:
        ValueError: It is none.
    """
    symbols = _read_json(content, name)
    if not isinstance(symbols, list):
        raise ValueError(f"{name}: holds {_kind(symbols)}, symbols are a list")
    for number, symbol in enumerate(symbols):
        if not isinstance(symbol, str | None):
            raise ValueError(f"{name}: entry {number} is {symbol!r}, it must be a text or null")
    return tuple(symbols)


def write_json(value: Mapping[str, int] | Sequence[str | None]) -> bytes:
    """Return what `read_vocabulary` and `read_symbols` read."""
    return (json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def check_ids(ids: Iterable[int], size: int, what: str) -> None:
    """Check that ids belong to a vocabulary.

    Args:
        ids: To be checked.
        size: Of the vocabulary.
        what: To call them in the message.

    Raises:
        ValueError: One does not.
    """
    wrong = sorted({i for i in ids if not 0 <= i < size})
    if wrong:
        raise ValueError(f"{what} has id {', '.join(map(str, wrong[:5]))}, there are {size} ids, from 0")


def _read_json(content: bytes, name: str) -> object:
    try:
        return json.loads(content)
    except ValueError as error:
        raise ValueError(f"{name}: cannot be read as JSON: {error}") from error


def _kind(value: object) -> str:
    return "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)[:40]
